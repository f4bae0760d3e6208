"""guidellm: what a benchmark reports to have sent and got is what the server counted."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ops.clients.served import Server, prove, same

REQUESTS = 6
OUTPUT_TOKENS = 12
PROMPTS = ["Name a color.", "What is a whale?", "Count to ten.", "Say hello.", "Who are you?", "Why?"]
COUNTERS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total")


def benchmark(server: Server, request_format: str) -> Any:
    """The report of one short run; every answer is cut by its token budget."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "prompts.jsonl")
        # More than are sent: where the data ends, guidellm may end before the last answer.
        lines = [{"prompt": prompt, "output_tokens_count": OUTPUT_TOKENS} for prompt in 3 * PROMPTS]
        data.write_text("".join(json.dumps(line) + "\n" for line in lines))
        report = Path(folder, "report.json")
        options = {
            "--backend": f"kind=openai_http,target={server.url},model={server.model},"
            f"request_format={request_format}",
            "--profile": "kind=concurrent,streams=2",
            "--constraint": f"kind=max_requests,count={REQUESTS}",
            "--data": f"kind=json_file,path={data}",
            "--output": f"kind=json,path={report}",
        }
        command = [sys.executable, "-m", "guidellm", "run", "--disable-console"]
        arguments = [text for option in options.items() for text in option]
        subprocess.run([*command, *arguments], check=True, capture_output=True)
        return json.loads(report.read_text())


def counts(server: Server, request_format: str) -> None:
    """Compare a run's report with what the server's counters grew by."""
    before = [server.metric(name) for name in COUNTERS]
    (run,) = benchmark(server, request_format)["benchmarks"]
    grown = [server.metric(name) - start for name, start in zip(COUNTERS, before, strict=True)]
    metrics = run["metrics"]
    sums = [metrics[name]["successful"]["total_sum"] for name in ("prompt_token_count", "output_token_count")]
    same([*map(round, sums), metrics["request_totals"]["successful"]], grown)
    same(grown[1:], [REQUESTS * OUTPUT_TOKENS, REQUESTS])
    same(metrics["request_totals"]["total"], REQUESTS)


def chat_completions(server: Server) -> None:
    counts(server, "/v1/chat/completions")


def completions(server: Server) -> None:
    counts(server, "/v1/completions")


if __name__ == "__main__":
    prove("guidellm", chat_completions, completions)
