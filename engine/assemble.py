"""A plan turned into the flat arrays of a `Batch`."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future

import numpy as np

from engine.batch import Batch, Int32, Masks, SampleRow
from engine.request import Sequence
from engine.scheduler import Plan, Row


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
    counts = np.array([row.stop - row.start for row in rows], np.int64)
    query_starts = np.concatenate(([0], np.cumsum(counts)))
    page_table = _page_table([row.sequence for row in rows])
    row_of_token = np.repeat(np.arange(len(rows)), counts)
    starts = np.array([row.start for row in rows], np.int64)
    positions = np.arange(query_starts[-1]) - query_starts[row_of_token] + starts[row_of_token]
    pages = page_table[row_of_token, positions // page_size].astype(np.int64)
    token_ids = np.fromiter(
        (token for row in rows for token in _known_ids(row)), np.int64, count=int(query_starts[-1])
    )
    pending = [
        (int(last) - 1, previous[row.sequence.id])
        for row, last in zip(rows, query_starts[1:], strict=True)
        if row.stop > row.sequence.known
    ]
    sampling = [(int(last) - 1, row) for row, last in zip(rows, query_starts[1:], strict=True) if row.samples]
    wanted = [
        (int(first) + targets.positions[target] - row.start, targets.token_ids[target], targets.top)
        for row, first in zip(rows, query_starts[:-1], strict=True)
        if (targets := row.sequence.request.targets) is not None
        for target in row.sequence.unmeasured(row.start, row.stop)
    ]
    embedded = [int(last) - 1 for row, last in zip(rows, query_starts[1:], strict=True) if row.embeds]
    samples = [_sample_row(row, eos_ids) for _, row in sampling]
    return Batch(
        token_ids=token_ids,
        pending_at=np.array([at for at, _ in pending], np.int64),
        pending_from=np.array([index for _, index in pending], np.int64),
        positions=positions,
        query_starts=query_starts.astype(np.int32),
        context_lens=np.array([row.stop for row in rows], np.int32),
        page_table=page_table,
        kv_slots=pages * page_size + positions % page_size,
        logit_rows=np.array([at for at, *_ in (*sampling, *wanted)], np.int64),
        samples=samples,
        prompt_next=np.array([token_id for _, token_id, _ in wanted], np.int64),
        prompt_top=[top for *_, top in wanted],
        embed_rows=np.array(embedded, np.int64),
        masks=Future[Masks | None]() if any(row.has_grammar for row in samples) else None,
        released=released,
    )


def _known_ids(row: Row) -> list[int]:
    """The row's token ids, 0 for a pending one (only the last can be)."""
    ids = row.sequence.tokens[row.start : row.stop]
    return ids if len(ids) == row.stop - row.start else [*ids, 0]


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
