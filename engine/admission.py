"""How much room to keep for outputs that are still to come.

Admitting a sequence as soon as its prompt fits lets the pool run full later, and preemptions waste
work; keeping room for every token that might still come leaves the pool half empty, since most
outputs end early. So a fraction of the remaining output is kept, which decays while all goes well and
rises after a preemption (the new-token ratio of SGLang, arXiv:2312.07104, works the same way).
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.request import Sequence

_HIGHEST = 1.0
_LOWEST = 0.1
_AFTER_PREEMPTION = 2.0
_DECAY_PER_STEP = 0.998
_LONGEST_OUTPUT = 4096
"""Tokens: limits of a whole context are common and say nothing about the output's length."""


class OutputReserve:
    """The decaying fraction, and the pages it amounts to."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._fraction = 0.5

    def pages(self, sequences: Iterable[Sequence]) -> int:
        """Pages to keep free for the remaining outputs of `sequences`."""
        tokens = sum(min(sequence.remaining, _LONGEST_OUTPUT) for sequence in sequences)
        return int(tokens * self._fraction) // self._page_size

    def decay(self) -> None:
        """A step passed."""
        self._fraction = max(_LOWEST, self._fraction * _DECAY_PER_STEP)

    def raise_after_preemption(self) -> None:
        """The fraction was too low."""
        self._fraction = min(_HIGHEST, self._fraction * _AFTER_PREEMPTION)
