"""Sends traces to a collector; needs the extra `traces`."""

from __future__ import annotations

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor


def exporting_provider(endpoint: str) -> TracerProvider:
    """Spans are sent in batches by a thread of its own, as OTLP over HTTP; `shutdown` sends the rest."""
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: "radish"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return provider
