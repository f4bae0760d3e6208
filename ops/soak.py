"""Soak: hours of mixed traffic on one server; memory, pages, tasks and counts are sampled and must hold.

    ops/soak --minutes 20 --output soak

Writes soak.json with the figures and soak.png with the curves. Exits with 1 if anything did not hold: a
sample that does not add up, an unexpected answer, a control text that changed, memory that grew, or something
left over at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import random
import shlex
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from ops.own_server import own_server

PERIOD_S = 2.0
GROWTH_MIB = 64
"""Memory may grow by less, once it was in use for a fifth of the time."""
SERVE = (
    *("--kv-memory", "32", "--log-level", "warning"),
    *("--max-running", "12", "--max-waiting", "16"),
)
"""Small, so that there is preemption and overload."""
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}
TOPICS = ("radishes", "tides", "bees", "glaciers", "bread", "comets", "violins", "moss")
Sample = dict[str, float]


class Soak:
    """The traffic, what it was answered, and the samples."""

    def __init__(self, http: httpx.AsyncClient, model: str) -> None:
        self.http = http
        self.model = model
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.samples: list[Sample] = []

    def body(self, **fields: Any) -> dict[str, Any]:
        topic = random.choice(TOPICS)
        messages = [
            {"role": "system", "content": "You are a helpful assistant who answers in short sentences."},
            {"role": "user", "content": f"Tell me about {topic}." + " And more." * random.randrange(60)},
        ]
        return {"model": self.model, "messages": messages, "max_tokens": random.randrange(4, 48), **fields}

    async def chat(self) -> None:
        async with self.http.stream("POST", "/v1/chat/completions", json=self.body(stream=True)) as response:
            if self._refused(response, "chat"):
                return
            last = [line async for line in response.aiter_lines() if line][-1]
            self._check("chat", last == "data: [DONE]", last)

    async def schema(self) -> None:
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
        answer = await self._whole("schema", response_format=form, max_tokens=200)
        if answer and answer["choices"][0]["finish_reason"] == "stop":
            person = json.loads(answer["choices"][0]["message"]["content"])
            self._check("schema", set(person) == {"name", "age"}, str(person))

    async def tools(self) -> None:
        answer = await self._whole("tools", tools=[TOOL], tool_choice="required", max_tokens=200)
        if answer and answer["choices"][0]["finish_reason"] == "tool_calls":
            (call, *_) = answer["choices"][0]["message"]["tool_calls"]
            self._check("tools", set(json.loads(call["function"]["arguments"])) == {"name", "age"}, str(call))

    async def choices(self) -> None:
        answer = await self._whole("choices", n=3, temperature=1.0)
        if answer:
            self._check("choices", len(answer["choices"]) == 3, str(answer))

    async def abort(self) -> None:
        body = self.body(stream=True, max_tokens=400)
        async with self.http.stream("POST", "/v1/chat/completions", json=body) as response:
            if self._refused(response, "abort"):
                return
            left = random.randrange(6)
            async for _ in response.aiter_lines():
                left -= 1
                if left < 0:
                    break
        self.counts["abort"] += 1

    async def slow(self) -> None:
        async with self.http.stream("POST", "/v1/chat/completions", json=self.body(stream=True)) as response:
            if self._refused(response, "slow"):
                return
            async for _ in response.aiter_lines():
                await asyncio.sleep(0.05)
        self.counts["slow"] += 1

    async def overload(self) -> None:
        """More at once than may wait."""
        await asyncio.gather(*(self._whole("overload", max_tokens=2) for _ in range(40)))

    async def control(self) -> str:
        """What the model says to one question; must never change."""
        messages = [{"role": "user", "content": "Why is the sky blue?"}]
        body = {"model": self.model, "messages": messages, "temperature": 0, "max_tokens": 24}
        while True:
            response = await self.http.post("/v1/chat/completions", json=body)
            if response.status_code == 200:
                return str(response.json()["choices"][0]["message"]["content"])
            await asyncio.sleep(1)

    async def sample(self) -> Sample:
        metrics = (await self.http.get("/metrics")).text
        values: Sample = defaultdict(float)
        for family in text_string_to_metric_families(metrics):
            for point in family.samples:
                state = point.labels.get("state")
                values[f"{point.name} {state}" if state else point.name] += point.value
        self.samples.append({"at": time.monotonic(), **values})
        live = values["vllm:num_requests_running"] + values["vllm:num_requests_waiting"]
        ended, started = values["vllm:request_success_total"], values["radish:requests_started_total"]
        self.hold(started == ended + live, f"started {started}, ended {ended}, live {live}")
        states = [values[f"radish:pages {s}"] for s in ("free", "evictable", "protected", "private")]
        self.hold(min(states) >= 0, f"pages {states}")
        first = sum(value for name, value in self.samples[0].items() if name.startswith("radish:pages "))
        self.hold(sum(states) == first, f"pages {states} do not add up to {first}")
        return values

    async def _whole(self, kind: str, **fields: Any) -> dict[str, Any] | None:
        response = await self.http.post("/v1/chat/completions", json=self.body(**fields))
        if self._refused(response, kind):
            return None
        self.counts[kind] += 1
        answer: dict[str, Any] = response.json()
        return answer

    def _refused(self, response: httpx.Response, kind: str) -> bool:
        if response.status_code == 429:
            self.counts["429"] += 1
            self.hold(1 <= int(response.headers["retry-after"]) <= 120, "Retry-After")
            return True
        self.hold(response.status_code == 200, f"{kind} was answered {response.status_code}")
        return response.status_code != 200

    def _check(self, kind: str, right: bool, what: str) -> None:
        self.counts[kind] += kind == "chat"
        self.hold(right, f"{kind}: {what}")

    def hold(self, right: bool, what: str) -> None:
        if not right:
            self.faults.append(what)


async def soak(http: httpx.AsyncClient, *, minutes: float, clients: int) -> Soak:
    model = (await http.get("/v1/models")).json()["data"][0]["id"]
    run = Soak(http, model)
    control = await run.control()
    end = time.monotonic() + 60 * minutes
    kinds: list[Callable[[], Awaitable[None]]] = [
        *(run.chat, run.chat, run.chat, run.schema, run.tools, run.choices, run.abort, run.abort, run.slow)
    ]

    async def client() -> None:
        while time.monotonic() < end:
            await random.choice(kinds)()

    async def bursts() -> None:
        while time.monotonic() < end - 20:
            await asyncio.sleep(random.uniform(5, 15))
            await run.overload()
            run.hold(await run.control() == control, "the control text changed")

    async def sampling() -> None:
        while time.monotonic() < end:
            await run.sample()
            await asyncio.sleep(PERIOD_S)

    async with asyncio.TaskGroup() as group:
        group.create_task(bursts())
        group.create_task(sampling())
        for _ in range(clients):
            group.create_task(client())
    await asyncio.sleep(1)
    last = await run.sample()
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting"):
        run.hold(last[name] == 0, f"{name} is {last[name]} at the end")
    for state in ("protected", "private"):
        run.hold(last[f"radish:pages {state}"] == 0, f"pages left {state}")
    run.hold(await run.control() == control, "the control text changed")
    early, late = _memory_mib(run)
    run.hold(late - early < GROWTH_MIB, f"memory grew from {early} to {late} MiB")
    return run


def _memory_mib(run: Soak) -> tuple[int, int]:
    """After a fifth of the time, when the pool and the caches have been filled, and at the end."""
    memory = [round(sample["process_resident_memory_bytes"] / 2**20) for sample in run.samples]
    return memory[len(memory) // 5], memory[-1]


def figures(run: Soak) -> dict[str, Any]:
    early, late = _memory_mib(run)
    last = run.samples[-1]
    return {
        "minutes": round((last["at"] - run.samples[0]["at"]) / 60, 2),
        "samples": len(run.samples),
        "answers": dict(run.counts),
        "tokens": int(last["vllm:generation_tokens_total"]),
        "preemptions": int(last["vllm:num_preemptions_total"]),
        "memory_mib": {"after a fifth": early, "end": late},
        "tasks_end": int(last["radish:tasks"]),
        "open_files_end": int(last["process_open_fds"]),
        "faults": run.faults[:20],
    }


def draw(samples: list[Sample], path: Path) -> None:
    """The curves."""
    # Imported here, so that the checks of this file do without the extra `soak`.
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(10, 10), layout="constrained")
    curves = {
        "memory (MiB)": {"resident": ("process_resident_memory_bytes", 2.0**-20)},
        "pages": {s: (f"radish:pages {s}", 1.0) for s in ("free", "evictable", "protected", "private")},
        "sequences": {s: (f"vllm:num_requests_{s}", 1.0) for s in ("running", "waiting")},
        "tasks and open files": {"tasks": ("radish:tasks", 1.0), "open files": ("process_open_fds", 1.0)},
    }
    minutes = [(sample["at"] - samples[0]["at"]) / 60 for sample in samples]
    for axes, (title, lines) in zip(figure.subplots(len(curves), sharex=True), curves.items(), strict=True):
        for label, (name, scale) in lines.items():
            axes.plot(minutes, [sample.get(name, 0.0) * scale for sample in samples], label=label)
        axes.set_title(title, loc="left")
        axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes.set_xlabel("minutes")
    figure.savefig(path, dpi=90)


async def main(options: argparse.Namespace) -> int:
    limits = httpx.Limits(max_connections=None)
    async with (
        own_server(*SERVE, *options.serve) as server,
        httpx.AsyncClient(base_url=server.url, timeout=300, limits=limits) as http,
    ):
        run = await soak(http, minutes=options.minutes, clients=options.clients)
    run.hold(server.exit_code == 0, f"the server exited with {server.exit_code}")
    result = figures(run)
    options.output.with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n")
    draw(run.samples, options.output.with_suffix(".png"))
    print(json.dumps(result, indent=2))
    return 1 if run.faults else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--output", type=Path, default=Path("soak"), help="without its ending")
    parser.add_argument("--serve", type=shlex.split, default=[], help="options of radish serve, quoted")
    sys.exit(asyncio.run(main(parser.parse_args())))
