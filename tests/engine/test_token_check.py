"""The bytes of tokens against what the library's detokenizer writes."""

from __future__ import annotations

import pytest

from engine.models.errors import ModelError
from engine.models.loader import embedded_model_path
from engine.token_check import check_token_bytes
from engine.tokenizer import Tokenizer, load_tokenizer
from tests.engine.tokenizer_files import byte_level_json, definition, sentencepiece_test_definition

MERGES = [("Ġ", "a"), ("a", "b"), ("Ċ", "Ġ"), ("Ã", "©")]


def test_right_tokenizers_pass() -> None:
    check_token_bytes(Tokenizer(definition(byte_level_json(MERGES))))
    check_token_bytes(Tokenizer(sentencepiece_test_definition(["▁a", "ab", "▁▁", "é"])))
    check_token_bytes(load_tokenizer(embedded_model_path()))


@pytest.mark.parametrize(
    ("right", "wrong"), [(b" a", b"a"), (b"\n ", b"\n"), (b"\xc3", b"\xc4\x80"), ("é".encode(), b"e")]
)
def test_a_token_with_other_bytes_is_found(right: bytes, wrong: bytes) -> None:
    tokenizer = Tokenizer(definition(byte_level_json(MERGES)))
    token_id = tokenizer.token_bytes.index(right)
    tokenizer.token_bytes[token_id] = wrong
    with pytest.raises(ModelError, match=rf"1 tokens are decoded.*such as {token_id} "):
        check_token_bytes(tokenizer)
