"""Tokens that a request rules out by itself: all but `allowed_token_ids`, and what would complete one of
its `bad_words`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from engine.allowed_ids import AllowedIds, Words
from engine.batch import SampleRow
from kernels.transfer import to_device


class Restrictions:
    """Applies both to the rows that have them. Lives in the thread that samples."""

    def __init__(self) -> None:
        self._allowed = AllowedIds()
        self._sampled: dict[int, dict[int, int]] = {}
        """By key: ids by position, of the token sampled last, which the sequence may not know yet, and of the
        one before it: if a step fails once they are sampled, they are sampled again."""

    def apply(self, logits: Tensor, rows: Sequence[SampleRow]) -> None:
        """Set (in place) the logits [S, V] of what is ruled out to minus infinity."""
        vocab_size = logits.shape[1]
        for index, bits in self.allowed(rows, vocab_size).items():
            barred = np.unpackbits(bits.view(np.uint8), count=vocab_size, bitorder="little") == 0
            logits[index].masked_fill_(to_device(barred, logits.device), -torch.inf)
        for index, row in enumerate(rows):
            if completing := self.completing(row):
                logits[index, to_device(np.array(completing), logits.device)] = -torch.inf

    def allowed(self, rows: Sequence[SampleRow], vocab_size: int) -> dict[int, Words]:
        """As `AllowedIds.bits`, of the rows of a step."""
        return self._allowed.bits(rows, vocab_size)

    def record(self, row: SampleRow, token_id: int) -> None:
        """Note what was sampled for a row."""
        if row.params.bad_words:
            before = row.position - 1
            sampled = self._sampled.get(row.key, {})
            kept = {before: sampled[before]} if before in sampled else {}
            self._sampled[row.key] = kept | {row.position: token_id}

    def release(self, keys: Iterable[int]) -> None:
        """Forget sequences that will not sample again."""
        for key in keys:
            self._sampled.pop(key, None)

    def completing(self, row: SampleRow) -> list[int]:
        """The last ids of the row's bad words whose other ids its output ends with."""
        words = row.params.bad_words
        if not words:
            return []
        last = self._tail(row, 1)
        # Most words are told apart by one token; only the others are worth comparing whole.
        begun = [word for word in words if word[-2:-1] in ((), last)]
        tail = self._tail(row, max(map(len, begun), default=1) - 1)
        return [word[-1] for word in begun if len(word) == 1 or tail[1 - len(word) :] == word[:-1]]

    def _tail(self, row: SampleRow, length: int) -> tuple[int, ...]:
        """The last tokens of the output, at most `length`, before the one to be sampled."""
        known = min(row.num_known, row.position)
        tail = tuple(row.tokens[max(row.num_prompt, row.position - length) : known]) if length else ()
        if known == row.position or not length:
            return tail
        sampled = self._sampled.get(row.key, {})
        if known not in sampled or known + 1 != row.position:
            raise RuntimeError(f"row {row.key}: the token before position {row.position} is not known")
        return (*tail, sampled[known])
