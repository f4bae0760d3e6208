"""JSON pointers (RFC 6901): the keys and indices on the way to a part of a JSON text."""

from __future__ import annotations


def escape(key: str) -> str:
    """A key as a token of a pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def keys_of(pointer: str) -> list[str]:
    """The keys of a pointer, as they are in the text; nothing for that to all of it."""
    return [token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:]]
