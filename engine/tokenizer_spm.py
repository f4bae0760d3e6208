"""SentencePiece BPE vocabularies, from a `tokenizer.model` file or a GGUF file's metadata.

SentencePiece (Kudo and Richardson 2018, arXiv:1808.06226) merges the two neighbours whose joined
piece has the best score; here that becomes a list of merges in order of score, as the `tokenizers`
library takes it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from engine.models.errors import ModelError
from engine.tokenizer_definition import added_token, bpe_model


class PieceType(IntEnum):
    """`SentencePiece.Type` of sentencepiece_model.proto; GGUF uses the same numbers."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_ROLE_FIELDS = {"unk_token": (40, 0), "bos_token": (41, 1), "eos_token": (42, 2)}
"""Field numbers in `TrainerSpec` of the tokens with a role, and their default ids."""


class Piece(NamedTuple):
    """One entry of the vocabulary; its id is its place."""

    text: str
    score: float
    type: int


def sentencepiece_definition(pieces: Sequence[Piece], *, add_space_prefix: bool) -> dict[str, Any]:
    """The `tokenizer.json` of a SentencePiece BPE model with byte fallback, without post-processor.

    Args:
        pieces: the vocabulary, by id.
        add_space_prefix: whether a text is encoded as if it began with a space.
    """
    unknown = [piece.text for piece in pieces if piece.type == PieceType.UNKNOWN]
    prepend = [{"type": "Prepend", "prepend": "▁"}] if add_space_prefix else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if add_space_prefix else []
    to_space = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    from_space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    return {
        "added_tokens": added_tokens([piece.text for piece in pieces], [piece.type for piece in pieces]),
        "normalizer": {"type": "Sequence", "normalizers": [*prepend, from_space]},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [to_space, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip],
        },
        "model": bpe_model(
            {piece.text: i for i, piece in enumerate(pieces) if piece.type != PieceType.UNUSED},
            _merges(pieces),
            unk_token=unknown[0] if unknown else None,
            fuse_unk=True,
            byte_fallback=True,
        ),
    }


def added_tokens(texts: Sequence[str], types: Sequence[int]) -> list[dict[str, Any]]:
    """The tokens that are matched before the model sees a text; user-defined ones are not special."""
    matched = (PieceType.UNKNOWN, PieceType.CONTROL, PieceType.USER_DEFINED)
    return [
        added_token(i, text, special=kind != PieceType.USER_DEFINED)
        for i, (text, kind) in enumerate(zip(texts, types, strict=True))
        if kind in matched
    ]


def _merges(pieces: Sequence[Piece]) -> list[tuple[str, str]]:
    """Every way to join two pieces into a third, best score of the third first."""
    ranks = {p.text: (-p.score, i) for i, p in enumerate(pieces) if p.type == PieceType.NORMAL}
    ranked = [
        (rank, text[:cut], text[cut:])
        for text, rank in ranks.items()
        for cut in range(1, len(text))
        if text[:cut] in ranks and text[cut:] in ranks
    ]
    return [(left, right) for _, left, right in sorted(ranked)]


def read_sentencepiece(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The `tokenizer.json` of a `tokenizer.model` file, and the texts of `bos_token` and so on.

    Raises:
        ModelError: not a SentencePiece model, or one of a kind that is not supported.
    """
    try:
        fields = list(_fields(path.read_bytes()))
        pieces = [_piece(value) for number, value in fields if number == 1]
        trainer = dict(_fields(b"".join(value for number, value in fields if number == 2)))
        normalizer = dict(_fields(b"".join(value for number, value in fields if number == 3)))
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from error
    except (ValueError, TypeError, IndexError, struct.error) as error:
        raise ModelError(f"{path}: not a SentencePiece model ({error})") from error
    unsupported = {
        "trainer_spec.model_type is not BPE": trainer.get(3, 1) != 2,
        "trainer_spec.byte_fallback is off": not trainer.get(35, 0),
        "normalizer_spec.precompiled_charsmap is set": bool(normalizer.get(2)),
        "normalizer_spec.remove_extra_whitespaces is on": bool(normalizer.get(4, 1)),
        "normalizer_spec.escape_whitespaces is off": not normalizer.get(5, 1),
    }
    for reason, holds in unsupported.items():
        if holds:
            raise ModelError(f"{path}: {reason}, which is not supported")
    named = {
        role: pieces[token_id].text
        for role, (field, default) in _ROLE_FIELDS.items()
        if (token_id := trainer.get(field, default)) < len(pieces)  # -1, for none, is a huge unsigned number
    }
    return sentencepiece_definition(pieces, add_space_prefix=bool(normalizer.get(3, 1))), named


def _piece(message: bytes) -> Piece:
    fields = dict(_fields(message))
    (score,) = struct.unpack("<f", fields.get(2, bytes(4)))
    return Piece(fields[1].decode(), score, fields.get(3, PieceType.NORMAL))


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field of a protobuf message: int, or bytes where a length or size says."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        match key & 7:
            case 0:
                value, at = _varint(message, at)
                yield key >> 3, value
                continue
            case 1:
                size = 8
            case 2:
                size, at = _varint(message, at)
            case 5:
                size = 4
            case kind:
                raise ValueError(f"unknown wire type {kind}")
        if at + size > len(message):
            raise ValueError("cut off")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
