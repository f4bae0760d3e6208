"""The small interface between the engine and whatever compiles grammars.

A `Grammar` is compiled once per constraint and shared; a `Matcher` is one sequence's position in it.
Masks are packed bits: row of ceil(width / 32) int32 words, bit t % 32 of word t // 32 set when token
t may come next.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

MaskRow = npt.NDArray[np.int32]


class GrammarError(ValueError):
    """A constraint that cannot be enforced exactly.

    Attributes:
        message: what is wrong, for the client.
        pointer: JSON pointer (RFC 6901) to the part of the schema, or structural tag, that is at fault;
            "" for all of it, and where there is neither.
        keyword: the last keyword on the way to that part; None where all of it is at fault. It may also be an
            option of JSON, such as whitespace_pattern.
    """

    def __init__(self, message: str, *, pointer: str = "", keyword: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.pointer = pointer
        self.keyword = keyword

    def __str__(self) -> str:
        keyword = self.keyword if self.keyword and not self.message.startswith(self.keyword) else ""
        return f"{keyword}{keyword and ': '}{self.message}{self.pointer and f' (at {self.pointer})'}"


class UnsatisfiableError(GrammarError):
    """A constraint that nothing satisfies."""


class GrammarTooComplexError(GrammarError):
    """A constraint that takes more time or memory than one may; another try may end otherwise."""


class Matcher(Protocol):
    """One sequence's place in a grammar. Not thread-safe; cheap to make and to fork."""

    @property
    def num_tokens(self) -> int:
        """Tokens accepted so far, the end-of-sequence token included."""
        ...

    def fill_mask(self, row: MaskRow) -> None:
        """Overwrite `row` with the tokens allowed next; bits beyond the vocabulary are 0."""
        ...

    def kept_mask(self) -> MaskRow | None:
        """What `fill_mask` would give, not to be changed, if it need not be worked out; else None."""
        ...

    def accept(self, token_id: int) -> bool:
        """Advance by one token; False, with the state unchanged, when it is not allowed."""
        ...

    def accept_within(self, token_id: int, budget: int) -> int | None:
        """Advance so that the text can still be whole after at most `budget` more tokens.

        That is by `token_id`, or else by the first token of `shortest_close`; where that is empty, by an
        end-of-sequence token. Where the text could be whole within `budget + 1` before, it can be within
        `budget` after; so output that starts with enough tokens for `Grammar.min_tokens` ends whole.

        Returns:
            The token taken; None, with the state unchanged, when `token_id` is not allowed.
        """
        ...

    def shortest_close(self) -> list[int] | None:
        """The fewest tokens known that make the text whole, without an end-of-sequence token.

        None where the grammar is of a kind that cannot tell.
        """
        ...

    def rollback(self, count: int) -> None:
        """Undo the last `count` accepted tokens."""
        ...

    def fork(self) -> Matcher:
        """An independent copy at the same place."""
        ...

    def forced_tokens(self) -> list[int]:
        """The tokens that must come next in the canonical tokenisation; empty when unsure."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether the text so far is a whole sentence of the grammar (end of sequence is legal)."""
        ...

    @property
    def is_exhausted(self) -> bool:
        """Whether the text is whole and nothing but its end may follow."""
        ...

    @property
    def is_terminated(self) -> bool:
        """Whether the end-of-sequence token was accepted."""
        ...


class Grammar(Protocol):
    """A compiled constraint, immutable and shared between sequences and threads."""

    @property
    def nbytes(self) -> int:
        """Memory it holds, estimated (bytes)."""
        ...

    @property
    def min_tokens(self) -> int | None:
        """The fewest tokens known of a whole sentence, its end not counted; None where that is not known."""
        ...

    def matcher(self) -> Matcher:
        """A matcher at the start of the grammar."""
        ...
