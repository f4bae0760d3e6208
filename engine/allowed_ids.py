"""The ids that rows may sample, as bits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.batch import SampleRow

Words = npt.NDArray[np.uint32]


class AllowedIds:
    """Makes them once for a set that is sampled with in step after step, however many rows have it."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[frozenset[int], Words]] = {}
        """Of the last step, by the identity of the set; to compare sets takes as long as to make the bits."""

    def bits(self, rows: Sequence[SampleRow], vocab_size: int) -> dict[int, Words]:
        """By index of the row: `vocab_size` bits, rounded up to whole words; those of its ids are set. Rows
        that may sample everything have none."""
        kept: dict[int, tuple[frozenset[int], Words]] = {}
        found: dict[int, Words] = {}
        for index, row in enumerate(rows):
            ids = row.params.allowed_token_ids
            if ids:
                if id(ids) not in kept:
                    kept[id(ids)] = self._kept.get(id(ids)) or (ids, _bits_of(ids, vocab_size))
                found[index] = kept[id(ids)][1]
        self._kept = kept
        return found


def _bits_of(ids: frozenset[int], size: int) -> Words:
    bits = np.zeros(-(-size // 32) * 32, np.uint8)
    bits[list(ids)] = 1
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32, copy=False)
