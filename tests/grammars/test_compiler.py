"""Compiling: limits, sharing, cancellation, isolation."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from grammars.allowance import Allowance
from grammars.base import GrammarError, GrammarTooComplexError
from grammars.compiler import Compiler
from grammars.llg import LlgGrammar
from grammars.lower import lower
from grammars.spec import Constraint
from grammars.vocab import Vocabulary
from grammars.worker import Refused
from tests.grammars.driver import accepts, feed

INTEGER = Constraint.json_schema({"type": "integer"})
_GROWING = Constraint.json_schema({"type": "string", "pattern": "^(?!.*a.{15}b).*$"})


@pytest.fixture
def fresh(vocabulary: Vocabulary) -> Iterator[Compiler]:
    compiler = Compiler(vocabulary, timeout_s=5.0, cache_bytes=1 << 28)
    yield compiler
    compiler.close()


async def test_equal_constraints_share_one_compilation(fresh: Compiler) -> None:
    grammars = await asyncio.gather(*(fresh.compile(INTEGER) for _ in range(8)))
    assert all(grammar is grammars[0] for grammar in grammars)
    assert (fresh.num_compiled, fresh.num_hits) == (1, 7)
    assert fresh.compile_seconds > 0


async def test_the_order_of_properties_is_part_of_the_key(fresh: Compiler, vocabulary: Vocabulary) -> None:
    names = ["zebra", "apple", "mango"]
    for order in (names, sorted(names)):
        schema = {"type": "object", "properties": {n: {"type": "integer"} for n in order}, "required": names}
        grammar = await fresh.compile(Constraint.json_schema(schema))
        assert accepts(grammar, vocabulary, "{" + ",".join(f'"{n}":1' for n in order) + "}")
        assert not accepts(grammar, vocabulary, "{" + ",".join(f'"{n}":1' for n in order[::-1]) + "}")
    assert fresh.num_compiled == 2


async def test_a_cancelled_caller_leaves_the_others_alone(fresh: Compiler) -> None:
    first = asyncio.ensure_future(fresh.compile(INTEGER))
    second = asyncio.ensure_future(fresh.compile(INTEGER))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert (await second).nbytes > 0
    assert fresh.num_compiled == 1


async def test_a_refusal_is_remembered(fresh: Compiler) -> None:
    constraint = Constraint.json_schema({"type": "nonsense"})
    for _ in range(2):
        with pytest.raises(GrammarError):
            await fresh.compile(constraint)
    assert fresh.num_refused == 1
    await fresh.compile(INTEGER)


async def test_the_cache_is_bounded_and_grammars_in_use_are_not_lost(vocabulary: Vocabulary) -> None:
    most = 12 << 20
    compiler = Compiler(vocabulary, timeout_s=5.0, cache_bytes=most)
    others = [Constraint.json_schema({"type": "integer", "minimum": bound}) for bound in range(12)]
    try:
        kept = await compiler.compile(INTEGER)
        matcher = kept.matcher()
        for constraint in others:
            grammar = await compiler.compile(constraint)
            feed(grammar.matcher(), vocabulary, "12345")
            assert 0 < compiler.cached_bytes <= most
        # In use, so found, whatever came after it; the last one was used last, the first one is gone.
        assert await compiler.compile(INTEGER) is kept
        assert matcher.accept(vocabulary.encode("7")[0])
        assert (compiler.num_compiled, compiler.num_hits) == (13, 1)
        await compiler.compile(others[-1])
        assert (compiler.num_compiled, compiler.num_hits) == (13, 2)
        await compiler.compile(others[0])
        assert (compiler.num_compiled, compiler.num_hits) == (14, 2)
    finally:
        compiler.close()


async def test_a_grammar_that_is_used_again_outlives_others(vocabulary: Vocabulary) -> None:
    compiler = Compiler(vocabulary, timeout_s=5.0, cache_bytes=12 << 20)
    try:
        for bound in range(12):
            await compiler.compile(INTEGER)
            await compiler.compile(Constraint.json_schema({"type": "integer", "minimum": bound}))
        assert (compiler.num_compiled, compiler.num_hits) == (13, 11)
    finally:
        compiler.close()


async def test_the_key_is_the_text_of_the_constraint(fresh: Compiler) -> None:
    """As sent by a client, that is, without the blanks of its JSON."""
    schema = {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}}
    grammar = await fresh.compile(Constraint.json_schema(schema))
    for text in (json.dumps(schema), json.dumps(schema, indent=2)):
        assert await fresh.compile(Constraint.json_schema(json.loads(text))) is grammar
    # A schema that a client sends as text is taken as it is.
    assert await fresh.compile(Constraint.json_schema(json.dumps(schema, indent=2))) is not grammar


async def test_what_could_not_be_ended_within_a_budget_is_refused(fresh: Compiler) -> None:
    """Distinct arrays of booleans grow long, and are searched for within limits only."""
    schema = {"items": {"type": "array", "items": {"type": "boolean"}}, "uniqueItems": True, "type": "array"}
    few = await fresh.compile(Constraint.json_schema({**schema, "minItems": 4}))
    assert few.min_tokens is not None
    with pytest.raises(GrammarError, match="none could be ended") as refusal:
        await fresh.compile(Constraint.json_schema({**schema, "minItems": 60}))
    assert (refusal.value.keyword, refusal.value.pointer) == ("uniqueItems", "/uniqueItems")


async def test_the_time_limit_kills_and_the_next_constraint_compiles(vocabulary: Vocabulary) -> None:
    compiler = Compiler(vocabulary, timeout_s=0.5, cache_bytes=1 << 20)
    # An automaton with as many states, built by code that nothing can interrupt.
    endless = 'start: %json {"type": "integer", "multipleOf": 123456789}'
    try:
        with pytest.raises(GrammarTooComplexError, match=r"within 0\.5 s"):
            await compiler.compile(Constraint(kind="lark", spec=endless))
        compiler._timeout_s = 5.0
        assert accepts(await compiler.compile(INTEGER), vocabulary, "7")
    finally:
        compiler.close()


def _many_words(max_length: int) -> Constraint:
    """A string whose automaton counts words and characters at once."""
    pattern = r"^$|(^(?:\S+\s+){0,99}\S+$)"
    schema = {
        "type": "object",
        "properties": {"q": {"type": "string", "maxLength": max_length, "pattern": pattern}},
        "required": ["q"],
    }
    return Constraint.json_schema(schema)


def test_running_out_of_lexer_fuel_stays_with_one_sequence(vocabulary: Vocabulary) -> None:
    """Copies of one native matcher share a lexer, and its error is for ever: new ones must not have it."""
    grammar = LlgGrammar(vocabulary, lower(_many_words(1000)))
    first, second = grammar.matcher(), grammar.matcher()
    text = json.dumps({"q": "seven words and some more of them"}, separators=(",", ":"))
    assert feed(first, vocabulary, text[:20])
    assert grammar.heavy
    assert feed(second, vocabulary, text)
    assert second.is_complete
    assert feed(first, vocabulary, text[20:])
    assert first.is_complete


async def test_a_grammar_that_is_too_slow_to_follow_is_refused(compiler: Compiler) -> None:
    with pytest.raises(GrammarError, match="too many"):
        await compiler.compile(_many_words(5000))


async def test_what_only_longer_texts_are_too_much_for_is_refused(compiler: Compiler) -> None:
    """The first text that is tried ends at once; what the engine keeps track of grows with each character."""
    with pytest.raises(GrammarError, match="too many states") as refusal:
        await compiler.compile(_GROWING)
    assert (refusal.value.keyword, refusal.value.pointer) == ("pattern", "/pattern")


def test_a_place_that_cannot_be_followed_is_told_of(vocabulary: Vocabulary) -> None:
    """A mask of nothing would look as if the model had gone wrong."""
    matcher = LlgGrammar(vocabulary, lower(_GROWING)).matcher()
    with pytest.raises(GrammarError, match="too complex to be followed"):
        feed(matcher, vocabulary, '"])) sample of what is far too much to keep track of"')


async def test_workers_are_of_the_session_but_not_interrupted_with_it(fresh: Compiler) -> None:
    others = set(psutil.Process().children())
    await fresh.compile(INTEGER)
    (worker,) = set(psutil.Process().children()) - others
    assert os.getsid(worker.pid) == os.getsid(0)
    assert os.getpgid(worker.pid) == worker.pid


def test_who_takes_long_leaves_the_processor_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grammars.allowance._EARNED", 1e9)
    allowance = Allowance()

    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def long() -> Refused:
        before = priority()
        while priority() == before:
            time.sleep(0.001)
        return Refused(f"{before} {priority()}")

    normal = priority()
    assert allowance.run(lambda: Refused(str(priority()))) == Refused(str(normal))
    assert allowance.run(long) == Refused(f"{normal} 19")
    assert priority() == normal


def test_work_that_ends_before_it_becomes_nice_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()

    def too_late(*_: int) -> None:
        done.set()
        raise ProcessLookupError

    monkeypatch.setattr("os.setpriority", too_late)

    def work() -> Refused:
        done.wait()
        return Refused("answered")

    assert Allowance().run(work) == Refused("answered")
