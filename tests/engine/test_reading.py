"""Prompts that are run to be read and not to be gone on with: hidden states, and how likely known text is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.batch import Batch
from engine.request import Request
from engine.targets import Targets
from tests.engine.test_engine import hashed_text, running
from tests.fakes import collect, generate_request, hashed_embedding, hashed_state

PROMPT = list(b"a prompt of several pages, all of it known")


def reading(prompt: list[int], **fields: Any) -> Any:
    return generate_request(prompt, max_tokens=0, **fields)


def expected_logprobs(prompt: list[int], positions: list[int]) -> list[float]:
    return [-(hashed_state(prompt[: position + 1]) % 1000) / 64 for position in positions]


async def ended(request: Request) -> None:
    (output,) = await collect(request)
    assert (output.finish_reason, output.text, output.token_ids) == ("stop", "", [])
    assert request.completion_tokens == 0


@pytest.mark.parametrize("budget", [1, 5, 64])
async def test_an_embedding_is_the_last_tokens_state(budget: int) -> None:
    """Cold, and with the prefix cached; in chunks; nothing is sampled."""
    async with running(max_batch_tokens=budget) as (engine, runner):
        for cached in (0, 40):
            request = engine.submit(reading(PROMPT, purpose="embed"), request_id="r")
            await ended(request)
            assert request.embedding is not None
            np.testing.assert_array_equal(request.embedding, hashed_embedding(hashed_state(PROMPT)))
            assert request.cached_tokens == cached
        assert (engine.stats.prompt_tokens, engine.stats.cached_tokens) == (2 * len(PROMPT), 40)
        assert not any(batch.samples or len(batch.logit_rows) for batch in runner.batches)


async def test_embeddings_beside_generation() -> None:
    async with running() as (engine, _):
        prompts = [[*PROMPT, *b"%d" % n] for n in range(8)]
        requests = [engine.submit(reading(p, purpose="embed"), request_id="r") for p in prompts]
        writer = engine.submit(generate_request("hi", max_tokens=9), request_id="w")
        for request, prompt in zip(requests, prompts, strict=True):
            await ended(request)
            assert request.embedding is not None
            np.testing.assert_array_equal(request.embedding, hashed_embedding(hashed_state(prompt)))
        (output,) = await collect(writer)
        assert len(output.token_ids) == 9


@pytest.mark.parametrize("budget", [1, 7, 64])
async def test_targets_are_measured_and_what_is_before_them_is_shared(budget: int) -> None:
    positions = [len(PROMPT) - 3, len(PROMPT) - 1, len(PROMPT) - 1]
    targets = Targets(positions, [7, 8, 9])
    async with running(max_batch_tokens=budget) as (engine, _):
        for cached in (0, 36):
            request = engine.submit(reading(PROMPT, purpose="measure", targets=targets), request_id="r")
            await ended(request)
            assert [measure.token_id for measure in request.measures] == [7, 8, 9]
            assert [m.logprob for m in request.measures] == expected_logprobs(PROMPT, positions)
            assert request.cached_tokens == cached


async def test_labels_of_one_prompt_compute_it_once() -> None:
    """The others wait for its pages instead of computing them too."""
    async with running() as (engine, runner):
        last = len(PROMPT) - 1
        prompts = [[*PROMPT, label] for label in b"xyz"]
        requests = [
            engine.submit(
                reading(p, purpose="measure", targets=Targets([last, last + 1], [p[-1], 5])), request_id="r"
            )
            for p in prompts
        ]
        for request, prompt in zip(requests, prompts, strict=True):
            await ended(request)
            expected = expected_logprobs(prompt, [last, last + 1])
            assert [measure.logprob for measure in request.measures] == expected
        assert sum(len(batch.token_ids) for batch in runner.batches) == 43 + 2 * 3


@pytest.mark.parametrize("budget", [1, 2, 7, 32])
async def test_logits_count_in_the_budget_of_a_step(budget: int) -> None:
    """However it is cut, a prompt has the same log-probabilities, and others have a token in every step."""
    prompt = list(b"the whole of it is measured" * 3)
    async with running(max_batch_tokens=budget, num_pages=128) as (engine, runner):
        writer = engine.submit(generate_request("hi", max_tokens=200), request_id="w")
        reader = engine.submit(generate_request(prompt, max_tokens=2, prompt_logprobs=1), request_id="r")
        (read,) = await collect(reader)
        assert read.text == hashed_text(bytes(prompt).decode(), 2)
        positions = [*range(len(prompt) - 1)]
        assert [m.logprob for m in reader.prompt_logprobs] == expected_logprobs(prompt, positions)
        assert [m.token_id for m in reader.prompt_logprobs] == prompt[1:]
        (written,) = await collect(writer)
        assert written.text == hashed_text("hi", 200)
    measuring = [batch for batch in runner.batches if len(batch.prompt_next)]
    assert sum(len(batch.prompt_next) for batch in measuring) == len(prompt) - 1
    # Where the writer has its token before it, one token of the prompt may be too much for what is left.
    assert max(len(batch.token_ids) + len(batch.prompt_next) for batch in measuring) <= max(budget, 3)


async def test_many_targets_of_one_token_have_a_step_to_themselves() -> None:
    """They cannot be cut; what is behind them comes later."""
    last = len(PROMPT) - 1
    async with running(max_batch_tokens=16) as (engine, runner):
        runner.pause()
        requests = [
            engine.submit(
                reading([*PROMPT[:-1], n], purpose="measure", targets=Targets([last] * 40, [*range(40)])),
                request_id="r",
            )
            for n in (1, 2, 3)
        ]
        runner.resume()
        for n, request in zip((1, 2, 3), requests, strict=True):
            await ended(request)
            assert [m.token_id for m in request.measures] == [*range(40)]
            assert [m.logprob for m in request.measures] == expected_logprobs([*PROMPT[:-1], n], [last]) * 40
    assert max(len(batch.prompt_next) for batch in runner.batches) == 40


async def test_one_that_is_preempted_is_read_all_the_same() -> None:
    """A pool that holds two of them; the steps are so small that they get in each other's way."""
    prompts = [list(b"%d" % n * 40) for n in range(6)]
    async with running(num_pages=24, max_batch_tokens=16, prefix_cache=False) as (engine, _):
        writers = [engine.submit(generate_request(f"w{n}", max_tokens=40), request_id="w") for n in range(3)]
        requests = [engine.submit(reading(p, purpose="embed"), request_id="r") for p in prompts]
        for request, prompt in zip(requests, prompts, strict=True):
            await ended(request)
            assert request.embedding is not None
            np.testing.assert_array_equal(request.embedding, hashed_embedding(hashed_state(prompt)))
        for writer in writers:
            await collect(writer)


async def test_one_that_is_aborted_or_fails_leaves_nothing() -> None:
    async with running(max_batch_tokens=8) as (engine, runner):
        runner.pause()
        gone = engine.submit(reading(PROMPT, purpose="embed"), request_id="gone")
        engine.abort(gone)
        runner.resume()

        def broken(batch: Batch) -> bool:
            return 255 in batch.token_ids

        runner.fails = broken
        bad = engine.submit(reading([*PROMPT, 255], purpose="embed"), request_id="bad")
        good = engine.submit(reading(PROMPT, purpose="embed"), request_id="good")
        assert (await collect(bad))[0].finish_reason == "error"
        await ended(good)
        assert gone.embedding is None


async def test_a_state_that_is_no_number_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fakes.hashed_embedding", lambda state: np.full(8, np.nan, np.float32))
    async with running() as (engine, _):
        request = engine.submit(reading(PROMPT, purpose="embed"), request_id="r")
        (output,) = await collect(request)
        assert (output.finish_reason, output.error) == ("error", "the model gave no usable numbers")
