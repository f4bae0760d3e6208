"""Filled mask rows by what they are of, least recently used out first."""

from __future__ import annotations

import threading
from collections import OrderedDict

from grammars.base import MaskRow


class RowCache:
    """Masks under keys that are compared by identity, bounded by their bytes. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._rows: OrderedDict[object, MaskRow] = OrderedDict()
        self.nbytes = 0
        """Bytes of the rows held."""

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def allows(self, key: object, token_id: int) -> bool | None:
        """What the mask under `key` says of a token; None if there is none."""
        row = self._rows.get(key)
        return None if row is None else bool(row[token_id >> 5] >> (token_id & 31) & 1)

    def copy_to(self, row: MaskRow, key: object) -> bool:
        """Overwrite `row` with the mask under `key`; False, with `row` unchanged, if there is none."""
        with self._lock:
            known = self._rows.get(key)
            if known is None:
                return False
            self._rows.move_to_end(key)
        row[:] = known
        return True

    def put(self, key: object, row: MaskRow) -> None:
        """Keep a copy of a mask, and drop others if it is one too many."""
        copy = row.copy()
        with self._lock:
            old = self._rows.pop(key, None)
            self.nbytes += copy.nbytes - (0 if old is None else old.nbytes)
            self._rows[key] = copy
            while self.nbytes > self._max_bytes:
                _, dropped = self._rows.popitem(last=False)
                self.nbytes -= dropped.nbytes
