"""The way to the end of a text in tokens, one at a time and each kept at the place where it is taken.

Ways that come to the same place go on from there together, so a way is spelled out only up to a place whose
own way is known: in a list of strings, up to the end of the string.
"""

from __future__ import annotations

from typing import TypeVar

from llguidance import LLMatcher

from grammars.states import State, States, Step, note_dead_end, note_end, note_way
from grammars.tracking import NoCloseError, OffGrammarError, RepeatedError
from grammars.vocab import Vocabulary

P = TypeVar("P")


def find_way(states: States[P], state: State[P], matcher: LLMatcher, vocabulary: Vocabulary) -> None:
    """Look for the way to the end from a state, and note it there (`State.left`).

    It takes no more tokens than a shortest end has bytes.

    Args:
        matcher: the engine's, at the state; it is used up.
    """
    try:
        text = states.close(state)
    except NoCloseError:
        note_dead_end(state)
        return
    here, steps = state, []
    while text and (here.left is None or here.left > len(text)):
        step = _step(states, here, text, matcher, vocabulary)
        if step is None:
            # What the engine fails at, it may not fail at another time.
            if not matcher.is_error():
                note_dead_end(state)
            return
        steps.append((here, step))
        here, text = step.state, text[len(step.data) :]
    if not text:
        if not matcher.is_accepting():
            # A tracker may know less than the engine.
            note_dead_end(state)
            return
        note_end(here)
    note_way(steps)


def try_way(
    states: States[P], state: State[P], text: bytes, matcher: LLMatcher, vocabulary: Vocabulary
) -> None:
    """Note the way along `text` if it takes fewer tokens than the one that is known from a state.

    Args:
        matcher: the engine's, at the state; it is used up.
    """
    here, steps = state, []
    while text:
        step = _step(states, here, text, matcher, vocabulary)
        if step is None:
            return
        steps.append((here, step))
        here, text = step.state, text[len(step.data) :]
    if matcher.is_accepting():
        note_end(here)
        note_way(steps)


def _step(
    states: States[P], state: State[P], text: bytes, matcher: LLMatcher, vocabulary: Vocabulary
) -> Step[P] | None:
    """The first of the tokens that `text` is spelled with: one that the engine dictates, or the longest."""
    forced = matcher.compute_ff_tokens()
    token_id = forced[0] if forced else vocabulary.spellings.longest(text)
    data = b"" if token_id is None else vocabulary.token_bytes[token_id]
    if token_id is None or not data or not text.startswith(data):
        return None
    if matcher.try_consume_tokens([token_id]) != 1:
        return None
    try:
        return Step(token_id, data, states.after(state, data))
    except (OffGrammarError, RepeatedError):
        return None
