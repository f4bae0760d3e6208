"""One step as the scheduler plans it: whose tokens it runs."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from engine.pace import Allowance
from engine.request import Sequence
from engine.token_price import Chunk

OVERLAP = 1 / 5
"""Share of a step's time, about, that planning the next one and giving out tokens takes: lost where the next
one is not planned before this one is read."""


class Row(msgspec.Struct, frozen=True, eq=False):
    """Tokens [start, stop) of one sequence, and guesses up to `end`, run in one step.

    Made by the thousand a second.
    """

    sequence: Sequence
    start: int
    stop: int
    samples: bool
    """Whether these are the last tokens before the next one is sampled."""
    epoch: int
    """The sequence's preemption count when planned: tells whether the pages are still its own."""
    draft: tuple[int, ...] = ()
    """Guesses at the tokens after `stop`, run as well: see `engine.speculation`."""

    @property
    def end(self) -> int:
        """Where its tokens end, guesses included."""
        return self.stop + len(self.draft)

    @property
    def decodes(self) -> bool:
        """Whether somebody who has a part of an answer gets another token by it."""
        return self.stop - self.start == 1 and self.start >= self.sequence.num_prompt

    @property
    def embeds(self) -> bool:
        """Whether the hidden state of its last token is wanted."""
        return self.sequence.request.purpose == "embed" and self.sequence.completes(self.stop)


@dataclass(slots=True)
class Plan:
    """One step: its rows by sequence id, in batch order."""

    budget: int
    """Tokens and targets that still fit: below 0 where one token alone had more targets than that."""
    allowance: Allowance
    """What paced prompts may add."""
    rows: dict[int, Row] = field(default_factory=dict)

    @property
    def chunks(self) -> list[Chunk]:
        """What it runs beside decoding."""
        return [Chunk(row.stop - row.start, row.start) for row in self.rows.values() if not row.decodes]

    @property
    def decodes(self) -> bool:
        return any(row.decodes for row in self.rows.values())

    @property
    def decodes_freely(self) -> bool:
        """Whether it decodes for somebody who is under no grammar."""
        return any(row.decodes and row.sequence.matcher is None for row in self.rows.values())

    def reading(self) -> list[Row]:
        """The rows that run tokens of prompts."""
        return [row for row in self.rows.values() if row.start < row.sequence.num_prompt]

    @property
    def has_drafts(self) -> bool:
        """Whether it runs any guessed token."""
        return any(row.draft for row in self.rows.values())
