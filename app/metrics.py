"""Prometheus metrics, computed from the engine's counters when they are scraped.

Names, labels and meanings are vLLM's wherever vLLM has one, so that dashboards made for it load; what
only this engine has is beside them under `radish:`. A "request" is a sequence, as in vLLM: one with three
choices counts three. `radish:requests_started_total` is always the sum of `vllm:request_success_total`
over its reasons, `vllm:num_requests_running` and `vllm:num_requests_waiting`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from engine.engine import Engine
from engine.stats import Histogram, Load, Stats
from grammars.compiler import Compiler

# Metric, attribute of Stats, meaning.
_COUNTERS = (
    ("vllm:prompt_tokens", "prompt_tokens", "Prompt tokens of sequences that gave their first token."),
    ("vllm:prompt_tokens_cached", "cached_tokens", "Those of vllm:prompt_tokens found in the prefix cache."),
    ("vllm:generation_tokens", "generation_tokens", "Tokens generated."),
    ("vllm:prefix_cache_queries", "prefix_queries", "Tokens looked up in the prefix cache."),
    ("vllm:prefix_cache_hits", "prefix_hits", "Tokens found in the prefix cache."),
    ("vllm:spec_decode_num_draft_tokens", "draft_tokens", "Guessed tokens that were tried."),
    ("vllm:spec_decode_num_accepted_tokens", "accepted_tokens", "Guessed tokens that were right."),
    ("vllm:num_preemptions", "preemptions", "Sequences whose pages were taken for others."),
    ("radish:requests_started", "started", "Sequences accepted."),
    ("radish:steps", "steps", "Steps of the engine."),
    ("radish:computed_tokens", "computed_tokens", "Tokens run through the model, recomputed ones too."),
    ("radish:discarded_tokens", "discarded_tokens", "Tokens sampled for sequences that had already ended."),
    ("radish:evicted_pages", "evicted_pages", "Pages taken from the prefix cache."),
)

_HISTOGRAMS = (
    ("vllm:time_to_first_token_seconds", "ttft", "From arrival to the first token."),
    ("vllm:inter_token_latency_seconds", "inter_token", "Between two tokens of a sequence."),
    # The former name of the one above; dashboards still ask for it.
    ("vllm:time_per_output_token_seconds", "inter_token", "The same as vllm:inter_token_latency_seconds."),
    (
        "vllm:request_time_per_output_token_seconds",
        "time_per_output_token",
        "Mean time between a sequence's tokens.",
    ),
    ("vllm:e2e_request_latency_seconds", "e2e", "From arrival to the end."),
    ("vllm:request_queue_time_seconds", "queue", "From arrival to first being scheduled."),
    ("vllm:request_prefill_time_seconds", "prefill", "From being scheduled to the first token."),
    ("vllm:request_decode_time_seconds", "decode", "From the first token to the last."),
    ("vllm:request_inference_time_seconds", "inference", "From being scheduled to the last token."),
    ("vllm:iteration_tokens_total", "iteration_tokens", "Tokens of one step."),
    ("vllm:request_prompt_tokens", "request_prompt_tokens", "Prompt tokens of a sequence."),
    ("vllm:request_generation_tokens", "request_generation_tokens", "Tokens a sequence generated."),
    # vLLM's is the most of a request's choices; each choice is a request here.
    ("vllm:request_max_num_generation_tokens", "request_generation_tokens", "Tokens a sequence generated."),
    ("vllm:request_params_max_tokens", "request_max_tokens", "Tokens a sequence was allowed to generate."),
    ("vllm:request_params_n", "request_choices", "Choices of a request."),
    ("radish:loop_lag_seconds", "loop_lag", "How late the event loop ran a timer."),
)

_STEP_PARTS = ("plan", "forward", "sample", "mask", "commit")


def render(engine: Engine) -> tuple[bytes, str]:
    """The metrics as text and its content type."""
    registry = CollectorRegistry()
    registry.register(_EngineCollector(engine))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return generate_latest(registry), CONTENT_TYPE_LATEST


class _EngineCollector(Collector):
    """Turns an engine's counters and present state into metric families."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # vLLM numbers its engines; there is one here.
        self._labels = {"model_name": engine.model_name, "engine": "0"}

    def collect(self) -> Iterable[Metric]:
        stats, load = self._engine.stats, self._engine.load()
        yield from self._gauges(load)
        yield from self._counters(stats)
        yield from self._histograms(stats)
        yield from self._grammars(self._engine.compiler)

    def _gauges(self, load: Load) -> Iterator[Metric]:
        pages = load.pages
        used = (pages.protected + pages.private) / pages.total
        yield self._gauge("vllm:num_requests_running", "Sequences that run.", load.running)
        yield self._gauge("vllm:num_requests_waiting", "Sequences that wait.", load.waiting)
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of the pages in use, from 0 to 1.", used)
        # The former name of the one above; dashboards still ask for it.
        yield self._gauge("vllm:gpu_cache_usage_perc", "The same as vllm:kv_cache_usage_perc.", used)
        yield self._gauge("radish:tasks", "Tasks of the event loop.", len(asyncio.all_tasks()))
        yield self._gauge("radish:tree_nodes", "Nodes of the prefix tree.", load.tree_nodes)
        by_state = GaugeMetricFamily("radish:pages", "Pages by state.", labels=[*self._labels, "state"])
        for state in ("free", "evictable", "protected", "private"):
            by_state.add_metric([*self._labels.values(), state], getattr(pages, state))
        yield by_state
        config = self._engine.config
        info = {
            "block_size": str(config.page_size),
            "num_gpu_blocks": str(pages.total),
            "enable_prefix_caching": str(config.prefix_cache),
        }
        family = GaugeMetricFamily(
            "vllm:cache_config_info", "How the KV cache is laid out.", labels=[*self._labels, *info]
        )
        family.add_metric([*self._labels.values(), *info.values()], 1)
        yield family

    def _counters(self, stats: Stats) -> Iterator[Metric]:
        for name, attribute, help_ in _COUNTERS:
            yield self._counter(name, help_, getattr(stats, attribute))
        for name, help_, label, values in (
            ("vllm:request_success", "Sequences that ended, by reason.", "finished_reason", stats.finished),
            ("radish:requests_rejected", "Requests refused, by reason.", "reason", stats.rejected),
        ):
            family = CounterMetricFamily(name, help_, labels=[*self._labels, label])
            for value, count in values.items():
                family.add_metric([*self._labels.values(), value], count)
            yield family

    def _histograms(self, stats: Stats) -> Iterator[Metric]:
        for name, attribute, help_ in _HISTOGRAMS:
            family = HistogramMetricFamily(name, help_, labels=list(self._labels))
            _add(family, list(self._labels.values()), getattr(stats, attribute))
            yield family
        steps = HistogramMetricFamily(
            "radish:step_seconds",
            "Time of one step, by part; what a native step samples itself is part of forward.",
            labels=[*self._labels, "part"],
        )
        for part in _STEP_PARTS:
            _add(steps, [*self._labels.values(), part], getattr(stats, f"step_{part}"))
        yield steps

    def _grammars(self, compiler: Compiler) -> Iterator[Metric]:
        yield self._gauge("radish:grammar_cache_bytes", "Memory of cached grammars.", compiler.cached_bytes)
        for name, help_, count in (
            ("radish:grammar_cache_hits", "Constraints whose grammar was cached.", compiler.num_hits),
            ("radish:grammars_refused", "Constraints that cannot be enforced.", compiler.num_refused),
        ):
            yield self._counter(name, help_, count)
        compiled = SummaryMetricFamily(
            "radish:grammar_compile_seconds",
            "Time spent on compiling constraints, refused ones too.",
            labels=list(self._labels),
        )
        count = compiler.num_compiled + compiler.num_refused
        compiled.add_metric(list(self._labels.values()), count, compiler.compile_seconds)
        yield compiled

    def _counter(self, name: str, help_: str, value: float) -> Metric:
        family = CounterMetricFamily(name, help_, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _gauge(self, name: str, help_: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, help_, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family


def _add(family: HistogramMetricFamily, labels: list[str], histogram: Histogram) -> None:
    bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
    family.add_metric(labels, list(zip(bounds, accumulate(histogram.counts), strict=True)), histogram.sum)
