"""A plan turned into the flat arrays of a `Batch`."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from engine.batch import Batch, Int32, Int64, Masks, SampleRow
from engine.plan import Plan, Row
from engine.request import Sequence


def assemble(
    plan: Plan,
    *,
    page_size: int,
    eos_ids: frozenset[int],
    previous: Mapping[int, int],
    previous_ids: Int64,
    released: list[int],
) -> Batch:
    """Build the batch of `plan`.

    Args:
        page_size: tokens of a page.
        eos_ids: ids that are impossible before a sequence's `min_tokens`.
        previous: sequence id to its index among the ids sampled by the step before this one, for
            the sequences whose last token is not read back yet.
        previous_ids: where that step leaves these ids.
        released: keys of sequences that will never sample again.
    """
    rows = list(plan.rows.values())
    found = _gather(rows, page_size, eos_ids, previous)
    return Batch(
        token_ids=_int64(found.token_ids),
        pending_at=_int64([at for at, _ in found.pending]),
        pending_from=_int64([index for _, index in found.pending]),
        positions=_int64(found.positions),
        query_starts=_int32(found.starts),
        context_lens=_int32([row.end for row in rows]),
        page_table=_page_table([row.sequence for row in rows]),
        kv_slots=_int64(found.slots),
        logit_rows=_int64([*found.sampled_at, *(at for at, *_ in found.measured)]),
        samples=found.samples,
        sampled=np.empty(len(found.samples), np.int64),
        previous=previous_ids,
        prompt_next=_int64([token_id for _, token_id, _ in found.measured]),
        prompt_top=[top for *_, top in found.measured],
        embed_rows=_int64(found.embedded),
        masks=Future[Masks | None]() if any(row.has_grammar for row in found.samples) else None,
        released=released,
    )


@dataclass(slots=True)
class _Gathered:
    """What one pass over the rows finds. Places are indices of `token_ids`."""

    token_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    """Of the KV of each token."""
    starts: list[int] = field(default_factory=list)
    """Where each row begins, and the end of the last."""
    pending: list[tuple[int, int]] = field(default_factory=list)
    """Places of ids that the step before has yet to sample, and their indices there."""
    samples: list[SampleRow] = field(default_factory=list)
    sampled_at: list[int] = field(default_factory=list)
    measured: list[tuple[int, int, int]] = field(default_factory=list)
    """Places, the ids that are measured there, and how many of the likeliest are wanted."""
    embedded: list[int] = field(default_factory=list)


def _gather(
    rows: list[Row], page_size: int, eos_ids: frozenset[int], previous: Mapping[int, int]
) -> _Gathered:
    found = _Gathered()
    token_ids = found.token_ids
    for row in rows:
        sequence, first = row.sequence, len(token_ids)
        found.starts.append(first)
        token_ids += sequence.tokens[row.start : row.stop]
        if row.stop > sequence.known:  # only the last is not known
            found.pending.append((len(token_ids), previous[sequence.id]))
            token_ids.append(0)
        token_ids += row.draft
        if row.end - row.start == 1:
            page, offset = divmod(row.start, page_size)
            found.positions.append(row.start)
            found.slots.append(sequence.pages[page] * page_size + offset)
        else:
            found.positions += range(row.start, row.end)
            found.slots += _slots(row, page_size)
        if row.samples:
            for guesses in range(len(row.draft) + 1):
                found.sampled_at.append(len(token_ids) - 1 - len(row.draft) + guesses)
                found.samples.append(_sample_row(row, guesses, eos_ids))
        if (targets := sequence.request.targets) is not None:
            found.measured += [
                (first + targets.positions[target] - row.start, targets.token_ids[target], targets.top)
                for target in sequence.unmeasured(row.start, row.stop)
            ]
        if row.embeds:
            found.embedded.append(len(token_ids) - 1)
    found.starts.append(len(token_ids))
    return found


def _slots(row: Row, page_size: int) -> list[int]:
    """[end - start] where the KV of a row's tokens goes."""
    positions = np.arange(row.start, row.end)
    pages = np.frombuffer(row.sequence.pages, np.int32)[positions // page_size].astype(np.int64)
    slots: list[int] = (pages * page_size + positions % page_size).tolist()
    return slots


def _int64(values: list[int]) -> Int64:
    """As `np.array`, in half of the time."""
    return np.frombuffer(array("q", values), np.int64)


def _int32(values: list[int]) -> Int32:
    return np.frombuffer(array("i", values), np.int32)


def _page_table(sequences: list[Sequence]) -> Int32:
    """[rows, widest] page ids, padded with 0."""
    tables = [sequence.pages.tobytes() for sequence in sequences]
    widest = max(map(len, tables))
    joined = bytearray().join([table.ljust(widest, b"\0") for table in tables])
    return np.frombuffer(joined, np.int32).reshape(len(tables), -1)


def _sample_row(row: Row, guesses: int, eos_ids: frozenset[int]) -> SampleRow:
    """What is sampled after so many of its guesses."""
    sequence, params = row.sequence, row.sequence.params
    position = row.stop + guesses
    # A grammar knows best when its sentence may end, so `min_tokens` gives way to it.
    too_early = sequence.matcher is None and position - sequence.num_prompt < params.min_tokens
    return SampleRow(
        key=sequence.id,
        params=params,
        seed=params.seed + sequence.index,
        position=position,
        tokens=sequence.tokens,
        num_prompt=sequence.num_prompt,
        num_known=sequence.known,
        has_grammar=sequence.matcher is not None,
        forbidden=eos_ids | params.stop_token_ids if too_early else frozenset(),
    )
