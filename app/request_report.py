"""What happened to a request: how long it waited, what was found cached, where its time went."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from engine.request import Request
from engine.snapshot import SequenceView, view
from engine.timeline import Span


class Stretch(msgspec.Struct, kw_only=True):
    """A stretch of time, in milliseconds since the request arrived."""

    kind: str
    """queued; prefill, one chunk of the prompt; recompute, after a preemption; decode; stalled."""
    start_ms: float
    end_ms: float
    tokens: int
    steps: int
    slowest_step_ms: float


class ChoiceReport(msgspec.Struct, kw_only=True):
    prompt: int
    """Which of the request's prompts, from 0."""
    index: int
    """Which of that prompt's choices, from 0."""
    state: str
    """waiting, running, or why it ended."""
    prompt_tokens: int
    cached_tokens: int
    """Where its prefix left the tree: that many tokens of the prompt were found cached."""
    output_tokens: int
    preemptions: int
    queued_ms: float | None
    """null while it has not started."""
    chunks: int
    """In how many pieces the prompt was computed."""
    slowest_step_ms: float
    timeline: list[Stretch]


class RequestReport(msgspec.Struct, kw_only=True):
    id: str
    choices: list[ChoiceReport]


def report(id_: str, views: Iterable[SequenceView]) -> RequestReport | None:
    """Of the answer with that id, from all that is known; None if nothing is."""
    choices = [
        _choice(view, int(prompt))
        for view in views
        for answer, _, prompt in (view.request.rpartition("-"),)
        if answer == id_
    ]
    choices.sort(key=lambda choice: (choice.prompt, choice.index))
    return RequestReport(id=id_, choices=choices) if choices else None


def report_of(id_: str, requests: Iterable[Request]) -> RequestReport:
    """Of the requests behind one answer, as they are now."""
    choices = [
        _choice(view(sequence), prompt)
        for prompt, request in enumerate(requests)
        for sequence in request.sequences
    ]
    return RequestReport(id=id_, choices=choices)


def _choice(view: SequenceView, prompt: int) -> ChoiceReport:
    spans = view.spans
    return ChoiceReport(
        prompt=prompt,
        index=view.index,
        state=view.state,
        prompt_tokens=view.prompt_tokens,
        cached_tokens=view.cached_tokens,
        output_tokens=view.output_tokens,
        preemptions=view.preemptions,
        queued_ms=_ms(spans[0].end - spans[0].start) if spans else None,
        chunks=sum(span.kind == "prefill" for span in spans),
        slowest_step_ms=_ms(max((span.slowest for span in spans), default=0.0)),
        timeline=[_stretch(span, view.arrived) for span in spans],
    )


def _stretch(span: Span, arrived: float) -> Stretch:
    return Stretch(
        kind=span.kind,
        start_ms=_ms(span.start - arrived),
        end_ms=_ms(span.end - arrived),
        tokens=span.tokens,
        steps=span.steps,
        slowest_step_ms=_ms(span.slowest),
    )


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
