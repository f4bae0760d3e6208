"""How many tokens a second the server streams through HTTP on one core, with a model that costs nothing.

    python ops/streaming.py [--streams 256] [--tokens 512] [--core 0] [--client-core 1]

The server runs in this process on one core, the client (`radish bench`) in another on another core. The
model is one fixed token a row and step, so what is measured is the loop: planning, detokenising, encoding,
writing. Prints tokens a second by the client's clock, and by the processor time that the server took.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sys
import time

import uvloop

from app.server import HTTPServer, create_app, listen, url_of
from engine.batch import Batch, StepOutput
from engine.config import Config
from engine.engine import Engine
from engine.models.loader import embedded_model_path
from engine.tokenizer import load_tokenizer
from grammars.compiler import Compiler
from grammars.vocab import Vocabulary


class OneToken:
    """A `Runner` whose every sample is the same token."""

    def __init__(self, token_id: int) -> None:
        self._token_id = token_id

    def run(self, batch: Batch) -> StepOutput:
        count = len(batch.samples)
        return StepOutput(token_ids=[self._token_id] * count, logprobs=[None] * count)


def engine_of(config: Config) -> Engine:
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
        runner=OneToken(token_id),
        compiler=Compiler(vocabulary, timeout_s=config.grammar_timeout, cache_bytes=1 << 20),
        tokenizer=tokenizer,
        model_name="radish",
        hidden_size=1,
        vocab_size=size,
        num_pages=65536,
        max_context=8192,
    )


async def measure(streams: int, tokens: int, client_core: int) -> int:
    """Serve one run of the client; returns its exit code."""
    config = Config(port=0, max_running=streams, max_batch_tokens=4096)
    started = asyncio.Event()
    with listen(config) as listener:
        server = HTTPServer(create_app(engine_of(config), config), config, on_started=started.set)
        serving = asyncio.create_task(server.serve([listener]))
        await started.wait()
        gc.collect()  # as `radish serve` does
        gc.freeze()
        command = [sys.executable, "-m", "app", "bench", "--base-url", url_of(listener)]
        command += ["--concurrency", str(streams), "--max-tokens", str(tokens), "--requests-per", "2"]
        command += ["--prompt-words", "20"]
        used = time.process_time()
        begun = time.perf_counter()
        client = await asyncio.create_subprocess_exec("taskset", "--cpu-list", str(client_core), *command)
        code = await client.wait()
        seconds, used = time.perf_counter() - begun, time.process_time() - used
        total = streams * tokens * 2
        print(
            f"{total} tokens: {total / used:,.0f} a second of processor time ({used:.1f} of {seconds:.1f} s)"
        )
        server.should_exit = True
        await serving
    return code


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--client-core", type=int, default=1)
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.core})
    return uvloop.run(measure(options.streams, options.tokens, options.client_core))


if __name__ == "__main__":
    sys.exit(main())
