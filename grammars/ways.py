"""The way to the end of a text in tokens, one at a time and each kept at the place where it is taken.

Ways that come to the same place go on from there together, so a way is spelled out only up to a place whose
own way is known: in a list of strings, up to the end of the string.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from llguidance import LLMatcher

from grammars.states import State, States, Step, note_dead_end, note_end, note_way
from grammars.tracking import NoCloseError, OffGrammarError, RepeatedError
from grammars.vocab import Vocabulary

P = TypeVar("P")

_LONG = 512
"""With so many bytes to go, a way that is known is joined at once, though it may cost a token more."""


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
    here = state
    steps: list[tuple[State[P], Step[P]]] = []
    while text and (here.left is None or here.left > len(text)):
        piece = _joining(states, here, text, vocabulary) if len(text) > _LONG and not steps else text
        step = _step(states, here, text, matcher, vocabulary, piece=piece)
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
    states: States[P], state: State[P], tokens: Sequence[int], matcher: LLMatcher, vocabulary: Vocabulary
) -> None:
    """Note the way along some tokens, as `dictated`, if it is shorter than the known one from a state.

    Args:
        matcher: the engine's, at the state; it is used up.
    """
    here, steps = state, []
    for token_id in dictated(tokens, matcher, vocabulary) or ():
        data = vocabulary.token_bytes[token_id]
        try:
            step = Step(token_id, data, states.after(here, data))
        except (OffGrammarError, RepeatedError):
            return
        steps.append((here, step))
        here = step.state
    if steps:
        note_end(here)
        note_way(steps)


def dictated(tokens: Sequence[int], matcher: LLMatcher, vocabulary: Vocabulary) -> list[int] | None:
    """The same text in the tokens that the engine dictates, and some of the given ones where it does not.

    None if the engine does not take the text as a whole one.

    Args:
        matcher: the engine's; it is used up.
    """
    texts = vocabulary.token_bytes
    found: list[int] = []
    left, at = tokens, 0
    while at < len(left):
        forced = matcher.compute_ff_tokens()
        token_id = forced[0] if forced else left[at]
        if token_id == left[at]:
            at += 1
        else:
            text = b"".join(texts[token] for token in left[at:])
            spelled = vocabulary.spellings.fewest(text[len(texts[token_id]) :])
            if spelled is None or not text.startswith(texts[token_id]):
                return None
            left, at = spelled, 0
        if matcher.try_consume_tokens([token_id]) != 1:
            return None
        found.append(token_id)
    return found if matcher.is_accepting() else None


def _step(
    states: States[P],
    state: State[P],
    text: bytes,
    matcher: LLMatcher,
    vocabulary: Vocabulary,
    *,
    piece: bytes,
) -> Step[P] | None:
    """The first of the tokens that `text` is spelled with: one that the engine dictates, or the longest.

    Args:
        text: an end that is known to be one.
        piece: the beginning of it that the longest may be of.
    """
    forced = matcher.compute_ff_tokens()
    token_id = forced[0] if forced else vocabulary.spellings.longest(piece)
    data = b"" if token_id is None else vocabulary.token_bytes[token_id]
    if token_id is None or not data or not text.startswith(data):
        return None
    if matcher.try_consume_tokens([token_id]) != 1:
        return None
    try:
        return Step(token_id, data, states.after(state, data, ends=True))
    except (OffGrammarError, RepeatedError):
        return None


def _joining(states: States[P], here: State[P], text: bytes, vocabulary: Vocabulary) -> bytes:
    """The longest token of `text` that leads to a place whose way is known; all of it if none does."""
    piece = text
    while (token_id := vocabulary.spellings.longest(piece)) is not None:
        piece = vocabulary.token_bytes[token_id]
        try:
            left = states.after(here, piece, ends=True).left
        except (OffGrammarError, RepeatedError):
            return text
        if left is not None and left < math.inf:
            return piece
        piece = piece[:-1]
    return text
