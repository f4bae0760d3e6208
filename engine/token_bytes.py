"""Which bytes each token id stands for in output text.

Derived from the `decoder` of a `tokenizer.json`, so that joining the bytes of ids and decoding them
as UTF-8 gives what the `tokenizers` library decodes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from engine.models.errors import ModelError
from engine.tokenizer_definition import TokenizerDefinition

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def token_bytes(definition: TokenizerDefinition) -> list[bytes]:
    """Bytes by id; b"" for special tokens and for ids without a token.

    Raises:
        ModelError: the decoder is of a kind whose tokens do not stand for fixed bytes.
    """
    decode = _piece_decoder(definition)
    pieces = _pieces(definition.json["model"]["vocab"])
    special = set()
    for token in definition.json["added_tokens"]:
        pieces[token["id"]] = token["content"]
        if token["special"]:
            special.add(token["id"])
    size = 1 + max(pieces, default=-1)
    return [decode(pieces[i]) if i in pieces and i not in special else b"" for i in range(size)]


def strips_leading_space(definition: TokenizerDefinition) -> bool:
    """Whether decoding drops the first space of a text (the one that encoding put there)."""
    return any(
        step["type"] == "Strip" or (step["type"] == "Metaspace" and _metaspace_prepends(step))
        for step in _steps(definition)
    )


def byte_level_alphabet() -> dict[str, int]:
    """Character to byte, as byte-level BPE writes bytes (GPT-2, `bytes_to_unicode`).

    Printable Latin-1 bytes stand for themselves, the others for U+0100 and on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + i): byte for i, byte in enumerate(others)})
    return alphabet


def _pieces(vocab: dict[str, int] | list[list[Any]]) -> dict[int, str]:
    """Id to text; a Unigram vocabulary is a list of (text, score)."""
    if isinstance(vocab, dict):
        return {token_id: text for text, token_id in vocab.items()}
    return {token_id: text for token_id, (text, _) in enumerate(vocab)}


def _steps(definition: TokenizerDefinition) -> list[dict[str, Any]]:
    decoder = definition.json.get("decoder")
    if decoder is None:
        raise ModelError(f"{definition.source}: field 'decoder' is missing")
    steps: list[dict[str, Any]] = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    return steps


def _piece_decoder(definition: TokenizerDefinition) -> Callable[[str], bytes]:
    """The decoder's steps as one function of a token's text."""
    steps = _steps(definition)
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return _byte_level
    if "Strip" in kinds and "Fuse" not in kinds[: kinds.index("Strip")]:
        raise ModelError(f"{definition.source}: field 'decoder': Strip before Fuse, for every token apart")
    replacements = [pair for step in steps if (pair := _replacement(step, definition.source)) is not None]
    byte_fallback = "ByteFallback" in kinds

    def decode(piece: str) -> bytes:
        if byte_fallback and (match := _BYTE_TOKEN.fullmatch(piece)):
            return bytes.fromhex(match[1])
        for old, new in replacements:
            piece = piece.replace(old, new)
        return piece.encode()

    return decode


def _replacement(step: dict[str, Any], source: str) -> tuple[str, str] | None:
    """What a step replaces in every token, if it does."""
    match step:
        case {"type": "Replace", "pattern": {"String": old}, "content": new}:
            return old, new
        case {"type": "Metaspace", "replacement": old}:
            return old, " "
        case {"type": "ByteFallback" | "Fuse"} | {"type": "Strip", "content": " ", "start": 1, "stop": 0}:
            return None
        case _:
            raise ModelError(f"{source}: field 'decoder': step {step} is not supported")


def _byte_level(piece: str, alphabet: dict[str, int] = byte_level_alphabet()) -> bytes:  # noqa: B008
    """A piece with a character outside the alphabet (an added token) stands for its own text."""
    try:
        return bytes([alphabet[character] for character in piece])
    except KeyError:
        return piece.encode()


def _metaspace_prepends(step: dict[str, Any]) -> bool:
    scheme = step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never")
    return bool(scheme != "never")
