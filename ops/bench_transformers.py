"""What `transformers.generate` reaches with the embedded model, one request at a time.

usage: .venv/bin/python ops/bench_transformers.py [OPTIONS]

The prompts are those of `radish bench`, with its default number of words. With --base-url a running server
is measured afterwards with the same options at 1, 8 and 32 clients, and the ratio is shown.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Any

import msgspec
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation.streamers import BaseStreamer

from app.bench import BenchConfig, measure
from app.bench_workload import Workload
from engine.models.loader import embedded_model_path


class FirstToken(BaseStreamer):
    """Notes when the first token came."""

    def __init__(self) -> None:
        self.calls = 0
        self.at = 0.0

    def put(self, value: Any) -> None:
        """Called with the prompt, then with each token."""
        self.calls += 1
        if self.calls == 2:
            self.at = time.perf_counter()

    def end(self) -> None:
        """Called after the last token."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure transformers.generate, one request at a time.")
    parser.add_argument("--requests", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--base-url", help="a running server to compare with")
    options = parser.parse_args()
    bench = BenchConfig(max_tokens=options.max_tokens, requests_per=options.requests)

    path = embedded_model_path()
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model: Any = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=getattr(torch, options.dtype)
    )
    workload = Workload(prompts="distinct", prompt_words=bench.prompt_words, seed="transformers")
    first_tokens, elapsed = [], 0.0
    for number in range(options.requests + 1):
        inputs: Any = tokenizer.apply_chat_template(
            workload.next().messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        streamer = FirstToken()
        started = time.perf_counter()
        model.generate(
            **inputs,
            do_sample=False,
            min_new_tokens=options.max_tokens,
            max_new_tokens=options.max_tokens,
            streamer=streamer,
        )
        if number:  # the first one warms up
            elapsed += time.perf_counter() - started
            first_tokens.append(streamer.at - started)
    alone = options.requests * options.max_tokens / elapsed
    first_ms = 1e3 * sorted(first_tokens)[len(first_tokens) // 2]
    print(f"transformers.generate ({options.dtype}): {alone:.1f} tokens/s, TTFT p50 {first_ms:.0f} ms")

    if options.base_url:
        levels, _ = asyncio.run(measure(msgspec.structs.replace(bench, base_url=options.base_url)))
        for level in levels:
            ratio = level.tokens_per_s / alone
            print(f"{level.concurrency:3} clients: {level.tokens_per_s:.1f} tokens/s, {ratio:.1f} times that")


if __name__ == "__main__":
    main()
