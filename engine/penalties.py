"""Repetition, presence and frequency penalties, and the token counts they need."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.batch import SampleRow
from engine.params import SamplingParams


class Penalties:
    """Token counts of the sequences that are sampled with penalties, by `SampleRow.key`.

    Lives in the thread that samples. A sequence's counts cover all tokens before the one to be
    sampled; the last of them may be known only here, because the step that sampled it has not been
    read back yet.
    """

    def __init__(self) -> None:
        self._histories: dict[int, _History] = {}

    def apply(self, logits: Tensor, row: SampleRow) -> None:
        """Change the row's `logits` ([V] float32) in place.

        In the order of vLLM: repetition first (dividing positive logits, multiplying negative ones),
        then `frequency * count + presence` is subtracted, over the output alone.
        """
        ids, counts = (torch.from_numpy(array).to(logits.device) for array in self.occurrences(row))
        logits[ids] = _penalised(logits[ids], counts, row.params)

    def occurrences(self, row: SampleRow) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """The distinct tokens to be penalised before the row's next one, and their counts in the output."""
        history = self._histories.get(row.key)
        if history is None or not history.agrees(row):
            history = self._histories[row.key] = _History(row)
        history.catch_up(row)
        return history.arrays()

    def record(self, row: SampleRow, token_id: int) -> None:
        """Note what was sampled for a row whose `occurrences` were taken (-1 too: its sequence is over)."""
        self._histories[row.key].sampled = (row.position, token_id)

    def release(self, keys: Iterable[int]) -> None:
        """Forget sequences that will not sample again."""
        for key in keys:
            self._histories.pop(key, None)


def _penalised(logits: Tensor, counts: Tensor, params: SamplingParams) -> Tensor:
    """Penalise the logits of distinct tokens that occurred; their counts are of the output."""
    repetition = params.repetition_penalty
    if repetition != 1.0:
        logits = torch.where(logits > 0, logits / repetition, logits * repetition)
    return logits - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)


class _History:
    """Which tokens occurred in one sequence, and how often in its output."""

    def __init__(self, row: SampleRow) -> None:
        self.sampled: tuple[int, int] | None = None
        """Position and id of the token sampled last; its id counts until the sequence's own is known."""
        self._counted = 0
        """Tokens before this position are counted."""
        self._unconfirmed: tuple[int, int] | None = None
        """Position and id of a token that was counted before the sequence knew it."""
        self._places: dict[int, int] = {}
        self._ids: npt.NDArray[np.int64] = np.empty(64, np.int64)
        self._counts: npt.NDArray[np.float32] = np.zeros(64, np.float32)
        if row.params.repetition_penalty != 1.0:
            for token_id in set(row.tokens[: row.num_prompt]):
                self._add(token_id, 0)
        self._counted = row.num_prompt

    def agrees(self, row: SampleRow) -> bool:
        """Whether the counts are of the row's tokens (a sequence may be cut back, or go on otherwise)."""
        if row.position < self._counted:
            return False
        if self._unconfirmed is None:
            return True
        position, token_id = self._unconfirmed
        return position >= row.num_known or row.tokens[position] == token_id

    def catch_up(self, row: SampleRow) -> None:
        """Count the tokens before `row.position` that are not counted yet."""
        for token_id in row.tokens[self._counted : min(row.num_known, row.position)]:
            self._add(token_id, 1)
        self._counted = max(self._counted, min(row.num_known, row.position))
        if self._counted == row.position:
            return
        if self.sampled is None or self.sampled[0] != self._counted or self._counted + 1 != row.position:
            raise RuntimeError(f"row {row.key}: the token before position {row.position} is not known")
        self._add(self.sampled[1], 1)
        self._unconfirmed = self.sampled
        self._counted = row.position

    def arrays(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """The distinct tokens that occurred, and their counts in the output."""
        size = len(self._places)
        return self._ids[:size], self._counts[:size]

    def _add(self, token_id: int, times: int) -> None:
        place = self._places.setdefault(token_id, len(self._places))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[place] = token_id
        self._counts[place] += times
