"""Whether a language can be followed text by text, or what may come next grows beyond all use."""

from __future__ import annotations

from grammars.regular.ast import Regex
from grammars.regular.derivative import MOST_TIMES, TooManyStatesError, classes, derive

_MOST_NODES = 6000
"""Of what may follow some text, where the whole language has fewer: a character takes a few milliseconds."""
_STEPS = 200
_WORK = 250_000
"""Nodes looked at."""


def grows(regex: Regex) -> bool:
    """Whether what may follow a text gets too large, as in repetitions that are counted inside of others.

    Only one text is tried, each character of which is the worst. Others may be worse, for which
    `derive` has a limit.
    """
    most = max(_MOST_NODES, MOST_TIMES * regex.size)
    seen: set[Regex] = set()
    work = 0
    while regex not in seen and len(seen) < _STEPS and work < _WORK:
        seen.add(regex)
        try:
            nexts = [derive(regex, ranges[0][0]) for ranges in classes(regex)]
        except TooManyStatesError:
            return True
        work += regex.size
        # Of several as large, one that was not met leads further.
        regex = max(nexts, key=lambda after: (after.size, after not in seen))
        if regex.size > most:
            return True
    return False
