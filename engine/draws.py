"""How rows of logits are to be chosen from, as the native sampler wants it."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from engine.batch import SampleRow
from engine.drawing import uniform
from engine.params import GREEDY_BELOW
from kernels.cpu.abi import Draw


class Draws:
    """Draws from rows of a step, and the arrays that they point to."""

    def __init__(self, vocab_size: int) -> None:
        self.draws: list[Draw] = []
        self._vocab_size = vocab_size
        self._kept: list[object] = []

    def add(self, place: int, row: SampleRow) -> Draw:
        """A draw for row `place` of the logits; all that a plain row wants of it is there."""
        draw, params = Draw(row=place), row.params
        if params.temperature >= GREEDY_BELOW:
            draw.temperature, draw.top_p, draw.min_p = params.temperature, params.top_p, params.min_p
            draw.top_k = min(params.top_k, self._vocab_size)
            draw.noise = uniform(row.seed, row.position)
        if row.forbidden:
            self.rule_out(draw, row.forbidden)
        self.draws.append(draw)
        return draw

    def rule_out(self, draw: Draw, token_ids: Collection[int]) -> None:
        """Tell the tokens that are not chosen, all of them."""
        impossible = array("q", token_ids)
        self._kept.append(impossible)
        draw.impossible, draw.num_impossible = impossible.buffer_info()

    def keep(self, array_: npt.NDArray[np.generic]) -> int:
        """The address of an array."""
        self._kept.append(array_)
        return array_.ctypes.data

    def array(self) -> ctypes.Array[Draw]:
        """All of them. What they point to lives as long as this object."""
        return (Draw * len(self.draws))(*self.draws)
