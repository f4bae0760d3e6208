"""A part of a batch as a batch of its own."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace

import numpy as np

from engine.batch import NOTHING, Batch, Int64, Masks


def part(batch: Batch, start: int, stop: int) -> Batch:
    """Tokens [start, stop) of a batch whose ids and masks are known.

    Run one after another, parts that cover a batch compute what the batch does: a row reads only its own
    earlier tokens, and those of a row that is cut run before the rest of it. What they sample is `sampled`
    of the batch.
    """
    assert not len(batch.pending_at), "an id is unknown"
    num_samples = len(batch.samples)
    begins, ends = batch.query_starts[:-1], batch.query_starts[1:]
    rows = np.flatnonzero((begins < stop) & (ends > start))
    first, last = int(rows[0]), int(rows[-1]) + 1
    samples = _within(batch.logit_rows[:num_samples], start, stop)
    measured = _within(batch.logit_rows[num_samples:], start, stop)
    logit_rows = np.concatenate((batch.logit_rows[samples], batch.logit_rows[num_samples + measured]))
    return replace(
        batch,
        token_ids=batch.token_ids[start:stop],
        positions=batch.positions[start:stop],
        query_starts=(np.clip(batch.query_starts[first : last + 1], start, stop) - start).astype(np.int32),
        context_lens=(batch.positions[np.minimum(ends[first:last], stop) - 1] + 1).astype(np.int32),
        page_table=batch.page_table[first:last],
        kv_slots=batch.kv_slots[start:stop],
        logit_rows=logit_rows - start,
        samples=[batch.samples[index] for index in samples],
        sampled=_run_of(batch.sampled, samples),
        prompt_next=batch.prompt_next[measured],
        prompt_top=[batch.prompt_top[index] for index in measured],
        embed_rows=batch.embed_rows[_within(batch.embed_rows, start, stop)] - start,
        masks=_masks(batch, samples),
    )


def known_ids(batch: Batch) -> Int64:
    """[T] the batch's token ids, once the step before it has run."""
    token_ids = batch.token_ids.copy()
    token_ids[batch.pending_at] = batch.previous[batch.pending_from].clip(min=0)
    return token_ids


def with_ids(batch: Batch) -> Batch:
    """The batch with every id known, once the step before it has run."""
    return replace(batch, token_ids=known_ids(batch), pending_at=NOTHING, pending_from=NOTHING)


def _run_of(array: Int64, places: Int64) -> Int64:
    """The view of an array at `places`, which follow one another."""
    first = int(places[0]) if len(places) else 0
    return array[first : first + len(places)]


def _within(places: Int64, start: int, stop: int) -> Int64:
    """The indices of those `places` that lie in [start, stop)."""
    return np.flatnonzero((places >= start) & (places < stop))


def _masks(batch: Batch, samples: Int64) -> Future[Masks | None] | None:
    """The masks of the sampling rows `samples`; waits until those of the batch are filled."""
    if batch.masks is None:
        return None
    masks = batch.masks.result()
    future: Future[Masks | None] = Future()
    if masks is not None:
        kept = np.isin(masks.rows, samples)
        rows = np.searchsorted(samples, masks.rows[kept])
        masks = Masks(rows=rows, bits=[masks.bits[index] for index in np.flatnonzero(kept).tolist()])
    future.set_result(masks)
    return future
