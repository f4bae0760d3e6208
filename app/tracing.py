"""A trace of every generating request: OpenTelemetry's `gen_ai.*` conventions, W3C trace context in and out.

The server's span has a child for each phase of each sequence (queue, prefill, decode), made from the
engine's own timings once the request is over: tracing costs the step loop nothing. No span holds text.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from opentelemetry.context import Context
from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    TracerProvider,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.generation import Generation
from app.request_info import RequestInfo
from engine.params import SamplingParams
from engine.request import Sequence

_OPERATIONS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion"}
_PROPAGATOR = TraceContextTextMapPropagator()


class Tracing:
    """ASGI middleware, within the one that makes `RequestInfo`."""

    def __init__(self, app: ASGIApp, provider: TracerProvider) -> None:
        self._app = app
        self._tracer = provider.get_tracer("radish")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        operation = _OPERATIONS.get(scope["path"]) if scope["type"] == "http" else None
        if operation is None:
            await self._app(scope, receive, send)
            return
        info: RequestInfo = scope["radish"]
        parent = _PROPAGATOR.extract(dict(Headers(scope=scope)))
        span = self._tracer.start_span(operation, parent, SpanKind.SERVER)
        context = set_span_in_context(span)
        info.trace_id = format(span.get_span_context().trace_id, "032x")

        async def send_with_trace(message: Message) -> None:
            if message["type"] == "http.response.start":
                carrier: dict[str, str] = {}
                _PROPAGATOR.inject(carrier, context)
                # W3C Trace Context, level 2: the response tells which trace and span answered.
                MutableHeaders(scope=message)["traceresponse"] = carrier["traceparent"]
            await send(message)

        try:
            await self._app(scope, receive, send_with_trace)
        except BaseException as error:
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR))
            raise
        finally:
            self._describe(span, context, operation, info, scope["app"].state.radish.model_name)
            span.end()

    def _describe(self, span: Span, context: Context, operation: str, info: RequestInfo, model: str) -> None:
        span.set_attributes(
            {
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": "radish",
                "http.request.method": info.method,
                "url.path": info.path,
            }
        )
        if info.status is not None:
            span.set_attribute("http.response.status_code", info.status)
            if info.status >= 400:
                span.set_attribute("error.type", str(info.status))
            if info.status >= 500:
                span.set_status(Status(StatusCode.ERROR))
        if info.generation is not None:
            span.update_name(f"{operation} {model}")
            span.set_attributes(dict(_attributes(info.generation, model)))
            if "error" in _reasons(info.generation):
                span.set_attribute("error.type", "generation_failed")
                span.set_status(Status(StatusCode.ERROR))
            for request in info.generation.requests:
                for sequence in request.sequences:
                    _add_phases(self._tracer, context, sequence)


def _attributes(generation: Generation, model: str) -> Iterator[tuple[str, AttributeValue]]:
    usage = generation.usage()
    yield "gen_ai.request.model", model
    yield "gen_ai.response.model", model
    yield "gen_ai.response.id", generation.request_id
    yield "gen_ai.response.finish_reasons", _reasons(generation)
    yield "gen_ai.usage.input_tokens", usage.prompt_tokens
    yield "gen_ai.usage.output_tokens", usage.completion_tokens
    yield "gen_ai.usage.cache_read.input_tokens", usage.prompt_tokens_details.cached_tokens
    first = generation.requests[0]
    if len(first.sequences) > 1:
        yield "gen_ai.request.choice.count", len(first.sequences)
    if first.sequences[0].matcher is not None:
        yield "gen_ai.output.type", "json"
    yield from _parameters(first.params)


def _parameters(params: SamplingParams) -> Iterator[tuple[str, AttributeValue]]:
    for name in (
        "temperature",
        "top_p",
        "top_k",
        "max_tokens",
        "presence_penalty",
        "frequency_penalty",
        "seed",
    ):
        yield f"gen_ai.request.{name}", getattr(params, name)
    if params.stop:
        yield "gen_ai.request.stop_sequences", list(params.stop)


def _reasons(generation: Generation) -> list[str]:
    return [
        sequence.finish_reason or "unfinished"
        for request in generation.requests
        for sequence in request.sequences
    ]


def _add_phases(tracer: Tracer, context: Context, sequence: Sequence) -> None:
    """Spans from one moment of the sequence's life to the next, as far as it came."""
    timing = sequence.timing
    ends = {
        "queue": timing.admitted,
        "prefill": timing.first_token,
        "decode": timing.last_token if timing.first_token else 0.0,
    }
    start = timing.arrived
    for name, end in ends.items():
        reached = end or timing.finished
        span = tracer.start_span(
            name,
            context,
            start_time=_unix_ns(start),
            attributes={"radish.sequence": sequence.index, "radish.preemptions": sequence.preemptions},
        )
        span.end(_unix_ns(reached))
        if not end:
            return
        start = end


def _unix_ns(monotonic_s: float) -> int:
    return time.time_ns() - time.monotonic_ns() + int(monotonic_s * 1e9)
