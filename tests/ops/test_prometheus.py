"""A real Prometheus scrapes a loaded server: what it stores is what the clients counted."""

from __future__ import annotations

import asyncio
import json
import math
import re
import runpy
import shutil
import socket
import subprocess
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.app.harness import Served, serving

OPS = Path(__file__).parents[2] / "ops"
dashboard = runpy.run_path(str(OPS / "grafana/dashboard.py"))["dashboard"]
pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="there is no prometheus: ops/test-tools installs it on Debian"
)

WHERE = '{model_name="fake"}'
# What the panels of vLLM's own dashboards ask for, by metric.
VLLM_PANELS = {
    f"histogram_quantile(0.9, sum by (le) (rate(METRIC_bucket{WHERE}[1m])))": (
        "vllm:e2e_request_latency_seconds",
        "vllm:time_to_first_token_seconds",
        "vllm:inter_token_latency_seconds",
        "vllm:time_per_output_token_seconds",
        "vllm:request_time_per_output_token_seconds",
        "vllm:request_prompt_tokens",
        "vllm:request_generation_tokens",
        "vllm:request_max_num_generation_tokens",
        "vllm:iteration_tokens_total",
    ),
    f"rate(METRIC_sum{WHERE}[1m]) / rate(METRIC_count{WHERE}[1m])": (
        "vllm:e2e_request_latency_seconds",
        "vllm:time_to_first_token_seconds",
        "vllm:inter_token_latency_seconds",
    ),
    f"sum by (le) (increase(METRIC_bucket{WHERE}[1m]))": (
        "vllm:request_prompt_tokens",
        "vllm:request_generation_tokens",
    ),
    f"rate(METRIC_sum{WHERE}[1m])": (
        "vllm:request_max_num_generation_tokens",
        "vllm:request_queue_time_seconds",
        "vllm:request_prefill_time_seconds",
        "vllm:request_decode_time_seconds",
        "vllm:request_inference_time_seconds",
        "vllm:request_params_n",
        "vllm:request_params_max_tokens",
    ),
    f"rate(METRIC_total{WHERE}[1m])": (
        "vllm:prompt_tokens",
        "vllm:generation_tokens",
        "vllm:prefix_cache_queries",
        "vllm:prefix_cache_hits",
        "vllm:num_preemptions",
    ),
    f"METRIC{WHERE}": (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "vllm:cache_config_info",
    ),
    f"sum by (finished_reason) (increase(METRIC_total{WHERE}[1m]))": ("vllm:request_success",),
}


@dataclass
class Prometheus:
    """A running Prometheus that scrapes one server every 200 ms."""

    http: httpx.AsyncClient

    async def query(self, expr: str, *, at: float | None = None) -> list[dict[str, Any]]:
        """The result at a Unix time; None: now."""
        params: dict[str, Any] = {"query": expr} if at is None else {"query": expr, "time": at}
        answer = (await self.http.get("/api/v1/query", params=params)).json()
        assert answer["status"] == "success", (expr, answer)
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    async def shows(self, expr: str) -> bool:
        """Whether a panel would show something: a result that is a number."""
        return any(not math.isnan(float(sample["value"][1])) for sample in await self.query(expr))

    async def value(self, expr: str, *, at: float) -> float:
        (sample,) = await self.query(expr, at=at)
        return float(sample["value"][1])

    async def reaches(self, expr: str, value: float) -> None:
        """Wait until a scrape brought `value`."""
        async with asyncio.timeout(20):
            while [float(sample["value"][1]) for sample in await self.query(expr)] != [value]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)


@pytest.fixture
async def server() -> AsyncIterator[Served]:
    async with serving() as served:
        yield served


@pytest.fixture
async def prometheus(server: Served, tmp_path: Path) -> AsyncIterator[Prometheus]:
    """Prometheus with the shipped configuration, pointed at the test's server and hurried."""
    config = yaml.safe_load((OPS / "prometheus/prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"}
    config["rule_files"] = [str(OPS / "prometheus" / name) for name in config["rule_files"]]
    (job,) = config["scrape_configs"]
    job["static_configs"][0]["targets"] = [server.url.removeprefix("http://")]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    process = await asyncio.create_subprocess_exec(
        "prometheus",
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address={address}",
        stdout=DEVNULL,
        stderr=PIPE,
    )
    try:
        await _listens(process)
        async with httpx.AsyncClient(base_url=f"http://{address}", timeout=10) as http:
            prometheus = Prometheus(http)
            await prometheus.reaches("up", 1)
            yield prometheus
    finally:
        process.terminate()
        await process.communicate()


async def _listens(process: Process) -> None:
    assert process.stderr is not None
    said = b""
    while b"Server is ready to receive web requests" not in said:
        line = await process.stderr.readline()
        assert line, said.decode()
        said += line


async def load(server: Served, *, clients: int, each: int) -> tuple[int, int, int]:
    """Requests, prompt tokens and generated tokens, as the clients count them."""
    counts = [0, 0, 0]

    async def client(number: int) -> None:
        for turn in range(each):
            usage = (
                await server.complete(f"client {number % 3} says again: {turn % 5}", max_tokens=8 + turn % 7)
            ).json()["usage"]
            counts[0] += 1
            counts[1] += usage["prompt_tokens"]
            counts[2] += usage["completion_tokens"]

    await asyncio.gather(*(client(number) for number in range(clients)))
    return counts[0], counts[1], counts[2]


async def test_rates_are_what_the_clients_counted(server: Served, prometheus: Prometheus) -> None:
    # rate() does not look back beyond a counter's zero, so the counters have to be well above it.
    _, _, before = await load(server, clients=8, each=40)
    await prometheus.reaches("min_over_time(vllm:generation_tokens_total[1s])", before)
    began = time.time()
    requests, prompt, generated = await load(server, clients=8, each=40)
    assert requests == 320
    await prometheus.reaches("vllm:generation_tokens_total", before + generated)
    ended = time.time()
    window = f"[{round((ended - began + 0.4) * 1000)}ms]"  # from idle to idle
    for metric, counted in (
        ("vllm:generation_tokens_total", generated),
        ("vllm:prompt_tokens_total", prompt),
        ("vllm:e2e_request_latency_seconds_count", requests),
        ('vllm:request_success_total{finished_reason="length"}', requests),
    ):
        (samples,) = await prometheus.query(metric + window, at=ended)
        seconds = samples["values"][-1][0] - samples["values"][0][0]
        rate = await prometheus.value(f"rate({metric}{window})", at=ended)
        assert rate == pytest.approx(counted / seconds, rel=0.01), metric
    await prometheus.reaches("count(model:generation_tokens:rate1m > 0)", 1)
    await prometheus.reaches("count(model:prefix_cache_hits:ratio_rate5m > 0)", 1)
    assert await prometheus.query("ALERTS{alertstate='firing'}") == []


async def test_every_panel_shows_a_loaded_server(server: Served, prometheus: Prometheus) -> None:
    await load(server, clients=4, each=10)
    await server.complete("x", max_tokens=20, response_format={"type": "json_object"})
    stats = server.engine.stats
    await prometheus.reaches("vllm:generation_tokens_total", stats.generation_tokens)
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            expr = target["expr"].replace("$model_name", "fake").replace("$__rate_interval", "1m")
            assert await prometheus.shows(expr), (panel["title"], expr)
    for form, metrics in VLLM_PANELS.items():
        for metric in metrics:
            expr = form.replace("METRIC", metric)
            assert await prometheus.shows(expr), expr


def promtool(*arguments: str | Path, stdin: str | None = None) -> tuple[int, str]:
    done = subprocess.run(["promtool", *arguments], input=stdin, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", OPS / "prometheus/prometheus.yml"),
        ("check", "rules", OPS / "prometheus/recording.yml", OPS / "prometheus/alerts.yml"),
        ("test", "rules", OPS / "prometheus/rules_test.yml"),
    ],
    ids=lambda arguments: " ".join(map(str, arguments[:2])),
)
def test_configuration_and_rules_hold(arguments: tuple[str | Path, ...]) -> None:
    code, said = promtool(*arguments)
    assert code == 0, said


async def test_the_metrics_are_well_formed(server: Served) -> None:
    await server.complete("x", max_tokens=3)
    _, said = promtool("check", "metrics", stdin=(await server.http.get("/metrics")).text)
    # promtool minds vLLM's names: the colon in all of them, and a histogram called `_total`.
    inherited = re.compile(
        r"(vllm|radish):\w+ metric names should not contain ':'"
        r"|vllm:iteration_tokens_total non-counter metrics should not have \"_total\" suffix"
    )
    assert [line for line in said.splitlines() if not inherited.fullmatch(line)] == []


def test_the_dashboard_is_what_its_code_makes() -> None:
    assert json.loads((OPS / "grafana/radish.json").read_text()) == dashboard()


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for cell in _cells(dashboard()["panels"]):
        assert cell not in taken
        assert 0 <= cell[0] < 24
        taken.add(cell)


def _cells(panels: list[dict[str, Any]]) -> Iterator[tuple[int, int]]:
    for panel in panels:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            yield from ((x, y) for y in range(place["y"], place["y"] + place["h"]))
