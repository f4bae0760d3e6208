"""Compiles grammars in a process of its own, which may be killed and has a memory ceiling.

The parent sends a `Setup`, waits for an empty answer, then sends one `Task` after another and gets a
`Checked` or a `Refused` for each. A schema is untrusted input and native code cannot be interrupted:
whatever it does to this process, the server stays up. Nor do streams wait for it: who asks for much
gets what processor time others leave.
"""

from __future__ import annotations

import gc
import json
import pickle
import random
import resource
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection

import msgspec
from llguidance import LLMatcher

from grammars.allowance import Allowance
from grammars.base import GrammarError, UnsatisfiableError
from grammars.blame import ENDLESS, are_for_the_same, in_copy, is_placed, placed, seconds_of_copies
from grammars.few_tokens import few_tokens
from grammars.llg import LlgGrammar, complaint, limits
from grammars.lower import Lowered, lower
from grammars.schema.document import keyword_at
from grammars.schema.trials import Verdict
from grammars.spec import Constraint, Start
from grammars.vocab import Vocabulary

_PROBE_STEPS = 64
_WALKS = 4
"""A text that ends soon says little, so others are tried, of so many steps together."""
_STEPS_ON = 8
_MOST_STARTS = 128
_QUICK_S = 0.5
"""What is refused in less processor time is tried again without some parts, to tell what it is about."""
_TRIAL_SHARE = 1 / 20
_TRIALS_SHARE = 1 / 3
"""What one trial of what took too long may take of a task's time, and all of them."""


class Task(msgspec.Struct, frozen=True, tag=True):
    """A constraint, and the processor time it may take; this process ends when it takes more."""

    constraint: Constraint
    timeout_s: float


class Blame(msgspec.Struct, frozen=True, tag=True):
    """A constraint that was refused, or took too much, to find the part that is at fault."""

    constraint: Constraint
    message: str
    pointer: str
    timeout_s: float


class Setup(msgspec.Struct, frozen=True):
    """What a worker needs before its first constraint."""

    token_bytes: list[bytes]
    eos_ids: list[int]
    special_ids: list[int]
    width: int
    memory_bytes: int


class Checked(msgspec.Struct, frozen=True, tag=True):
    """A grammar that compiled, had a first mask and survived a random walk.

    `sentences` is pickled, by this process for the one that started it. `way` is as of `few_tokens`.
    """

    source: str
    sentences: bytes
    heavy: bool
    way: list[int]


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The parts of a `GrammarError`.

    `too_complex`: it is a `GrammarTooComplexError`. `slowly`: the part at fault is not known.
    """

    message: str
    pointer: str = ""
    keyword: str | None = None
    too_complex: bool = False
    slowly: bool = False


class SlowlyRefusedError(GrammarError):
    """A refusal that took long, so that it would take long to find the part that it is for."""


def check(constraint: Constraint, vocabulary: Vocabulary) -> Checked:
    """Lower a constraint and try the grammar out.

    Raises:
        GrammarError: it cannot be enforced, or needs more room than a grammar gets.
        SlowlyRefusedError: as well, but the part at fault is not known.
    """
    started = time.thread_time()
    error: GrammarError
    try:
        return _try_out(constraint, vocabulary, leads=True)
    except GrammarError as refusal:
        error = refusal
    if any(start.pointer == error.pointer for start in constraint.starts if start.pointer):
        check(_part(constraint, error.pointer), vocabulary)  # which tells what of it is at fault
    if is_placed(error, constraint):
        raise error
    if time.thread_time() - started > _QUICK_S:
        raise SlowlyRefusedError(error.message, pointer=error.pointer)
    raise placed(error, constraint, lambda other: _verdict(other, vocabulary, error.message))


def _part(constraint: Constraint, pointer: str) -> Constraint:
    """One of the definitions of a schema alone, at its place."""
    definitions = json.loads(constraint.spec)["$defs"]
    spec = json.dumps({"$ref": f"#{pointer}", "$defs": definitions})
    return msgspec.structs.replace(constraint, spec=spec, starts=())


def _verdict(constraint: Constraint, vocabulary: Vocabulary, message: str) -> Verdict:
    """Whether a constraint is taken, or else refused for the same as another."""
    try:
        checked = _try_out(constraint, vocabulary)
        if message == ENDLESS:
            lowered = Lowered(checked.source, pickle.loads(checked.sentences))
            return (
                "same" if LlgGrammar(vocabulary, lowered, heavy=checked.heavy).min_tokens is None else "taken"
            )
    except GrammarError as error:
        return "same" if are_for_the_same(error.message, message) else "other"
    return "taken"


def _try_out(constraint: Constraint, vocabulary: Vocabulary, *, leads: bool = False) -> Checked:
    """Lower and try a constraint; `leads`: look for a way of few tokens as well."""
    try:
        lowered = lower(constraint)
    except RecursionError:
        raise GrammarError("grammar too complex: it nests too deeply") from None
    error = ""
    for heavy in (False, True):
        matcher = LLMatcher(vocabulary.tokenizer, lowered.source, log_level=0, limits=limits(heavy=heavy))
        error = _walk(matcher, vocabulary) or _walk_on(matcher, lowered.starts, vocabulary, all_needed=leads)
        if not error:
            way = few_tokens(lowered.sentences, matcher, vocabulary) if leads and not heavy else []
            return Checked(lowered.source, pickle.dumps(lowered.sentences), heavy, way)
    raise GrammarError(error)


def _walk_on(
    matcher: LLMatcher, starts: tuple[Start, ...], vocabulary: Vocabulary, *, all_needed: bool
) -> str:
    """Follow a few random tokens after each of some beginnings; as `_walk`.

    Raises:
        UnsatisfiableError: nothing can follow one, and `all_needed`.
    """
    for start in starts[:_MOST_STARTS]:
        begun = matcher.deep_copy()
        tokens = vocabulary.encode(start.text)
        if begun.try_consume_tokens(tokens) == len(tokens):
            error = _walk(begun, vocabulary, steps=_STEPS_ON)
            if error:
                return error
        elif begun.is_error():
            return complaint(begun)
        elif all_needed and start.pointer:
            keyword = keyword_at(start.pointer, in_tags=False)
            raise UnsatisfiableError("no value satisfies the schema", pointer=start.pointer, keyword=keyword)
    return ""


def _walk(matcher: LLMatcher, vocabulary: Vocabulary, *, steps: int = _PROBE_STEPS) -> str:
    """Follow random legal tokens, of a few texts; the engine's complaint, or "" when there is none."""
    if matcher.is_error() or matcher.is_stopped():
        return complaint(matcher)
    rng = random.Random(0)
    walker, walks = matcher.deep_copy(), 1
    for step in range(steps):
        token = _random_token(walker.compute_bitmask(), rng)
        if token is None:
            place = "no text satisfies the grammar" if step == 0 else "the grammar has a dead end"
            return complaint(walker) or place
        ended = token in vocabulary.eos_ids
        if not ended:
            walker.consume_token(token)
            ended = walker.is_stopped()
        if walker.is_error() or (ended and walks == _WALKS):
            break
        if ended:
            walker, walks = matcher.deep_copy(), walks + 1
    return complaint(walker)


def _random_token(mask: bytes, rng: random.Random) -> int | None:
    start = rng.randrange(len(mask))
    order: tuple[int, ...] = (*range(start, len(mask)), *range(start))
    index = next((i for i in order if mask[i]), None)
    if index is None:
        return None
    bits: list[int] = [bit for bit in range(8) if mask[index] & 1 << bit]
    return index * 8 + bits[rng.randrange(len(bits))]


def serve(connection: Connection) -> None:
    """Answer until the parent closes the connection."""
    setup = msgspec.msgpack.decode(connection.recv_bytes(), type=Setup)
    resource.setrlimit(resource.RLIMIT_AS, (setup.memory_bytes, setup.memory_bytes))
    vocabulary = Vocabulary(
        setup.token_bytes,
        frozenset(setup.eos_ids),
        frozenset(setup.special_ids),
        setup.width,
        _greedy(setup.token_bytes),
    )
    # Built before the first constraint's clock runs.
    _ = vocabulary.tokenizer, vocabulary.spellings, vocabulary.plain, vocabulary.table
    gc.freeze()  # what is there stays, so no collection need go through it
    connection.send_bytes(b"")
    allowance = Allowance()
    while True:
        try:
            request = connection.recv_bytes()
        except EOFError:
            return
        task = msgspec.msgpack.decode(request, type=Task | Blame)
        # Where nobody handles its signal, the timer ends the process, whatever native code is at.
        signal.setitimer(signal.ITIMER_PROF, task.timeout_s)
        if isinstance(task, Blame):
            answer: Checked | Refused = _blame(task, vocabulary)
        else:
            answer = allowance.run(partial(_answer, task.constraint, vocabulary))
        signal.setitimer(signal.ITIMER_PROF, 0)
        connection.send_bytes(msgspec.msgpack.encode(answer))


def _answer(constraint: Constraint, vocabulary: Vocabulary) -> Checked | Refused:
    try:
        return check(constraint, vocabulary)
    except SlowlyRefusedError as error:
        return Refused(error.message, error.pointer, slowly=True)
    except GrammarError as error:
        return Refused(error.message, error.pointer, error.keyword)
    except MemoryError:
        return Refused("", too_complex=True)


def _blame(task: Blame, vocabulary: Vocabulary) -> Refused:
    """The refusal with the part at fault, as far as it is found in a part of the time of a task."""
    trial_s = task.timeout_s * _TRIAL_SHARE

    # What is worked out but once is so before the clock of a trial runs.
    _verdict(Constraint(kind="json_object"), vocabulary, "")

    def judge(constraint: Constraint) -> Verdict:
        # What ends the copy took too much, as this did.
        return in_copy(lambda: _verdict(constraint, vocabulary, task.message), trial_s) or "same"

    error = placed(
        GrammarError(task.message, pointer=task.pointer),
        task.constraint,
        judge,
        most_s=task.timeout_s * _TRIALS_SHARE,
        clock=seconds_of_copies,
    )
    return Refused(error.message, error.pointer, error.keyword)


def _greedy(token_bytes: list[bytes]) -> Callable[[str], list[int]]:
    """Longest piece first: not how the model's tokenizer splits, but enough to try a grammar out."""
    ids = {text: token_id for token_id, text in enumerate(token_bytes) if text}
    longest = max(map(len, ids))

    def encode(text: str) -> list[int]:
        rest = text.encode()
        tokens = []
        while rest:
            piece = next((rest[:n] for n in range(longest, 0, -1) if rest[:n] in ids), None)
            if piece is None:
                break
            tokens.append(ids[piece])
            rest = rest[len(piece) :]
        return tokens

    return encode


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
