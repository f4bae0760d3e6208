"""What OpenVINO GenAI reaches with the embedded model, as an offline batch.

usage: PYTHONPATH=. PYTHON ops/bench_openvino.py MODEL.gguf     (`ops/peers.md` tells how to make that Python)

The prompts are those of `radish bench`. OpenVINO GenAI brings no server of its own, so nothing here pays for
HTTP: a rate is the tokens of a batch by the time from handing it over to having all of it.
"""

from __future__ import annotations

import argparse
import time

import openvino_genai

from app.bench_workload import Workload

_LEVELS = (1, 8, 32)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure OpenVINO GenAI, offline.")
    parser.add_argument("model", help="GGUF file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--prompt-words", type=int, default=300)
    options = parser.parse_args()

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = 2  # GiB
    scheduler.enable_prefix_caching = True
    pipeline = openvino_genai.ContinuousBatchingPipeline(options.model, scheduler, "CPU")
    tokenizer = pipeline.get_tokenizer()
    answer = openvino_genai.GenerationConfig(
        max_new_tokens=options.max_tokens, ignore_eos=True, do_sample=False, apply_chat_template=False
    )
    for level in _LEVELS:
        rates = []
        for number in range(options.rounds + 1):
            work = Workload(prompts="shared", prompt_words=options.prompt_words, seed=f"{level}/{number}")
            prompts = [
                tokenizer.apply_chat_template(work.next().messages, add_generation_prompt=True)
                for _ in range(level)
            ]
            started = time.perf_counter()
            pipeline.generate(prompts, [answer] * level)
            rates.append(level * options.max_tokens / (time.perf_counter() - started))
        median = sorted(rates[1:])[options.rounds // 2]  # the first one warms up
        print(f"{level:3} prompts: {median:.1f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
