"""What answers hold that their clients have not read, bounded for all of them together.

By itself, each is bounded by its tokens and their log-probabilities, and whoever stops reading is dropped
after the write timeout. But a thousand clients may read slowly. So the server looks once a second at what is
kept for them: updates that nobody has taken, bodies that are being sent, and what the connections hold.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial

from app.connection import Connection
from app.stream_store import StreamStore

_log = logging.getLogger("radish.app")

MOST_UNREAD = 512 << 20
"""Bytes."""


def bound_unread(connections: Iterable[Connection], streams: StreamStore, most: int) -> None:
    """End the answers of which most is unread until the others hold at most `most` bytes."""
    held: list[tuple[int, Callable[[], None]]] = [
        *((connection.unread, partial(_drop, connection)) for connection in connections),
        *((size, partial(streams.forget, stream)) for size, stream in streams.unread()),
    ]
    total = sum(size for size, _ in held)
    if total <= most:
        return
    _log.warning("unread answers take %d MiB: the largest are ended", total >> 20)
    for size, end in sorted(held, key=lambda item: item[0], reverse=True):
        end()
        total -= size
        if total <= most:
            return


def _drop(connection: Connection) -> None:
    connection.drop("had more of its answer unread than others")
