"""A step that fails is run again in halves: what fails alone ends, all else is as if nothing had failed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.batch import Batch, Masks, SampleRow, StepOutput
from engine.batch_part import part
from engine.isolation import IsolatingRunner, _joined
from engine.params import SamplingParams
from engine.runner import ModelRunner
from engine.sampler import Sampler
from engine.stream import TokenLogprob
from grammars.spec import Constraint
from tests.engine.test_engine import hashed_text, running
from tests.engine.test_faults import ended, has, recovering
from tests.fakes import FakeRunner, collect, generate_request, hashed_tokens

PROMPTS = [f"{letter} and what comes after it" for letter in "abcdefghijk"]


@pytest.mark.parametrize("at", range(0, 12, 3))
async def test_the_poisonous_row_is_found(at: int) -> None:
    """Among prompts of several chunks, and, later, among rows whose last token only the device knew."""
    async with recovering(num_pages=512, max_batch_tokens=40) as (engine, runner):
        runner.fails = has("!")
        prompts = [*PROMPTS[:at], "! and what comes after it", *PROMPTS[at:]]
        outputs = await asyncio.gather(*(ended(engine, prompt, max_tokens=20) for prompt in prompts))
        bad = outputs.pop(at)
        assert (bad.finish_reason, bad.error) == ("error", "the forward pass failed")
        assert [output.text for output in outputs] == [hashed_text(prompt, 20) for prompt in PROMPTS]
        assert engine.stats.finished["error"] == 1


async def test_poison_in_the_middle_of_an_answer() -> None:
    def fails(batch: Batch) -> bool:
        return any(row.tokens[0] == ord("!") and row.position == 9 for row in batch.samples)

    async with recovering(num_pages=256) as (engine, runner):
        runner.fails = fails
        bad, *good = await asyncio.gather(*(ended(engine, text, max_tokens=16) for text in ("!!", *PROMPTS)))
        assert (bad.finish_reason, bad.text) == ("error", hashed_text("!!", 7))
        assert [output.text for output in good] == [hashed_text(prompt, 16) for prompt in PROMPTS]


async def test_a_passing_failure_is_noticed_by_nobody() -> None:
    async with recovering(max_running=8, num_pages=256) as (engine, runner):
        runner.fails = lambda batch: len(runner.batches) % 3 == 0
        outputs = await asyncio.gather(*(ended(engine, f"{n}", max_tokens=9) for n in range(30)))
        assert [output.text for output in outputs] == [hashed_text(f"{n}", 9) for n in range(30)]


@pytest.mark.parametrize("count", [1, 2, 5])
async def test_what_cannot_be_prepared_is_run_in_parts(count: int) -> None:
    """One row always, every other step of several, beside steps that fail when they run."""
    steps = iter(range(1 << 30))

    def cannot(batch: Batch) -> bool:
        return has("!")(batch) or (len(batch.context_lens) > 1 and next(steps) % 2 == 0)

    async with recovering(max_running=8, num_pages=256) as (engine, runner):
        runner.fails_to_prepare = cannot
        runner.fails = lambda batch: len(batch.context_lens) > count
        bad, *good = await asyncio.gather(*(ended(engine, text, max_tokens=9) for text in ("!", *PROMPTS)))
        assert (bad.finish_reason, bad.error) == ("error", "the forward pass failed")
        assert [output.text for output in good] == [hashed_text(prompt, 9) for prompt in PROMPTS]
        assert any(len(batch.context_lens) > count for batch in runner.batches)


def chained(keys: list[int], places: list[int], previous: Batch | None, *, page_size: int = 4) -> Batch:
    """A step that decodes sequences at their places, each with a page of its own; what goes before them is
    what `previous` samples for the same keys."""
    count = len(keys)
    known = previous is None
    return Batch(
        token_ids=np.array([100 + key if known else 0 for key in keys], np.int64),
        pending_at=np.arange(0 if known else count),
        pending_from=np.array([[row.key for row in previous.samples].index(key) for key in keys])
        if previous
        else np.zeros(0, np.int64),
        positions=np.array(places, np.int64),
        query_starts=np.arange(count + 1, dtype=np.int32),
        context_lens=np.array(places, np.int32) + 1,
        page_table=np.array(keys, np.int32)[:, None],
        kv_slots=np.array(keys) * page_size + np.array(places),
        logit_rows=np.arange(count),
        samples=[_sample(key) for key in keys],
        sampled=np.empty(count, np.int64),
        previous=previous.sampled if previous else np.zeros(0, np.int64),
    )


@pytest.mark.parametrize("failing", [(0,), (1,), (0, 1), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("is_prepared", [False, True])
def test_steps_prepared_before_a_failure_go_on_from_its_parts(
    failing: tuple[int, ...], is_prepared: bool
) -> None:
    """All of them are prepared before the first runs, and rows change places between them."""
    fake = FakeRunner(num_pages=8, page_size=4)
    runner = IsolatingRunner(fake)
    orders = [[0, 1, 2, 3, 4], [4, 2, 0, 1], [1, 4, 2]]
    batches: list[Batch] = []
    for place, keys in enumerate(orders):
        batches.append(chained(keys, [place] * len(keys), batches[-1] if batches else None))

    def fails(batch: Batch) -> bool:
        return any(batch is batches[index] for index in failing) or 3 in batch.page_table[:, 0]

    if is_prepared:
        fake.fails = fails
    else:
        fake.fails_to_prepare = fails
    outputs = [launch() for launch in [runner.prepare(batch) for batch in batches]]
    for place, (keys, output) in enumerate(zip(orders, outputs, strict=True)):
        expected = [-1 if key == 3 else hashed_tokens([100 + key], place + 1)[place] for key in keys]
        assert output.token_ids == batches[place].sampled.tolist() == expected
        assert output.failed == ({3: "the forward pass failed"} if 3 in keys else {})


@pytest.mark.parametrize("most", [1, 3, 16])
@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 12345 bytes."),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_runs_out_of_memory_runs_in_smaller_batches(most: int, error: Exception) -> None:
    """Down to one token of one prompt, with the log-probabilities of its tokens in their order."""
    async with running(num_pages=128) as (engine, _):
        wanted = generate_request(PROMPTS[0], prompt_logprobs=1)
        whole = engine.submit(wanted, request_id="whole")
        await collect(whole)
    async with recovering(num_pages=256) as (engine, runner):
        runner.fails = lambda batch: error if len(batch.token_ids) > most else False
        measured = engine.submit(wanted, request_id="measured")
        outputs = await asyncio.gather(*(ended(engine, prompt, max_tokens=9) for prompt in PROMPTS))
        assert [output.text for output in outputs] == [hashed_text(prompt, 9) for prompt in PROMPTS]
        await collect(measured)
        assert measured.prompt_logprobs == whole.prompt_logprobs
        assert len(measured.prompt_logprobs) == len(PROMPTS[0]) - 1


async def test_a_row_that_fails_measures_nothing() -> None:
    async with recovering(num_pages=256) as (engine, runner):
        runner.fails = has("!")
        bad = engine.submit(generate_request("!!!!", prompt_logprobs=1), request_id="bad")
        good = engine.submit(generate_request("good", prompt_logprobs=1), request_id="good")
        await asyncio.gather(collect(bad), collect(good))
        assert bad.prompt_logprobs == []
        assert [entry.token_id for entry in good.prompt_logprobs] == [*b"ood"]


async def test_masks_stay_with_their_rows() -> None:
    async with recovering(num_pages=256) as (engine, runner):
        runner.fails = lambda batch: has("!")(batch) or len(runner.batches) % 4 == 0
        schemas: list[dict[str, Any]] = [{"const": n} for n in range(6)]
        grammars = [await engine.compiler.compile(Constraint.json_schema(schema)) for schema in schemas]
        outputs = await asyncio.gather(
            ended(engine, "!", max_tokens=9),
            *(ended(engine, f"g{n}", max_tokens=9, grammar=grammar) for n, grammar in enumerate(grammars)),
            *(ended(engine, f"{n}", max_tokens=9) for n in range(6)),
        )
        assert outputs[0].finish_reason == "error"
        assert [output.text for output in outputs[1:7]] == [f"{n}" for n in range(6)]
        assert [output.text for output in outputs[7:]] == [hashed_text(f"{n}", 9) for n in range(6)]


class Rows:
    """A model that knows each row by its last token: logits prefer the token after it."""

    def __init__(self) -> None:
        self.fails: Callable[[Batch], bool] = lambda batch: False

    hidden_size = 8

    def forward(
        self, batch: Batch, token_ids: torch.Tensor, hidden: torch.Tensor | None = None
    ) -> torch.Tensor:
        if self.fails(batch):
            raise RuntimeError
        logits = torch.zeros(len(batch.logit_rows), 272)
        logits[torch.arange(len(logits)), (token_ids[batch.logit_rows] + 1) % 256] = 3.0
        logits[torch.arange(len(logits)), (token_ids[batch.logit_rows] + 2) % 256] = 2.0
        return logits


async def test_penalties_count_every_token_once() -> None:
    """The real sampler keeps counts between steps; a step in parts must leave them as a whole one does."""

    async def said(fails: Callable[[Batch], bool]) -> list[list[int]]:
        model = Rows()
        model.fails = fails
        async with running(num_pages=256) as (engine, _):
            engine._loop._runner.runner = ModelRunner(model, Sampler(272), torch.device("cpu"))
            params = {
                "max_tokens": 24,
                "temperature": 0.0,
                "frequency_penalty": 0.7,
                "repetition_penalty": 1.3,
                "ignore_eos": True,
            }
            outputs = await asyncio.gather(*(ended(engine, text, **params) for text in ("\x00", "A", "x")))
            return [output.token_ids for output in outputs]

    whole = await said(lambda batch: False)
    assert whole[1][:3] == [*b"BCD"]
    assert len(set(whole[1])) > 12
    assert await said(lambda batch: len(batch.context_lens) > 1) == whole
    steps = iter(range(1 << 30))
    assert await said(lambda batch: next(steps) % 3 == 1) == whole


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 6), st.booleans()), min_size=1, max_size=6),
    cuts=st.sets(st.integers(1, 36), max_size=6),
)
def test_parts_are_the_batch(rows: list[tuple[int, int, bool]], cuts: set[int]) -> None:
    """Each token has its place, its row's pages and what it may see, whatever part it is in."""
    counts = [count for _, count, _ in rows]
    starts = np.concatenate(([0], np.cumsum(counts)))
    total = int(starts[-1])
    sampling = [index for index, (_, _, samples) in enumerate(rows) if samples]
    masked: Future[Masks | None] = Future()
    bits = np.arange(len(sampling), dtype=np.int32)[::2, None]
    masked.set_result(Masks(rows=np.arange(len(sampling))[::2], bits=list(bits)))
    none = np.zeros(0, np.int64)
    batch = Batch(
        token_ids=np.arange(total),
        pending_at=none,
        pending_from=none,
        positions=np.concatenate([np.arange(start, start + count) for start, count, _ in rows]),
        query_starts=starts.astype(np.int32),
        context_lens=np.array([start + count for start, count, _ in rows], np.int32),
        page_table=np.arange(len(rows), dtype=np.int32)[:, None],
        kv_slots=np.arange(total) + 100,
        logit_rows=np.array([*(starts[i + 1] - 1 for i in sampling), *range(total)], np.int64),
        samples=[_sample(index) for index in sampling],
        prompt_next=np.arange(total) + 200,
        prompt_top=list(range(total)),
        masks=masked,
    )
    bounds = [0, *sorted(cut for cut in cuts if cut < total), total]
    parts = [part(batch, start, stop) for start, stop in pairwise(bounds)]

    def tokens(piece: Batch) -> list[tuple[int, ...]]:
        """Id, place, KV slot and row's page of each token; checks that a row's context ends with its last."""
        found = []
        for row in range(len(piece.context_lens)):
            first, last = int(piece.query_starts[row]), int(piece.query_starts[row + 1])
            assert piece.positions[last - 1] + 1 == piece.context_lens[row]
            for at in range(first, last):
                place = (piece.positions[at], piece.kv_slots[at], piece.page_table[row, 0])
                found.append((int(piece.token_ids[at]), *map(int, place)))
        return found

    assert [token for piece in parts for token in tokens(piece)] == tokens(batch)
    assert [row.key for piece in parts for row in piece.samples] == sampling
    num_masked = 0
    for piece in parts:
        count = len(piece.samples)
        ends = [int(starts[row.key + 1]) - 1 for row in piece.samples]
        assert piece.token_ids[piece.logit_rows[:count]].tolist() == ends
        assert (piece.token_ids[piece.logit_rows[count:]] + 200).tolist() == piece.prompt_next.tolist()
        assert piece.prompt_top == (piece.prompt_next - 200).tolist()
        masks = piece.masks.result() if piece.masks else None
        assert masks is not None
        whose = [sampling.index(piece.samples[row].key) for row in masks.rows.tolist()]
        assert whose == [bits.item(0) for bits in masks.bits]
        num_masked += len(whose)
    assert num_masked == len(bits)


def test_every_field_of_an_output_is_joined() -> None:
    """A field that is new has to be joined, and given values here."""
    joined = {
        "token_ids": ([1, 2], [3], [1, 2, 3]),
        "logprobs": ([None, TokenLogprob(2, -0.5, ())], [None], [None, TokenLogprob(2, -0.5, ()), None]),
        "prompt_logprobs": ([TokenLogprob(4, -1.0, ())], [TokenLogprob(5, -2.0, ())], None),
        "embeddings": ([np.array([1], np.float32)], [np.array([2], np.float32)], None),
        "failed": ({1: "a"}, {0: "b", 2: "c"}, {1: "a", 5: "b", 7: "c"}),
        "forward_s": (1.0, 2.0, 3.0),
        "sample_s": (0.25, 0.5, 0.75),
    }
    assert joined.keys() == {field.name for field in fields(StepOutput)}
    first, second = (
        StepOutput(**{name: values[index] for name, values in joined.items()})  # type: ignore[arg-type]  # mixed
        for index in (0, 1)
    )
    whole = _joined(first, second, num_rows=5)
    for name, (one, other, both) in joined.items():
        expected = both if both is not None else [*one, *other]  # type: ignore[misc]  # lists
        assert getattr(whole, name) == expected, name


def test_every_field_of_a_batch_is_cut() -> None:
    """Half of a batch has half of everything but what is for all of it. A field that is new has to be cut
    likewise and given a value here, or be named as one that is not cut."""
    none = np.zeros(0, np.int64)
    masked: Future[Masks | None] = Future()
    masked.set_result(Masks(rows=np.arange(2), bits=[*np.ones((2, 1), np.int32)]))
    batch = Batch(
        token_ids=np.arange(4),
        pending_at=none,
        pending_from=none,
        positions=np.array([0, 1, 0, 1]),
        query_starts=np.array([0, 2, 4], np.int32),
        context_lens=np.array([2, 2], np.int32),
        page_table=np.array([[0], [1]], np.int32),
        kv_slots=np.arange(4),
        logit_rows=np.array([1, 3, 0, 2]),
        samples=[_sample(0), _sample(1)],
        sampled=np.array([-1, -1]),
        prompt_next=np.array([1, 3]),
        prompt_top=[1, 1],
        embed_rows=np.array([1, 3]),
        masks=masked,
        released=[7],
    )
    uncut = {"pending_at", "pending_from", "previous", "released"}
    piece = part(batch, 2, 4)
    for name in {field.name for field in fields(Batch)} - uncut:
        # There is one start more than rows.
        halves = 2 * len(_rows(piece, name)) - (name == "query_starts")
        assert halves == len(_rows(batch, name)) > 0, name
    assert piece.released == [7]
    piece.sampled[:] = 5
    assert batch.sampled.tolist() == [-1, 5], "what a part samples is not in the whole"


def _rows(batch: Batch, name: str) -> Any:
    value = getattr(batch, name)
    return value.result().rows if isinstance(value, Future) else value


def _sample(key: int) -> SampleRow:
    return SampleRow(
        key=key, params=SamplingParams(max_tokens=1), seed=0, position=1, tokens=[], num_prompt=0, num_known=0
    )
