"""Filling the grammar masks of a step, on a thread beside the loop and the forward pass."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

from engine.batch import Int32
from engine.plan import Row
from grammars.base import GrammarError, Matcher

_log = logging.getLogger("radish.engine")


@dataclass(frozen=True, slots=True)
class FilledMasks:
    """`bits[i]` for the i-th constrained row; all 0 where its matcher failed, as `errors[i]` tells."""

    bits: Seq[Int32]
    errors: dict[int, str]


def kept_masks(rows: Seq[Row]) -> FilledMasks | None:
    """What `fill_masks` would give, if all masks are there already; they are not to be changed."""
    kept: list[Int32] = []
    for row in rows:
        matcher = _matcher_at(row)
        mask = matcher.kept_mask()
        if mask is None:
            return None
        kept.append(mask)
    return FilledMasks(kept, {})


def fill_masks(rows: Seq[Row], words: int) -> FilledMasks:
    """One mask of `words` int32 for each row; every row has a matcher.

    A mask belongs to the token at `row.stop`: all tokens before it were accepted.
    """
    bits = np.zeros((len(rows), words), np.int32)
    errors: dict[int, str] = {}
    for index, row in enumerate(rows):
        matcher = _matcher_at(row)
        try:
            matcher.fill_mask(bits[index])
        except GrammarError as error:
            errors[index] = error.message
        except Exception:  # noqa: BLE001  a grammar engine's own; it ends its sequence only
            _log.exception("a mask of request %s failed", row.sequence.request.id)
            errors[index] = "the grammar failed"
    return FilledMasks(list(bits), errors)


def _matcher_at(row: Row) -> Matcher:
    """The matcher of a row that has one, where the row ends."""
    matcher = row.sequence.matcher
    assert matcher is not None
    assert matcher.num_tokens == row.stop - row.sequence.num_prompt, "mask of another step"
    return matcher
