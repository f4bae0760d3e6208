"""A plan turned into the flat arrays of a `Batch`."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from engine.batch import Batch, Int32, Masks, SampleRow
from engine.plan import Plan, Row
from engine.request import Sequence


def assemble(
    plan: Plan,
    *,
    page_size: int,
    eos_ids: frozenset[int],
    previous: Mapping[int, int],
    released: list[int],
) -> Batch:
    """Build the batch of `plan`.

    Args:
        page_size: tokens of a page.
        eos_ids: ids that are impossible before a sequence's `min_tokens`.
        previous: sequence id to its index among the ids sampled by the step before this one, for
            the sequences whose last token is not read back yet.
        released: keys of sequences that will never sample again.
    """
    rows = list(plan.rows.values())
    found = _gather(rows, eos_ids, previous)
    page_table = _page_table([row.sequence for row in rows])
    query_starts = np.array(found.starts, np.int32)
    context_lens = np.array([row.stop for row in rows], np.int32)
    row_of_token = np.repeat(np.arange(len(rows)), query_starts[1:] - query_starts[:-1])
    # A row's tokens are consecutive, and the last one is the last that it sees.
    positions = np.arange(len(found.token_ids)) + (context_lens - query_starts[1:])[row_of_token]
    pages = page_table[row_of_token, positions // page_size].astype(np.int64)
    return Batch(
        token_ids=np.array(found.token_ids, np.int64),
        pending_at=np.array([at for at, _ in found.pending], np.int64),
        pending_from=np.array([index for _, index in found.pending], np.int64),
        positions=positions,
        query_starts=query_starts,
        context_lens=context_lens,
        page_table=page_table,
        kv_slots=pages * page_size + positions % page_size,
        logit_rows=np.array([*found.sampled_at, *(at for at, *_ in found.measured)], np.int64),
        samples=found.samples,
        prompt_next=np.array([token_id for _, token_id, _ in found.measured], np.int64),
        prompt_top=[top for *_, top in found.measured],
        embed_rows=np.array(found.embedded, np.int64),
        masks=Future[Masks | None]() if any(row.has_grammar for row in found.samples) else None,
        released=released,
    )


@dataclass(slots=True)
class _Gathered:
    """What one pass over the rows finds. Places are indices of `token_ids`."""

    token_ids: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    """Where each row begins, and the end of the last."""
    pending: list[tuple[int, int]] = field(default_factory=list)
    """Places of ids that are still on the device, and their indices there."""
    samples: list[SampleRow] = field(default_factory=list)
    sampled_at: list[int] = field(default_factory=list)
    measured: list[tuple[int, int, int]] = field(default_factory=list)
    """Places, the ids that are measured there, and how many of the likeliest are wanted."""
    embedded: list[int] = field(default_factory=list)


def _gather(rows: list[Row], eos_ids: frozenset[int], previous: Mapping[int, int]) -> _Gathered:
    found = _Gathered()
    token_ids = found.token_ids
    for row in rows:
        sequence, first = row.sequence, len(token_ids)
        found.starts.append(first)
        token_ids += sequence.tokens[row.start : row.stop]
        if row.stop > sequence.known:  # only the last can be on the device
            found.pending.append((len(token_ids), previous[sequence.id]))
            token_ids.append(0)
        if row.samples:
            found.sampled_at.append(len(token_ids) - 1)
            found.samples.append(_sample_row(row, eos_ids))
        if (targets := sequence.request.targets) is not None:
            found.measured += [
                (first + targets.positions[target] - row.start, targets.token_ids[target], targets.top)
                for target in sequence.unmeasured(row.start, row.stop)
            ]
        if row.embeds:
            found.embedded.append(len(token_ids) - 1)
    found.starts.append(len(token_ids))
    return found


def _page_table(sequences: list[Sequence]) -> Int32:
    """[rows, widest] page ids, padded with 0."""
    table = np.zeros((len(sequences), max(len(sequence.pages) for sequence in sequences)), np.int32)
    for row, sequence in enumerate(sequences):
        table[row, : len(sequence.pages)] = sequence.pages
    return table


def _sample_row(row: Row, eos_ids: frozenset[int]) -> SampleRow:
    sequence, params = row.sequence, row.sequence.params
    # A grammar knows best when its sentence may end, so `min_tokens` gives way to it.
    too_early = sequence.matcher is None and row.stop - sequence.num_prompt < params.min_tokens
    return SampleRow(
        key=sequence.id,
        params=params,
        seed=params.seed + sequence.index,
        position=row.stop,
        tokens=sequence.tokens,
        num_prompt=sequence.num_prompt,
        num_known=sequence.known,
        has_grammar=sequence.matcher is not None,
        forbidden=eos_ids | params.stop_token_ids if too_early else frozenset(),
    )
