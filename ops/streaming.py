"""What streaming costs the event loop: planning, detokenising, encoding, writing.

    python -m ops.streaming [--streams 256] [--tokens 512] [--step-ms 12] [--core 0] [--client-core 1]
    python -m ops.streaming --embedded --streams 32 --tokens 128

The server runs in this process on one core, the client (`radish bench`) in another on another core. The
model is one fixed token a row and a step that lasts so long, without work. If it lasts longer than the loop
takes, every token is an event of its own; else what a slow loop has to tell is merged. Prints tokens a second
by the client's clock and by the processor time that the server took, and what the loop's thread took a step.

With `--embedded` the embedded model runs in 8 bits on all cores. Its steps leave nothing in the caches, so
the loop takes longer for the same.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sys
import time
from functools import partial

import uvloop

from app.server import HTTPServer, create_app, listen, url_of
from engine.batch import Batch, Launch, StepOutput
from engine.config import Config
from engine.engine import Engine
from engine.load import load_engine
from engine.models.loader import embedded_model_path
from engine.tokenizer import load_tokenizer
from grammars.compiler import Compiler
from grammars.vocab import Vocabulary


class OneToken:
    """A `Runner` whose every sample is the same token, and whose steps last `step_s` seconds."""

    def __init__(self, token_id: int, step_s: float) -> None:
        self._token_id = token_id
        self._step_s = step_s

    def prepare(self, batch: Batch) -> Launch:
        return partial(self._run, batch)

    def _run(self, batch: Batch) -> StepOutput:
        time.sleep(self._step_s)
        count = len(batch.samples)
        batch.sampled.fill(self._token_id)
        return StepOutput(token_ids=[self._token_id] * count, logprobs=[None] * count)


def engine_of(config: Config, step_s: float = 0.0) -> Engine:
    """An engine with the embedded model's tokenizer and no model."""
    tokenizer = load_tokenizer(embedded_model_path())
    size = tokenizer.vocab_size
    vocabulary = Vocabulary(
        token_bytes=tokenizer.token_bytes,
        eos_ids=tokenizer.eos_ids,
        special_ids=tokenizer.special_ids,
        width=size,
        encode=lambda text: tokenizer.encode(text, add_special=False, parse_special=False),
    )
    (token_id,) = tokenizer.encode(" radish", add_special=False, parse_special=False)[:1]
    return Engine(
        config=config,
        runner=OneToken(token_id, step_s),
        compiler=Compiler(vocabulary, timeout_s=config.grammar_timeout, cache_bytes=1 << 20),
        tokenizer=tokenizer,
        model_name="radish",
        hidden_size=1,
        vocab_size=size,
        num_pages=65536,
        max_context=8192,
    )


async def measure(engine: Engine, config: Config, *, streams: int, tokens: int, client_core: int) -> int:
    """Serve one run of the client; returns its exit code."""
    started = asyncio.Event()
    with listen(config) as listener:
        server = HTTPServer(create_app(engine, config), config, on_started=started.set)
        serving = asyncio.create_task(server.serve([listener]))
        await started.wait()
        gc.collect()  # as `radish serve` does
        gc.freeze()
        command = [sys.executable, "-m", "app", "bench", "--base-url", url_of(listener)]
        command += ["--concurrency", str(streams), "--max-tokens", str(tokens), "--requests-per", "2"]
        command += ["--prompt-words", "20"]
        steps, used, of_loop = engine.stats.steps, time.process_time(), time.thread_time()
        begun = time.perf_counter()
        client = await asyncio.create_subprocess_exec("taskset", "--cpu-list", str(client_core), *command)
        code = await client.wait()
        seconds, used = time.perf_counter() - begun, time.process_time() - used
        steps, of_loop = engine.stats.steps - steps, time.thread_time() - of_loop
        total = streams * tokens * 2
        per_s, per_step = total / used, 1e3 * of_loop / steps
        print(f"{total} tokens in {seconds:.1f} s, {per_s:,.0f} a second of processor time ({used:.1f} s)")
        print(f"{steps} steps, {per_step:.2f} ms of the loop's thread each, requests included")
        server.should_exit = True
        await serving
    return code


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--step-ms", type=float, default=0.0)
    parser.add_argument("--embedded", action="store_true")
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--client-core", type=int, default=1)
    options = parser.parse_args()
    if options.embedded:
        config = Config(port=0, quantize="int8")
        engine = load_engine(config, lambda *_: None)
    else:
        os.sched_setaffinity(0, {options.core})
        config = Config(port=0, max_running=options.streams, max_batch_tokens=4096)
        engine = engine_of(config, options.step_ms / 1e3)
    run = measure(
        engine, config, streams=options.streams, tokens=options.tokens, client_core=options.client_core
    )
    return uvloop.run(run)


if __name__ == "__main__":
    sys.exit(main())
