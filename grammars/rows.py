"""Filled mask rows by what they are of: of those that came first, what was not used since goes first."""

from __future__ import annotations

import threading
from collections import OrderedDict

from grammars.base import MaskRow


class RowCache:
    """Masks under keys that are compared by identity, bounded by their bytes. Thread-safe.

    A row that is used is only marked, as every sequence asks for one in every step. It gets a second chance
    where it would be dropped (F. J. Corbató, A paging experiment with the Multics system, 1968).
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._rows: OrderedDict[object, _Kept] = OrderedDict()
        self.nbytes = 0
        """Bytes of the rows held."""

    def allows(self, key: object, token_id: int) -> bool | None:
        """What the mask under `key` says of a token; None if there is none."""
        kept = self._rows.get(key)
        return None if kept is None else bool(kept.row[token_id >> 5] >> (token_id & 31) & 1)

    def get(self, key: object) -> MaskRow | None:
        """The mask under `key`, not to be changed; None if there is none."""
        kept = self._rows.get(key)
        if kept is None:
            return None
        kept.is_used = True
        return kept.row

    def put(self, key: object, row: MaskRow) -> None:
        """Keep a copy of a mask, and drop others if it is one too many."""
        copy = row.copy()
        copy.flags.writeable = False
        with self._lock:
            old = self._rows.pop(key, None)
            self.nbytes += copy.nbytes - (0 if old is None else old.row.nbytes)
            self._rows[key] = _Kept(copy)
            while self.nbytes > self._max_bytes:
                first, kept = self._rows.popitem(last=False)
                if kept.is_used:
                    kept.is_used = False
                    self._rows[first] = kept
                else:
                    self.nbytes -= kept.row.nbytes


class _Kept:
    """A row, and whether it was used since it was last at the end of the queue."""

    __slots__ = ("is_used", "row")

    def __init__(self, row: MaskRow) -> None:
        self.row = row
        self.is_used = False
