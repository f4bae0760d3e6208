"""The command `llm`, told of the server in its extra-openai-models.yaml."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ops.clients.served import DESCRIBE, QUESTION, TOKENS, Server, prove, same

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 16}, "people": {"type": "integer"}},
    "required": ["name", "people"],
    "additionalProperties": False,
}
MODELS = """\
- {{model_id: served, model_name: {model}, api_base: {url}, supports_schema: true, supports_tools: true}}
- {{model_id: served-completion, model_name: {model}, api_base: {url}, completion: true}}
- {{model_id: other, model_name: other, api_base: {url}}}
"""


def run(server: Server, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """`llm ARGUMENTS` with a home of its own."""
    with tempfile.TemporaryDirectory() as home:
        models = MODELS.format(model=server.model, url=server.openai_url)
        Path(home, "extra-openai-models.yaml").write_text(models)
        environment = {**os.environ, "LLM_USER_PATH": home, "OPENAI_API_KEY": "none"}
        return subprocess.run(
            [sys.executable, "-m", "llm", *arguments],
            check=check,
            capture_output=True,
            text=True,
            env=environment,
        )


def prompt(server: Server, question: str, *options: str, model: str = "served") -> str:
    greedy = ("-o", "temperature", "0", "-o", "max_tokens", str(TOKENS))
    return run(server, "prompt", "-m", model, *greedy, *options, question).stdout.removesuffix("\n")


def models(server: Server) -> None:
    listed = run(server, "models", "list").stdout
    for model in ("served", "served-completion"):
        assert model in listed, listed


def streamed(server: Server) -> None:
    same(prompt(server, QUESTION), server.said())


def unstreamed(server: Server) -> None:
    same(prompt(server, QUESTION, "--no-stream"), server.said())


def usage(server: Server) -> None:
    told = run(server, "prompt", "-m", "served", "-u", "-o", "temperature", "0", QUESTION).stderr
    messages = [{"role": "user", "content": QUESTION}]
    counts = server.whole_chat(messages=messages)["usage"]
    assert f"{counts['prompt_tokens']} input, {counts['completion_tokens']} output" in told, told


def schema(server: Server) -> None:
    form: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "output", "schema": SCHEMA}}
    value = json.loads(prompt(server, DESCRIBE, "--schema", json.dumps(SCHEMA)))
    same(value, json.loads(server.said(DESCRIBE, response_format=form)))
    same(set(value), {"name", "people"})


def completion(server: Server) -> None:
    said = "The capital of France is"
    plain = server.post("/v1/completions", prompt=said, temperature=0, max_tokens=TOKENS)
    text = plain["choices"][0]["text"]
    same(prompt(server, said, model="served-completion"), text)


def errors(server: Server) -> None:
    failed = run(server, "prompt", "-m", "other", QUESTION, check=False)
    same(failed.returncode, 1)
    assert "404" in failed.stderr, failed.stderr


if __name__ == "__main__":
    prove("llm", models, streamed, unstreamed, usage, schema, completion, errors)
