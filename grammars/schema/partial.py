"""The inside of a JSON string while it is being written: what is certain of it, and how it can go on."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator

_HEX = rb"[0-9a-fA-F]"
_PAIR = rb"u[dD][89abAB]" + _HEX + rb"{2}\\u[dD][c-fC-F]" + _HEX + rb"{2}"
_BODY = re.compile(
    rb'(?:[^"\\]|\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])' + _HEX + rb"{4}|" + _PAIR + rb"))*", re.DOTALL
)
_HIGH = re.compile(rb"\\u[dD][89abAB]" + _HEX + rb"{2}")
_HALF = re.compile(rb"\\u[dD][c-fC-F]|" + _HIGH.pattern + rb"(?:[^\\]|\\(?:[^u]|u(?:[^dD]|[dD][^c-fC-F])))")
_SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
_ESCAPES = {**{chr(c): f"\\u{c:04x}" for c in range(0x20)}, **_SHORT}


def read(raw: bytes) -> tuple[str, bytes, bool]:
    """Split bytes that follow an opening quote, or follow what was read before.

    Returns:
        The characters that are complete; the bytes of one that is not, escapes included; and, in their
        place, whether the closing quote comes next.

    Raises:
        ValueError: not UTF-8, nor the beginning of it.
    """
    match = _BODY.match(raw)
    assert match is not None
    end = _whole(raw, match.end())
    body = raw[:end]
    text = json.loads(b'"' + body + b'"', strict=False) if b"\\" in body else body.decode()
    rest = raw[end:]
    codecs.utf_8_decode(rest, "strict", False)  # raises where no character begins so
    if (rest[:1] == b"\xed" and rest[1:2] >= b"\xa0") or _HALF.match(rest):
        raise ValueError("half of a surrogate pair")
    if rest[:1] == b"\\" and not rest.isascii():
        raise ValueError("not an escape")
    return text, rest, rest[:1] == b'"'


def _whole(raw: bytes, end: int) -> int:
    """`end`, or the start of the last character if that is not complete (UTF-8)."""
    for back in range(1, min(4, end + 1)):
        byte = raw[end - back]
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return end if length <= back else end - back
        if byte < 0x80:
            break
    return end


def write(text: str) -> str:
    """The inside of a JSON string, with only the escapes that are needed."""
    return "".join(_ESCAPES.get(char, char) for char in text)


def endings(rest: bytes) -> Iterator[tuple[int, int, bytes]]:
    """How a character that is not complete can be: ranges of code points.

    Args:
        rest: its bytes so far, as `read` gives them.

    Yields:
        First and last code point; for a range of one the bytes that are missing, else b"".
    """
    if rest[:1] == b"\\":
        written = rest.decode().lower()
        for char, escape in _ESCAPES.items():
            if escape.startswith(written):
                yield ord(char), ord(char), escape[len(written) :].encode()
        return
    low, high = _utf8_range(rest)
    yield low, high, b""


def _utf8_range(rest: bytes) -> tuple[int, int]:
    length = 2 if rest[0] < 0xE0 else 3 if rest[0] < 0xF0 else 4
    low = high = rest[0] & (0x7F >> length)
    for index in range(1, length):
        known = rest[index] & 0x3F if index < len(rest) else None
        low = low << 6 | (0 if known is None else known)
        high = high << 6 | (0x3F if known is None else known)
    least = (0x80, 0x800, 0x10000)[length - 2]
    return max(low, least), min(high, 0x10FFFF)


def missing(rest: bytes, code_point: int) -> bytes:
    """The bytes that complete `rest` to a character beyond ASCII."""
    return chr(code_point).encode()[len(rest) :]


def any_ending(rest: bytes) -> bytes:
    """Bytes that complete `rest` to some character, where every spelling of every character is allowed."""
    if rest[:1] != b"\\":
        low, high = _utf8_range(rest)
        # The surrogates are a gap in the middle of one range.
        return missing(rest, low if not 0xD800 <= low < 0xE000 else high)
    if len(rest) == 1:
        return b"\\"
    first = rest[:6].ljust(6, b"0")
    if _HIGH.fullmatch(first):
        first += rest[6:] + b"\\udc00"[len(rest[6:]) :]
    return first[len(rest) :]
