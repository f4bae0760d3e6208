"""What a JSON decoder does not tell: nesting, repeated keys, and where in the document it stumbled.

All of it works on the raw bytes with one regular expression, never by recursion.
"""

from __future__ import annotations

import re

import msgspec

MAX_DEPTH = 128

# Possessive throughout, and an unterminated string runs to the end: linear time on any input.
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?+'
_STRUCTURE = re.compile(rb"(?P<string>" + _STRING + rb")(?P<key>\s*:)?|[\[{\]}]", re.DOTALL)
_TOKENS = re.compile(rb"(?P<string>" + _STRING + rb")(?P<key>\s*:)?|[\[{\]},]", re.DOTALL)
_BYTE = re.compile(r"\(byte (\d+)\)")
_DECODER_PATH = re.compile(r"`\$\.?([^`]*)`$")
_MISSING = re.compile(r"missing required field `([^`]+)`")


def check_structure(body: bytes) -> str | None:
    """What is wrong with the document's structure: nested too deep, or a key given twice; None if nothing.

    A document that is not JSON gets no verdict here.
    """
    keys: list[set[bytes]] = []
    for token in _STRUCTURE.finditer(body):
        first = body[token.start()]
        if first == 0x22:  # "
            if token["key"] is None or not keys:
                continue
            key = _spelled_out(token["string"])
            if key in keys[-1]:
                return f"The key {key.decode('utf-8', 'replace')} appears twice in one object."
            keys[-1].add(key)
        elif first in b"[{":
            if len(keys) == MAX_DEPTH:
                return f"The body is nested deeper than {MAX_DEPTH} levels."
            keys.append(set())
        elif keys:
            keys.pop()
    return None


def _spelled_out(key: bytes) -> bytes:
    """A key as it is written without escapes that it does not need."""
    if b"\\" not in key:
        return key
    try:
        return msgspec.json.encode(msgspec.json.decode(key, type=str))
    except msgspec.DecodeError:
        return key


def error_path(body: bytes, error: msgspec.DecodeError) -> str | None:
    """The field a decoding error is about, as in `messages[0].content`; None for the whole document."""
    text = str(error)
    if isinstance(error, msgspec.ValidationError):
        found, missing = _DECODER_PATH.search(text), _MISSING.search(text)
        steps = [match[1] for match in (found, missing) if match and match[1]]
        return ".".join(steps).removesuffix("[...]") or None
    at = _BYTE.search(text)
    position = int(at[1]) if at else _first_bad_string(body)
    return None if position is None else _path_at(body, position) or None


def _first_bad_string(body: bytes) -> int | None:
    """Offset of the first string that is not text (a lone surrogate, broken UTF-8)."""
    for token in _TOKENS.finditer(body):
        if token["string"] is not None:
            try:
                msgspec.json.decode(token["string"], type=str)
            except msgspec.DecodeError:
                return token.start()
    return None


def _path_at(body: bytes, position: int) -> str:
    """Path of the value around `position`."""
    path: list[str | int] = []
    for token in _TOKENS.finditer(body, 0, position):
        if token["key"] is not None:
            if path:
                path[-1] = token["string"][1:-1].decode("utf-8", "replace")
            continue
        match body[token.start()]:
            case 0x7B:  # {
                path.append("")
            case 0x5B:  # [
                path.append(0)
            case 0x5D | 0x7D if path:  # ] }
                path.pop()
            case 0x2C if path and isinstance(path[-1], int):  # ,
                path[-1] += 1
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).lstrip(".")
