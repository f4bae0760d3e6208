"""The shipped model through the whole engine: sharing, batching and preemption change no text."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine.batch import Batch, Launch, Runner, StepOutput
from engine.config import Config
from engine.engine import Engine
from engine.load import load_engine
from engine.request import Request
from grammars.spec import Constraint
from tests.fakes import assert_quiet, collect, generate_request

SYSTEM = (
    "You are a patient teacher. Answer in two or three plain sentences, name one example, and never "
    "use a word that a child of ten would not know."
)
QUESTIONS = [
    *("Why is the sky blue?", "What is a whale?", "How do bees make honey?", "Who was Ada Lovelace?"),
    *("What is rust?", "Why do we sleep?", "How does a lock work?", "What is the capital of France?"),
]
MAX_TOKENS = 16


@pytest.fixture(scope="module")
async def engine() -> AsyncIterator[Engine]:
    engine = load_engine(Config(dtype="float32", kv_memory=256), lambda stage, fraction: None)
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture(scope="module")
async def small() -> AsyncIterator[Engine]:
    """One whose pool holds a few of the questions at a time."""
    # Without an aim for steps, what is preempted does not depend on how long they take.
    config = Config(dtype="float32", kv_memory=8, max_batch_tokens=64, step_aim=0)
    engine = load_engine(config, lambda stage, fraction: None)
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture(scope="module")
async def alone(engine: Engine) -> list[str]:
    """The text of each question, asked alone with nothing cached."""
    answers = []
    for question in QUESTIONS:
        engine.flush_cache()
        answers += await texts([submit(engine, question)])
    return answers


def prompt(engine: Engine, question: str, system: str = SYSTEM) -> list[int]:
    text = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n"
    return engine.tokenizer.encode(f"{text}<|im_start|>assistant\n", add_special=False, parse_special=True)


def submit(engine: Engine, question: str, **params: Any) -> Request:
    fields = {"max_tokens": MAX_TOKENS, "ignore_eos": True, "temperature": 0.0, **params}
    wanted = generate_request(prompt(engine, question), **fields)
    return engine.submit(wanted, request_id=question)


async def texts(requests: list[Request]) -> list[str]:
    return [output.text for (output,) in await asyncio.gather(*map(collect, requests))]


async def test_greedy_text_is_the_same_batched_cold_and_warm(engine: Engine, alone: list[str]) -> None:
    assert "Paris" in alone[-1]
    engine.flush_cache()
    cold = await texts([submit(engine, QUESTIONS[n % 8]) for n in range(32)])
    assert cold == alone * 4
    warm = [submit(engine, question) for question in QUESTIONS]
    assert await texts(warm) == alone
    assert all(request.cached_tokens >= request.prompt_tokens - 17 for request in warm)
    assert_quiet(engine)


async def test_preempted_requests_say_the_same(small: Engine, alone: list[str]) -> None:
    before = small.stats.preemptions
    assert await texts([submit(small, question) for question in QUESTIONS]) == alone
    assert small.stats.preemptions > before
    assert_quiet(small)


async def test_preempted_requests_are_penalised_and_drawn_alike(engine: Engine, small: Engine) -> None:
    """A35: what was written before a preemption counts as output, not as prompt, and counts once."""
    fields = {"repetition_penalty": 1.3, "presence_penalty": 0.8, "temperature": 0.7}
    before = small.stats.preemptions
    expected, preempted = (
        [submit(at, question, seed=n, **fields) for n, question in enumerate(QUESTIONS)]
        for at in (engine, small)
    )
    assert await texts(preempted) == await texts(expected)
    assert small.stats.preemptions > before
    assert [request.completion_tokens for request in preempted] == [MAX_TOKENS] * len(QUESTIONS)
    assert_quiet(small)


MIX: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.9, "seed": 3},
    {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "seed": 4, "min_tokens": 9, "ignore_eos": False},
    {"temperature": 0.0, "logprobs": 2},
    {"temperature": 1.1, "repetition_penalty": 1.2, "frequency_penalty": 0.4, "seed": 5},
    {"temperature": 0.0, "bad_words": ((216,), (28, 260))},
    {"temperature": 0.0, "grammar": True},
    {"temperature": 1.0, "grammar": True, "seed": 6, "logprobs": 0},
]


class Faulty:
    """Fails two in five steps of several rows: in preparing them, or when they run."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._turns = itertools.cycle(("prepare", "", "", "run", ""))

    def prepare(self, batch: Batch) -> Launch:
        fails = next(self._turns) if len(batch.context_lens) > 1 else ""
        if fails == "prepare":
            raise RuntimeError
        launch = self._runner.prepare(batch)
        return self._fail if fails == "run" else launch

    def _fail(self) -> StepOutput:
        raise RuntimeError


async def test_any_mix_of_ways_to_choose_says_what_each_says_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that a step chooses itself, beside such as are chosen afterwards; also where steps fail."""
    grammar = await engine.compiler.compile(Constraint(kind="regex", spec="[A-Z][a-z ]{3,40}[.] [0-9]+"))

    def ask(number: int) -> Request:
        fields = MIX[number % len(MIX)] | (
            {"grammar": grammar} if "grammar" in MIX[number % len(MIX)] else {}
        )
        return submit(engine, QUESTIONS[number % 5], **fields)

    alone = [(await collect(ask(number)))[0] for number in range(len(MIX))]
    mixed = await asyncio.gather(*(collect(ask(number)) for number in [*range(len(MIX))] * 4))
    isolating = engine._loop._runner
    monkeypatch.setattr(isolating, "runner", Faulty(isolating.runner))
    mixed += await asyncio.gather(*(collect(ask(number)) for number in range(len(MIX))))
    assert [output.text for (output,) in mixed] == [output.text for output in alone] * 5
    logprobs = [[entry.logprob for entry in output.logprobs] for output in alone]
    assert [[entry.logprob for entry in output.logprobs] for (output,) in mixed] == logprobs * 5
    assert [bool(each) for each in logprobs] == ["logprobs" in fields for fields in MIX]
    assert_quiet(engine)


async def test_a_seed_gives_one_text_whatever_runs_beside_it(engine: Engine) -> None:
    (alone,) = await texts([submit(engine, QUESTIONS[0], temperature=1.0, seed=7, top_p=0.9)])
    crowd = [submit(engine, question, temperature=1.0, seed=n) for n, question in enumerate(QUESTIONS)]
    again = submit(engine, QUESTIONS[0], temperature=1.0, seed=7, top_p=0.9)
    other = submit(engine, QUESTIONS[0], temperature=1.0, seed=8, top_p=0.9)
    same, different = (await texts([*crowd, again, other]))[-2:]
    assert same == alone
    assert different != alone
