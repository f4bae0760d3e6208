"""`/metrics` against the engine's own state and against what the clients were given."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.metrics import render
from engine.engine import Engine
from engine.errors import InvalidRequestError, QueueFullError
from grammars.base import GrammarError
from grammars.spec import Constraint
from tests.fakes import FakeRunner, collect, fake_engine, generate_request, say

# The series that vLLM's published Grafana dashboards query.
DASHBOARD_SERIES = {
    "vllm:cache_config_info",
    "vllm:e2e_request_latency_seconds_bucket",
    "vllm:e2e_request_latency_seconds_count",
    "vllm:e2e_request_latency_seconds_sum",
    "vllm:generation_tokens_total",
    "vllm:inter_token_latency_seconds_bucket",
    "vllm:iteration_tokens_total_bucket",
    "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions_total",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:prefix_cache_hits_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prompt_tokens_total",
    "vllm:request_decode_time_seconds_sum",
    "vllm:request_generation_tokens_bucket",
    "vllm:request_generation_tokens_sum",
    "vllm:request_params_max_tokens_bucket",
    "vllm:request_params_n_bucket",
    "vllm:request_prefill_time_seconds_sum",
    "vllm:request_prompt_tokens_bucket",
    "vllm:request_prompt_tokens_sum",
    "vllm:request_queue_time_seconds_sum",
    "vllm:request_success_total",
    "vllm:time_per_output_token_seconds_bucket",
    "vllm:time_to_first_token_seconds_bucket",
    "vllm:time_to_first_token_seconds_sum",
}


class Scrape:
    """One scrape, read by Prometheus' own parser."""

    def __init__(self, engine: Engine) -> None:
        body, self.content_type = render(engine)
        self.families = {family.name: family for family in text_string_to_metric_families(body.decode())}
        self.samples = [sample for family in self.families.values() for sample in family.samples]

    def value(self, name: str, **labels: str) -> float:
        """The one sample of that name with those labels among its own."""
        (value,) = (
            sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )
        return value

    def total(self, name: str) -> float:
        return sum(sample.value for sample in self.samples if sample.name == name)

    def buckets(self, name: str) -> list[float]:
        return [sample.value for sample in self.samples if sample.name == f"{name}_bucket"]

    def assert_accounted(self) -> None:
        """Every sequence that started has ended for a reason, runs or waits."""
        present = self.value("vllm:num_requests_running") + self.value("vllm:num_requests_waiting")
        assert (
            self.total("radish:requests_started_total") == self.total("vllm:request_success_total") + present
        )


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[tuple[Engine, FakeRunner]]:
    """A started engine on a fake runner."""
    engine, runner = fake_engine(**settings)
    await engine.start()
    try:
        yield engine, runner
    finally:
        runner.resume()
        await engine.stop()


async def test_counts_are_what_the_clients_saw() -> None:
    async with running(script=say("hello")) as (engine, _):
        first = engine.submit(generate_request("a prompt of some length"), request_id="1")
        await collect(first)
        again = engine.submit(
            generate_request("a prompt of some length", max_tokens=3, choices=2), request_id="2"
        )
        await collect(again)
        scrape = Scrape(engine)
    assert scrape.content_type.startswith("text/plain")
    assert scrape.value("vllm:prompt_tokens_total") == 3 * 23
    assert scrape.value("vllm:generation_tokens_total") == first.completion_tokens + again.completion_tokens
    assert scrape.value("vllm:request_success_total", finished_reason="stop") == 1
    assert scrape.value("vllm:request_success_total", finished_reason="length") == 2
    assert scrape.value("vllm:request_success_total", finished_reason="abort") == 0
    assert scrape.value("vllm:request_success_total", finished_reason="error") == 0
    cached = sum(sequence.cached_tokens for sequence in first.sequences + again.sequences)
    assert cached > 0
    assert scrape.value("vllm:prompt_tokens_cached_total") == cached
    assert scrape.value("vllm:prefix_cache_hits_total") == cached
    assert scrape.value("vllm:request_params_n_count") == 2
    assert scrape.value("vllm:request_params_n_sum") == 3
    assert scrape.value("vllm:request_prompt_tokens_sum") == 3 * 23
    assert (
        scrape.value("vllm:request_generation_tokens_sum")
        == first.completion_tokens + again.completion_tokens
    )
    assert scrape.value("vllm:time_to_first_token_seconds_count") == 3
    assert scrape.value("vllm:e2e_request_latency_seconds_count") == 3
    assert scrape.value("vllm:iteration_tokens_total_sum") == scrape.value("radish:computed_tokens_total")
    assert scrape.value("vllm:iteration_tokens_total_count") == scrape.value("radish:steps_total")
    scrape.assert_accounted()


async def test_gauges_are_the_present_state() -> None:
    async with running(num_pages=16, page_size=4, max_running=1) as (engine, runner):
        runner.pause()
        requests = [engine.submit(generate_request("12345678"), request_id=str(i)) for i in range(3)]
        await anyio.wait_all_tasks_blocked()
        busy = Scrape(engine)
        assert busy.value("vllm:num_requests_running") == 1
        assert busy.value("vllm:num_requests_waiting") == 2
        load = engine.load()
        used = load.pages.protected + load.pages.private
        assert used > 0
        assert busy.value("vllm:kv_cache_usage_perc") == used / 16
        assert busy.total("radish:pages") == 16
        assert busy.value("radish:pages", state="free") == load.pages.free
        busy.assert_accounted()

        runner.resume()
        for request in requests:
            await collect(request)
        idle = Scrape(engine)
        assert idle.value("vllm:num_requests_running") == 0
        assert idle.value("vllm:num_requests_waiting") == 0
        assert idle.value("vllm:kv_cache_usage_perc") == 0
        assert idle.value("radish:tree_nodes") == engine.load().tree_nodes > 0
        idle.assert_accounted()


async def test_every_ending_is_accounted_for() -> None:
    async with running(max_waiting=4, max_context=64) as (engine, runner):
        runner.pause()
        requests = [engine.submit(generate_request("1234"), request_id=str(i)) for i in range(4)]
        Scrape(engine).assert_accounted()
        engine.abort(requests[0])
        Scrape(engine).assert_accounted()
        with pytest.raises(InvalidRequestError):
            engine.submit(generate_request("1234", max_tokens=100), request_id="too long")
        with pytest.raises(QueueFullError):
            engine.submit(generate_request("1234", choices=4), request_id="too many")
        runner.fails = lambda batch: True
        runner.resume()
        for request in requests:
            await collect(request)
        scrape = Scrape(engine)
    assert scrape.value("vllm:request_success_total", finished_reason="abort") == 1
    assert scrape.value("vllm:request_success_total", finished_reason="error") == 3
    assert scrape.value("radish:requests_rejected_total", reason="invalid") == 1
    assert scrape.value("radish:requests_rejected_total", reason="queue_full") == 1
    assert scrape.value("radish:requests_started_total") == 4
    scrape.assert_accounted()


async def test_histograms_are_cumulative_and_end_in_their_count() -> None:
    async with running(script=say("hello")) as (engine, _):
        await collect(engine.submit(generate_request("a" * 9), request_id="1"))
        await collect(engine.submit(generate_request("b" * 20), request_id="2"))
        scrape = Scrape(engine)
    # Bounds 1, 2, 5, 10, 20, 50 ...: both are above 5, one is in (5, 10], one in (10, 20].
    buckets = scrape.buckets("vllm:request_prompt_tokens")
    assert buckets[:6] == [0, 0, 0, 1, 2, 2]
    assert buckets[-1] == 2
    for family in scrape.families.values():
        if family.type == "histogram" and family.name != "radish:step_seconds":
            values = scrape.buckets(family.name)
            assert values == sorted(values)
            assert values[-1] == scrape.value(f"{family.name}_count")
    for part in ("plan", "forward", "sample", "commit"):
        assert scrape.value("radish:step_seconds_count", part=part) >= scrape.value("radish:steps_total")


async def test_dashboards_made_for_vllm_find_their_series() -> None:
    async with running() as (engine, _):
        scrape = Scrape(engine)
    assert {sample.name for sample in scrape.samples} >= DASHBOARD_SERIES
    for sample in scrape.samples:
        if sample.name.startswith(("vllm:", "radish:")):
            assert sample.labels["model_name"] == "fake"
            assert sample.labels["engine"] == "0"
    assert scrape.value("vllm:cache_config_info", block_size="4", num_gpu_blocks="64") == 1


async def test_grammars_are_counted_where_they_are_compiled() -> None:
    async with running() as (engine, _):
        constraint = Constraint(kind="json_schema", spec='{"type": "integer"}')
        await engine.compiler.compile(constraint)
        await engine.compiler.compile(constraint)
        with pytest.raises(GrammarError):
            await engine.compiler.compile(Constraint(kind="json_schema", spec='{"type": 3}'))
        scrape = Scrape(engine)
    assert scrape.value("radish:grammar_compile_seconds_count") == 2
    assert scrape.value("radish:grammar_compile_seconds_sum") == engine.compiler.compile_seconds > 0
    assert scrape.value("radish:grammar_cache_hits_total") == 1
    assert scrape.value("radish:grammars_refused_total") == 1
    assert scrape.value("radish:grammar_cache_bytes") == engine.compiler.cached_bytes > 0
