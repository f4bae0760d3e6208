"""Grammars in the step loop: masks of the right step, forced tokens, endings."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import jsonschema
import pytest

from engine.batch import SampleRow
from engine.engine import Engine
from engine.errors import InvalidRequestError
from engine.request import Request
from grammars.base import Grammar, MaskRow, Matcher
from grammars.spec import Constraint
from tests.engine.test_engine import running, until
from tests.fakes import IM_END, VOCAB_SIZE, collect, generate_request, hashed_tokens

PERSON = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 6},
        "first_language": {"enum": ["greek", "german", "hindi"]},
        "known": {"type": "boolean"},
    },
    "required": ["first_name", "first_language", "known"],
    "additionalProperties": False,
}


class Unforced:
    """A grammar whose matchers dictate nothing, to compare with."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self.nbytes = grammar.nbytes
        self.min_tokens = grammar.min_tokens

    def matcher(self) -> Matcher:
        matcher = self._grammar.matcher()
        setattr(matcher, "forced_tokens", list)  # noqa: B010
        return matcher


async def compiled(engine: Engine, schema: Any) -> Grammar:
    return await engine.compiler.compile(Constraint.json_schema(schema))


def submit(engine: Engine, grammar: Grammar | None, prompt: str = "hi", **fields: Any) -> Request:
    wanted = generate_request(prompt, grammar=grammar, **{"max_tokens": 200, **fields})
    return engine.submit(wanted, request_id=prompt)


@pytest.mark.parametrize("crowd", [0, 9])
async def test_forced_tokens_save_steps_and_change_no_text(crowd: int) -> None:
    texts, steps = [], []
    for wrap in (lambda grammar: grammar, Unforced):
        async with running(num_pages=400, max_running=32, max_context=400) as (engine, runner):
            grammar = wrap(await compiled(engine, PERSON))
            runner.pause()
            others = [submit(engine, None, f"other {n}") for n in range(crowd)]
            requests = [submit(engine, grammar, text) for text in ("x", "y", "z")]
            runner.resume()
            outputs = [(await collect(request))[0] for request in requests]
            await asyncio.gather(*map(collect, others))
            assert [output.finish_reason for output in outputs] == ["stop"] * 3
            texts.append([output.text for output in outputs])
            steps.append(sum(any(row.tokens[0] == ord("x") for row in b.samples) for b in runner.batches))
            assert [len(output.token_ids) for output in outputs] == [
                request.completion_tokens for request in requests
            ]
    assert texts[0] == texts[1]
    for text in texts[0]:
        assert list(json.loads(text)) == ["first_name", "first_language", "known"]
    assert steps[0] < steps[1] / 2


@pytest.mark.parametrize("streams", [1, 9])
@pytest.mark.parametrize(
    ("schema", "steps", "pays"),
    [
        ({"type": "string", "minLength": 60}, 40, False),
        ({"type": "array", "items": {"enum": ["alabaster", "basalt", "chalk"]}, "minItems": 15}, 6, True),
    ],
)
async def test_a_step_is_read_first_where_much_is_dictated(
    schema: Any, steps: int, streams: int, *, pays: bool
) -> None:
    """Whatever the number of streams."""
    async with running(num_pages=3000, max_running=16, max_context=400) as (engine, runner):
        grammar = await compiled(engine, schema)
        runner.pause()
        requests = [submit(engine, grammar, f"{n}", max_tokens=300) for n in range(streams)]
        runner.allow(steps)
        await until(lambda: all(request.completion_tokens >= 0.75 * steps for request in requests))
        assert engine._loop._pays_to_read_first() is pays
        runner.resume()
        for request in requests:
            await collect(request)
        # What comes next under the grammar starts as these went on.
        runner.pause()
        request = submit(engine, grammar, "later", max_tokens=300)
        runner.allow(2)
        await until(lambda: request.completion_tokens > 0)
        assert engine._loop._pays_to_read_first() is pays
        runner.resume()
        await collect(request)


async def test_each_row_sees_its_own_mask_while_others_come_and_go() -> None:
    """D1: plain rows are never masked, constrained ones never with another's mask."""
    async with running(num_pages=600, max_running=16) as (engine, _):
        letters = [await compiled(engine, {"type": "string", "pattern": f"^{c}{{4,9}}$"}) for c in "pqrs"]

        async def one(number: int) -> None:
            kind = number % 5
            grammar = letters[kind] if kind < 4 else None
            request = submit(engine, grammar, f"{number}", max_tokens=20)
            if number % 7 == 3:
                await asyncio.sleep(0)
                engine.abort(request)
                await collect(request)
                return
            (output,) = await collect(request)
            if grammar is None:
                assert output.token_ids == hashed_tokens(str(number).encode(), 20)
            else:
                assert set(json.loads(output.text)) == {"pqrs"[kind]}

        await asyncio.gather(*map(one, range(80)))


async def test_the_end_is_not_sampled_where_nothing_else_may_follow() -> None:
    async with running() as (engine, _):
        closed = await compiled(
            engine, {"type": "array", "items": {"const": 7}, "minItems": 1, "maxItems": 1}
        )
        (output,) = await collect(submit(engine, closed))
        assert (output.finish_reason, bytes(output.token_ids)) == ("stop", b"[7]")


async def test_a_whole_sentence_ends_even_if_the_model_wants_to_go_on() -> None:
    """C2, C4: after the value only end-of-sequence is legal, and `min_tokens` gives way."""
    async with running(script=lambda row: ord(" ")) as (engine, _):
        grammar = await compiled(engine, {"const": {"a": 1}})
        (output,) = await collect(submit(engine, grammar, min_tokens=64, ignore_eos=True))
        assert (json.loads(output.text), output.finish_reason) == ({"a": 1}, "stop")


class Watched:
    """A grammar whose matchers note for how many tokens each mask was filled, and each token accepted."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self.nbytes = grammar.nbytes
        self.min_tokens = grammar.min_tokens
        self.notes: list[list[tuple[str, int]]] = []

    def matcher(self) -> Matcher:
        matcher = self._grammar.matcher()
        fill, accept = matcher.fill_mask, matcher.accept_within
        notes: list[tuple[str, int]] = []
        self.notes.append(notes)

        def fill_mask(row: MaskRow) -> None:
            notes.append(("mask", matcher.num_tokens))
            fill(row)

        def accept_within(token_id: int, budget: int) -> int | None:
            notes.append(("accept", matcher.num_tokens))
            return accept(token_id, budget)

        for name, value in (
            ("kept_mask", lambda: None),
            ("fill_mask", fill_mask),
            ("accept_within", accept_within),
            ("forced_tokens", list),
        ):
            setattr(matcher, name, value)
        return matcher


async def test_a_mask_is_filled_once_the_tokens_before_it_are_accepted() -> None:
    """D3: also where the forward pass of a step runs while its masks are filled."""
    async with running(num_pages=400, max_running=8) as (engine, _):
        grammar = Watched(await compiled(engine, PERSON))
        requests = [submit(engine, grammar, f"{n}") for n in range(5)]
        free = submit(engine, None, "free", max_tokens=30)
        outputs = [(await collect(request))[0] for request in requests]
        assert (await collect(free))[0].token_ids == hashed_tokens(b"free", 30)
    assert len(grammar.notes) == 5
    lengths = sorted(len(notes) // 2 for notes in grammar.notes)
    assert lengths == sorted(request.completion_tokens for request in requests)
    for notes in grammar.notes:
        assert notes == [(what, n) for n in range(len(notes) // 2) for what in ("mask", "accept")]
    assert all(set(json.loads(output.text)) == set(PERSON["properties"]) for output in outputs)  # type: ignore[call-overload]


async def test_choices_have_matchers_of_their_own() -> None:
    """D5"""

    def script(row: SampleRow) -> int:
        return ord("ab"[row.seed - row.params.seed])

    async with running(script=script, num_pages=200) as (engine, _):
        grammar = await compiled(engine, {"enum": ["a" * 9, "b" * 7]})
        outputs = await collect(submit(engine, grammar, choices=2))
        assert [json.loads(output.text) for output in outputs] == ["a" * 9, "b" * 7]


async def test_a_preempted_matcher_is_neither_reset_nor_fed_twice() -> None:
    """D6"""
    async with running(num_pages=30, max_running=8) as (engine, _):
        grammar = Unforced(await compiled(engine, PERSON))
        requests = [submit(engine, grammar, f"{n}", max_tokens=90) for n in range(6)]
        outputs = [(await collect(request))[0] for request in requests]
        assert engine.stats.preemptions > 0
        for output in outputs:
            assert set(json.loads(output.text)) == set(PERSON["properties"])  # type: ignore[call-overload]


@pytest.mark.parametrize("budget", range(1, 90, 4))
async def test_output_is_whole_whatever_the_budget(budget: int) -> None:
    async with running(num_pages=100) as (engine, _):
        grammar = await compiled(engine, PERSON)
        assert grammar.min_tokens is not None
        if budget < grammar.min_tokens:
            with pytest.raises(InvalidRequestError, match=rf"has {grammar.min_tokens} tokens") as refused:
                submit(engine, grammar, max_tokens=budget)
            assert refused.value.param == "max_tokens"
            return
        (output,) = await collect(submit(engine, grammar, max_tokens=budget))
        jsonschema.validate(json.loads(output.text), PERSON)
        assert len(output.token_ids) <= budget


async def test_endless_output_is_ended_within_the_budget() -> None:
    async with running(script=lambda row: ord("["), num_pages=100) as (engine, _):
        nested = {"type": "array", "items": {"$ref": "#"}}
        (output,) = await collect(submit(engine, await compiled(engine, nested), max_tokens=21))
        assert (output.text, output.finish_reason) == ("[" * 10 + "]" * 10, "length")


async def test_output_may_be_cut_off_where_that_is_wanted() -> None:
    async with running(num_pages=100) as (engine, _):
        grammar = await compiled(engine, PERSON)
        (output,) = await collect(submit(engine, grammar, max_tokens=20, ensure_complete=False))
        assert output.text.startswith('{"first_name":"')
        assert (len(output.token_ids), output.finish_reason) == (20, "length")


class RefusingMatcher:
    """Allows every token in its mask and then accepts none."""

    num_tokens = 0
    is_complete = is_exhausted = is_terminated = False

    def kept_mask(self) -> None:
        return None

    def fill_mask(self, row: MaskRow) -> None:
        row[:] = -1

    def accept_within(self, token_id: int, budget: int) -> int | None:
        return None

    def forced_tokens(self) -> list[int]:
        return []


class RefusingGrammar:
    nbytes = 0
    min_tokens = None

    def matcher(self) -> Any:
        return RefusingMatcher()


async def test_a_refused_token_ends_its_request_with_an_error() -> None:
    """C7"""
    async with running() as (engine, _):
        refused = submit(engine, RefusingGrammar(), "r")
        plain = submit(engine, None, "p", max_tokens=9)
        (output,) = await collect(refused)
        assert output.finish_reason == "error"
        assert output.error == f"the grammar refused the sampled token {hashed_tokens(b'r', 1)[0]}"
        assert (await collect(plain))[0].token_ids == hashed_tokens(b"p", 9)


async def test_logprobs_are_given_for_every_token_of_a_constrained_text() -> None:
    async with running(num_pages=100) as (engine, _):
        grammar = await compiled(engine, PERSON)
        (output,) = await collect(submit(engine, grammar, logprobs=2))
        assert [entry.token_id for entry in output.logprobs] == output.token_ids


async def test_an_abort_while_a_step_waits_for_its_mask_does_no_harm() -> None:
    async with running(num_pages=100) as (engine, runner):
        grammar = Unforced(await compiled(engine, PERSON))
        runner.pause()
        requests = [submit(engine, grammar, f"{n}") for n in range(6)]
        runner.allow(3)
        await until(lambda: requests[0].completion_tokens == 2)
        engine.abort(requests[0])
        runner.resume()
        for request in requests[1:]:
            (output,) = await collect(request)
            assert set(json.loads(output.text)) == set(PERSON["properties"])  # type: ignore[call-overload]


def test_the_fake_vocabulary_is_narrower_than_its_logits() -> None:
    """So that bits beyond the vocabulary are looked at by the tests above."""
    assert IM_END < VOCAB_SIZE - 1
