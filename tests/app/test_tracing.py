"""Traces, taken by a collector in this process."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from app.trace_export import exporting_provider
from tests.app.harness import Served, serving, until
from tests.fakes import say

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector(InMemorySpanExporter):
    """Keeps the spans of this process."""

    async def spans(self, count: int) -> list[ReadableSpan]:
        """Wait for the request's `count` spans: its own is ended after the last byte was sent."""
        await until(lambda: len(self.get_finished_spans()) >= count)
        spans = list(self.get_finished_spans())
        self.clear()
        assert len(spans) == count
        return spans


@pytest.fixture
def collector() -> Collector:
    return Collector()


@pytest.fixture
async def traced(collector: Collector) -> AsyncIterator[Served]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(collector))
    async with serving(tracing=provider) as served:
        yield served
    provider.shutdown()


async def test_a_chat_is_one_trace_that_continues_the_clients(traced: Served, collector: Collector) -> None:
    traced.runner.script = say("hello")
    response = await traced.http.post(
        "/v1/chat/completions",
        json={
            "model": "fake",
            "messages": [{"role": "user", "content": "secret words"}],
            "temperature": 0.5,
            "top_p": 0.9,
            "seed": 7,
            "max_tokens": 20,
            "stop": ["END"],
        },
        headers={"traceparent": f"00-{TRACE}-{PARENT}-01"},
    )
    *phases, server = await collector.spans(4)
    assert server.context is not None
    assert server.parent is not None
    assert (server.name, server.kind) == ("chat fake", SpanKind.SERVER)
    assert format(server.context.trace_id, "032x") == TRACE
    assert format(server.parent.span_id, "016x") == PARENT
    assert response.headers["traceresponse"] == f"00-{TRACE}-{server.context.span_id:016x}-01"
    body = response.json()
    assert dict(server.attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "radish",
        "http.request.method": "POST",
        "url.path": "/v1/chat/completions",
        "http.response.status_code": 200,
        "gen_ai.request.model": "fake",
        "gen_ai.response.model": "fake",
        "gen_ai.response.id": body["id"],
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": body["usage"]["prompt_tokens"],
        "gen_ai.usage.output_tokens": 6,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 0,
        "gen_ai.request.max_tokens": 20,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.seed": 7,
        "gen_ai.request.stop_sequences": ("END",),
    }
    assert [phase.name for phase in phases] == ["queue", "prefill", "decode"]
    for phase in phases:
        assert phase.parent is not None
        assert phase.parent.span_id == server.context.span_id
    assert phases[0].end_time == pytest.approx(phases[1].start_time, abs=1e6)
    assert phases[1].end_time == pytest.approx(phases[2].start_time, abs=1e6)
    assert server.start_time is not None
    assert phases[0].start_time is not None
    assert phases[2].end_time is not None
    assert server.end_time is not None
    assert (
        server.start_time <= phases[0].start_time + 1e6 <= phases[2].end_time + 2e6 <= server.end_time + 3e6
    )
    assert not any("secret" in span.to_json() for span in [*phases, server])


async def test_a_refusal_is_a_span_with_its_status(traced: Served, collector: Collector) -> None:
    await traced.complete("x", max_tokens=-1)
    (span,) = await collector.spans(1)
    attributes = span.attributes or {}
    assert (attributes["http.response.status_code"], attributes["error.type"]) == (400, "400")
    assert span.status.status_code is StatusCode.UNSET  # the client's fault, by the HTTP conventions


async def test_a_failed_step_is_an_error(traced: Served, collector: Collector) -> None:
    traced.runner.fails = lambda batch: True
    response = await traced.complete("x", max_tokens=5, stream=True)
    assert response.status_code == 200
    span = (await collector.spans(3))[-1]
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["gen_ai.response.finish_reasons"] == ("error",)


async def test_a_client_that_leaves_ends_its_trace(traced: Served, collector: Collector) -> None:
    traced.runner.pause()
    asking = asyncio.create_task(traced.complete("x", max_tokens=50))
    await until(lambda: traced.engine.load().running == 1)
    asking.cancel()
    spans = await collector.spans(3)
    traced.runner.resume()
    assert [span.name for span in spans] == ["queue", "prefill", "text_completion fake"]
    assert (spans[-1].attributes or {})["gen_ai.response.finish_reasons"] == ("abort",)


async def test_each_choice_has_its_phases_and_other_paths_no_trace(
    traced: Served, collector: Collector
) -> None:
    await traced.http.get("/metrics")
    await traced.complete("x", max_tokens=2, n=2)
    spans = await collector.spans(7)
    indices = [(span.attributes or {})["radish.sequence"] for span in spans[:-1]]
    assert sorted(map(int, map(str, indices))) == [0, 0, 0, 1, 1, 1]
    assert (spans[-1].attributes or {})["gen_ai.request.choice.count"] == 2


def test_traces_are_sent_to_a_collector() -> None:
    received: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            received.append((self.path, body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # as the base class names it
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        provider = exporting_provider(f"http://127.0.0.1:{server.server_port}/v1/traces")
        provider.get_tracer("test").start_span("a span").end()
        provider.shutdown()
        server.shutdown()
        thread.join()
    ((path, body),) = received
    assert path == "/v1/traces"
    (sent,) = ExportTraceServiceRequest.FromString(body).resource_spans
    assert [span.name for span in sent.scope_spans[0].spans] == ["a span"]
    assert [item.value.string_value for item in sent.resource.attributes if item.key == "service.name"] == [
        "radish"
    ]
