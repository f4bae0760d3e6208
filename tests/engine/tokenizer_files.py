"""Small tokenizers for tests, as definitions and as files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import gguf

from engine.token_bytes import byte_level_alphabet
from engine.tokenizer_definition import TokenizerDefinition, added_token, bpe_model
from engine.tokenizer_spm import Piece, PieceType, sentencepiece_definition

CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CHARACTERS = [character for character, _ in sorted(byte_level_alphabet().items(), key=lambda item: item[1])]


def byte_level_tokens(merges: Iterable[tuple[str, str]], special: Sequence[str]) -> list[str]:
    """A byte-level vocabulary: the special tokens, the 256 bytes, then what the merges make."""
    return [*special, *_CHARACTERS, *dict.fromkeys(left + right for left, right in merges)]


def byte_level_json(
    merges: Sequence[tuple[str, str]] = (), special: Sequence[str] = CHATML, user_defined: Sequence[str] = ()
) -> dict[str, Any]:
    """The `tokenizer.json` of a byte-level BPE with GPT-2's words."""
    tokens = [*byte_level_tokens(merges, special), *user_defined]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            added_token(tokens.index(text), text, special=text in special)
            for text in (*special, *user_defined)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": bpe_model({text: i for i, text in enumerate(tokens)}, merges),
    }


def sentencepiece_pieces(words: Sequence[str]) -> list[Piece]:
    """Unknown, BOS, EOS, the 256 bytes, the words' characters, then all their prefixes by length."""
    prefixes = sorted({word[:end] for word in words for end in range(2, len(word) + 1)}, key=len)
    characters = sorted({character for word in words for character in word})
    return [
        Piece("<unk>", 0.0, PieceType.UNKNOWN),
        Piece("<s>", 0.0, PieceType.CONTROL),
        Piece("</s>", 0.0, PieceType.CONTROL),
        *(Piece(f"<0x{byte:02X}>", 0.0, PieceType.BYTE) for byte in range(256)),
        *(Piece(text, -1e6, PieceType.NORMAL) for text in characters),
        *(Piece(text, -float(i), PieceType.NORMAL) for i, text in enumerate(prefixes)),
    ]


def definition(tokenizer_json: dict[str, Any], **fields: Any) -> TokenizerDefinition:
    return TokenizerDefinition(**{"source": "test", "json": tokenizer_json, "eos_ids": frozenset()} | fields)


def sentencepiece_test_definition(words: Sequence[str]) -> TokenizerDefinition:
    pieces = sentencepiece_pieces(words)
    return definition(sentencepiece_definition(pieces, add_space_prefix=True))


def write_directory(path: Path, **files: dict[str, Any] | str) -> Path:
    """Write `name_json=…` as name.json and `name_jinja=…` as name.jinja."""
    path.mkdir(exist_ok=True)
    for name, content in files.items():
        stem, _, extension = name.rpartition("_")
        text = content if isinstance(content, str) else json.dumps(content)
        (path / f"{stem}.{extension}").write_text(text, encoding="utf-8")
    return path


def write_gguf(path: Path, **fields: Any) -> Path:
    """A GGUF file with only these `tokenizer.…` fields (`__` stands for a dot); None leaves one out."""
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in fields.items():
        key = "tokenizer." + name.replace("__", ".")
        match value:
            case None:
                pass
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case str():
                writer.add_string(key, value)
            case _:
                writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
