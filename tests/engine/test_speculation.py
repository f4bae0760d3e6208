"""Guessed tokens: texts are those that come without them, in fewer steps."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.batch import Batch, SampleRow
from engine.config import Config
from engine.engine import Engine
from engine.load import load_engine
from engine.prompt_lookup import PromptLookup
from engine.request import Request
from grammars.spec import Constraint
from tests.engine.test_engine import running, until
from tests.fakes import IM_END, FakeRunner, assert_quiet, collect, generate_request, hashed_tokens, say

REPEATED = "one two three, one two three, one two three, one two three"


def guess(text: str, *, right: float = 0.9, skip: int = 0, most: int = 6) -> str:
    lookup = PromptLookup(text.encode(), num_prompt=len(text))
    lookup.hit_rate = right
    return bytes(lookup.guess(skip=skip, most=most, least_chance=0.1)).decode()


def test_what_followed_the_last_two_tokens_is_guessed() -> None:
    assert guess("a cat, a dog, a c") == "at, a "
    assert guess("a cat, a cow, a c") == "ow, a "  # what was said last
    assert guess("a cat, a dog, a h") == ""
    assert guess("a cat, a c", skip=2) == ", a cat"[:6]
    assert guess("ababab") == "ababab"  # goes round


@pytest.mark.parametrize(("right", "count"), [(0.29, 0), (0.3, 1), (0.5, 3), (0.75, 8), (1.0, 9)])
def test_as_much_is_guessed_as_is_likely(right: float, count: int) -> None:
    assert len(guess("abcdefghijklmnab", right=right, most=9)) == count


def test_guesses_are_judged_by_the_output() -> None:
    tokens = list(b"abcabc")
    lookup = PromptLookup(tokens, num_prompt=len(tokens))
    lookup.guess(skip=0, most=1, least_chance=0.1)
    assert lookup.hit_rate == 0.5, "a prompt says nothing of the output"
    tokens += b"abcx"  # three guesses that were right, one that was not; after "x" nothing was guessed
    lookup.guess(skip=0, most=1, least_chance=0.1)
    assert lookup.hit_rate == pytest.approx((1 - 0.5 * (7 / 8) ** 3) * 7 / 8)


@pytest.mark.parametrize(
    ("right", "count", "hoped"), [(0.5, 1, 0.5), (0.5, 3, 0.875), (0.9, 2, 1.71), (1.0, 7, 7), (0.0, 4, 0)]
)
def test_guesses_count_up_to_the_first_that_is_wrong(right: float, count: int, hoped: float) -> None:
    lookup = PromptLookup([1, 2, 3], num_prompt=3)
    lookup.hit_rate = right
    assert lookup.hoped(count) == pytest.approx(hoped)


def sizes(runner: FakeRunner) -> list[int]:
    return [len(batch.token_ids) for batch in runner.batches]


def submit(engine: Engine, prompt: str | list[int], **fields: Any) -> Request:
    return engine.submit(generate_request(prompt, **fields), request_id="r")


async def ask(engine: Engine, prompt: str, **fields: Any) -> str:
    (output,) = await collect(submit(engine, prompt, **fields))
    return output.text


async def test_a_text_that_repeats_itself_takes_few_steps() -> None:
    async with running(script=say(REPEATED), draft_tokens=7) as (engine, runner):
        assert await ask(engine, "count", max_tokens=99) == REPEATED
        assert engine.stats.accepted_tokens >= 30
        assert len(runner.batches) <= len(REPEATED) + 2 - engine.stats.accepted_tokens
        assert max(sizes(runner)[1:]) == 8
        assert engine.stats.draft_tokens == sum(len(batch.samples) - 1 for batch in runner.batches)
        assert engine.stats.generation_tokens == len(REPEATED) + 1
        wrong = engine.stats.draft_tokens - engine.stats.accepted_tokens
        assert engine.stats.computed_tokens == len("count") + len(REPEATED) + wrong, "nothing is run twice"
        (ended,) = engine.history.ended
        decoded = [span.tokens for span in ended.spans if span.kind == "decode"]
        assert decoded == [len(REPEATED) + wrong], "its timeline tells of guesses, too"
        assert_quiet(engine)


async def test_none_are_tried_unless_wanted() -> None:
    async with running(script=say(REPEATED)) as (engine, runner):
        assert await ask(engine, "count", max_tokens=99) == REPEATED
        assert max(sizes(runner)[1:]) == 1


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 30))
async def test_texts_are_the_same(seed: int) -> None:
    """Of two letters, so that guesses are right half of the time; with little room, choices and aborts."""
    chance = random.Random(seed)
    prompts = [f"{seed} {n} {'ab' * chance.randint(0, 9)}" for n in range(chance.randint(1, 6))]
    counts = [chance.randint(1, 40) for _ in prompts]
    pages = chance.choice([32, 300])
    async with running(num_pages=pages, draft_tokens=chance.randint(1, 9)) as (engine, runner):
        runner.letters = 2

        async def run(prompt: str, count: int) -> None:
            await asyncio.sleep(0)
            if chance.random() < 0.2:
                engine.abort(submit(engine, prompt, max_tokens=count))
            text = await ask(engine, prompt, max_tokens=count)
            assert text == bytes(hashed_tokens(prompt.encode(), count, 2)).decode()

        await asyncio.gather(*map(run, prompts, counts))
        assert_quiet(engine)


async def test_the_end_may_be_guessed_too() -> None:
    """Stop strings, ends of sequence and the budget hold whatever was tried beyond them."""
    async with running(script=say(REPEATED), draft_tokens=7) as (engine, runner):
        requests = [
            submit(engine, "count", max_tokens=99, stop=["three, one two three, one"]),
            submit(engine, "count", max_tokens=45),
        ]
        stopped, cut = [(await collect(request))[0] for request in requests]
        assert (stopped.text, stopped.finish_reason) == ("one two ", "stop")
        assert (cut.text, cut.finish_reason) == (REPEATED[:45], "length")

        def weekly(row: SampleRow) -> int:
            ends = row.position % 7 == 0 and IM_END not in row.forbidden
            return IM_END if ends else ord("a") + row.position % 7

        runner.script = weekly
        (ended,) = await collect(submit(engine, "count", max_tokens=99, min_tokens=50))
        assert (len(ended.token_ids), ended.finish_reason) == (52, "stop")
        assert_quiet(engine)


@pytest.mark.parametrize(
    "fields",
    [{"frequency_penalty": 0.5}, {"repetition_penalty": 1.1}, {"bad_words": ((1, 2),)}],
)
async def test_none_are_tried_where_a_token_depends_on_those_read_before(fields: dict[str, Any]) -> None:
    async with running(script=say(REPEATED), draft_tokens=7) as (engine, runner):
        assert await ask(engine, "count", max_tokens=99, **fields) == REPEATED
        assert max(sizes(runner)[1:]) == 1


@pytest.mark.parametrize("kind", ["grammar", "penalty"])
async def test_none_are_tried_beside_such_an_answer(kind: str) -> None:
    async with running(script=say(REPEATED), draft_tokens=7) as (engine, runner):
        grammar = await engine.compiler.compile(Constraint(kind="regex", spec="[a-z, ]+"))
        fields: dict[str, Any] = {"grammar": grammar} if kind == "grammar" else {"presence_penalty": 0.5}
        other = submit(engine, "count", max_tokens=99, **fields)
        texts = await asyncio.gather(ask(engine, "count", max_tokens=99), collect(other))
        assert texts[0] == texts[1][0].text == REPEATED
        together = [len(batch.samples) for batch in runner.batches if len(batch.context_lens) == 2]
        assert len(together) > 50
        assert max(together) == 2


async def test_few_sequences_share_what_is_tried() -> None:
    async with running(script=say(REPEATED), draft_tokens=7) as (engine, runner):
        texts = await asyncio.gather(*(ask(engine, f"count {n}", max_tokens=99) for n in range(3)))
        assert texts == [REPEATED] * 3
        decoding = [batch for batch in runner.batches if (batch.context_lens > 7).sum() == 3]
        assert max(len(batch.token_ids) for batch in decoding) == 6
        assert engine.stats.accepted_tokens > 0


@pytest.mark.parametrize(("base_s", "row_s", "most"), [(4, 0, 7), (4, 0.5, 7), (0, 4, 0)])
async def test_none_are_tried_where_they_cost_what_they_give(base_s: float, row_s: float, most: int) -> None:
    """A row adds to a step between nothing, where that waits for memory, and all of what it takes."""
    async with running(script=say(REPEATED), draft_tokens=7) as (engine, runner):
        for tokens in (1, 8):
            engine._scheduler.row_price.learn(tokens, base_s + row_s * tokens)
        runner.seconds = lambda batch: base_s + row_s * len(batch.token_ids)
        assert await ask(engine, "count", max_tokens=99) == REPEATED
        assert max(sizes(runner)[1:]) == 1 + most


@pytest.mark.parametrize(("repeating", "tries"), [(1, False), (2, True)])
async def test_none_are_tried_where_few_rows_would_gain(repeating: int, tries: bool) -> None:
    """Reading a step before the next is planned costs all of its rows."""
    plain = "".join(map(chr, range(33, 33 + len(REPEATED))))  # says nothing twice
    texts = [REPEATED] * repeating + [plain] * (5 - repeating)
    async with running(script=say(*texts), draft_tokens=9) as (engine, runner):
        outputs = await collect(submit(engine, "count", max_tokens=len(REPEATED), choices=5))
        assert [output.text for output in outputs] == texts
        together = [batch for batch in runner.batches if (batch.context_lens > len("count") + 1).sum() == 5]
        assert any(len(batch.token_ids) > 5 for batch in together) == tries


async def test_a_token_has_its_log_probability() -> None:
    async with running(script=say(REPEATED), draft_tokens=7) as (engine, _runner):
        (output,) = await collect(submit(engine, "count", max_tokens=99, logprobs=0))
        assert (
            [logprob.token_id for logprob in output.logprobs]
            == output.token_ids
            == [*REPEATED.encode(), IM_END]
        )


async def test_a_failing_step_with_guesses_fails_its_row_alone() -> None:
    """Steps are run again in halves: a row that tries tokens has several samples."""

    def fails(batch: Batch) -> bool:
        poisonous = any(row.tokens[0] == ord("!") and row.position > 40 for row in batch.samples)
        return poisonous or (len(batch.context_lens) > 1 and len(batch.token_ids) % 3 == 0)

    async with running(script=say(REPEATED), draft_tokens=7) as (engine, runner):
        runner.fails = fails
        good, bad = (
            submit(engine, "count", max_tokens=99),
            submit(engine, "!", max_tokens=99),
        )
        assert (await collect(good))[0].text == REPEATED
        assert (await collect(bad))[0].finish_reason == "error"
        assert_quiet(engine)


async def test_an_abort_while_guesses_are_in_flight() -> None:
    async with running(num_pages=200, script=say(REPEATED * 9), draft_tokens=7) as (engine, runner):
        request = submit(engine, "count", max_tokens=400)
        await until(lambda: engine.stats.accepted_tokens > 20)
        engine.abort(request)
        await collect(request)
        await until(lambda: engine.load().running == 0 and not runner.batches[-1].pending_from.any())
        assert await ask(engine, "count", max_tokens=20) == REPEATED[:20]
        stats = engine.stats
        wrong = stats.draft_tokens - stats.accepted_tokens
        sampled = sum(len(batch.samples) for batch in runner.batches)
        assert sampled == stats.generation_tokens + wrong + stats.discarded_tokens


def ids_of(engine: Engine, text: str) -> list[int]:
    return engine.tokenizer.encode(text, add_special=False, parse_special=False)


async def test_the_model_says_the_same() -> None:
    """Greedy and drawn; with the tokens of one step from one row or from eight."""
    prompts = [
        "Repeat after me: the cat sat on the mat, the dog sat on the rug. The cat sat on the",
        "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):\n",
    ]

    async def answers(draft_tokens: int | None) -> tuple[list[list[int]], Engine]:
        engine = load_engine(
            Config(quantize="gguf", kv_memory=64, draft_tokens=draft_tokens), lambda label, fraction: None
        )
        await engine.start()
        ids = [
            (await collect(submit(engine, ids_of(engine, prompt), **fields)))[0].token_ids
            for prompt in prompts
            for fields in (
                {"max_tokens": 64, "temperature": 0.0},
                {"max_tokens": 64, "temperature": 0.7, "seed": 3},
            )
        ]
        await engine.stop()
        return ids, engine

    plain, _ = await answers(0)
    tried, engine = await answers(None)
    assert engine.config.draft_tokens == 7, "on the native path, where nobody says otherwise"
    assert tried == plain
    assert engine.stats.accepted_tokens > 20
    assert engine.stats.steps < sum(map(len, plain)) - 10
