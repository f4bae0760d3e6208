"""The inside of a JSON string while it is being written."""

from __future__ import annotations

import pytest

from grammars.schema.partial import any_ending, read

CHARACTERS = [chr(c) for c in range(0x80, 0x110000, 0x40) if not 0xD800 <= c < 0xE000]


def test_bytes_that_begin_no_character_are_refused() -> None:
    """And all others can be completed."""
    possible = {char.encode()[:size] for char in CHARACTERS for size in (1, 2)}
    possible -= {char.encode() for char in CHARACTERS}
    leads = [bytes([lead]) for lead in range(0x80, 0x100)]
    for begun in [*leads, *(lead + bytes([byte]) for lead in leads for byte in range(0x80, 0xC0))]:
        try:
            text, rest, _ = read(b"a" + begun)
        except ValueError:
            assert begun not in possible
            continue
        if rest:
            assert (text, rest) == ("a", begun)
            assert begun in possible
            (begun + any_ending(begun)).decode()
        else:
            assert text == "a" + begun.decode()


@pytest.mark.parametrize(
    "raw", [b"\\udc00", b"a\\uDFff", b"\\ude", b'\\udc00"', b"\\ud800\\ud800\\udc00\\udc00"]
)
def test_half_of_a_surrogate_pair_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match="surrogate"):
        read(raw)


def test_an_escape_that_is_none_is_refused_even_with_half_a_character() -> None:
    with pytest.raises(ValueError, match="not an escape"):
        read(b"\\u000\xe5\x89")
