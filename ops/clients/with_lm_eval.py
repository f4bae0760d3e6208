"""lm-eval: accuracy and log-likelihoods over completions with echo, generated text over chat completions."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}  # the data is here; no progress bars

import lm_eval
from lm_eval.tasks import TaskManager

from ops.clients.served import Server, prove, same

DOCUMENTS = [
    {"country": "France", "capitals": ["Paris", "Rome", "Berlin"], "right": 0},
    {"country": "Italy", "capitals": ["Madrid", "Rome", "Oslo"], "right": 1},
    {"country": "Japan", "capitals": ["Beijing", "Seoul", "Tokyo"], "right": 2},
    {"country": "Australia", "capitals": ["Sydney", "Canberra", "Melbourne"], "right": 1},
    {"country": "Turkey", "capitals": ["Istanbul", "Izmir", "Ankara"], "right": 2},
    {"country": "Brazil", "capitals": ["Rio de Janeiro", "Buenos Aires", "Brasilia"], "right": 2},
]
LIKELIHOOD = {
    "task": "capitals_by_likelihood",
    "output_type": "multiple_choice",
    "doc_to_text": "The capital of {{country}} is",
    "doc_to_choice": "{{capitals}}",
    "doc_to_target": "right",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}
CHAT = {
    "task": "capitals_by_chat",
    "output_type": "generate_until",
    "doc_to_text": "What is the capital of {{country}}?",
    "doc_to_target": "The capital of {{country}} is {{capitals[right]}}",
    "generation_kwargs": {"until": ["."], "max_gen_toks": 24, "temperature": 0},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}


def evaluate(server: Server, model: str, path: str, task: dict[str, Any]) -> tuple[float, Any]:
    """The task's only figure, and its samples in order."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "capitals.jsonl")
        data.write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
        files = {
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(data)}},
            "test_split": "test",
        }
        # YAML takes JSON.
        Path(folder, "task.yaml").write_text(json.dumps({**task, **files}))
        results = lm_eval.simple_evaluate(
            model=model,
            model_args={"model": server.model, "base_url": server.url + path, "max_length": 2048},
            tasks=[task["task"]],
            task_manager=TaskManager(include_path=folder, include_defaults=False),
            apply_chat_template=model == "local-chat-completions",
            bootstrap_iters=0,
        )
    (metric,) = task["metric_list"]
    samples = sorted(results["samples"][task["task"]], key=lambda sample: sample["doc_id"])
    return results["results"][task["task"]][f"{metric['metric']},none"], samples


def likelihood(server: Server, context: str, continuation: str) -> float:
    """Log-probability of a continuation, summed from an echoed prompt."""
    tokens = server.post("/tokenize", prompt=context)["count"]
    (choice,) = server.post(
        "/v1/completions", prompt=context + continuation, echo=True, logprobs=1, max_tokens=0
    )["choices"]
    return float(sum(choice["logprobs"]["token_logprobs"][tokens:]))


def local_completions(server: Server) -> None:
    accuracy, samples = evaluate(server, "local-completions", "/v1/completions", LIKELIHOOD)
    right = 0
    for sample, document in zip(samples, DOCUMENTS, strict=True):
        capitals: Any = document["capitals"]
        context = f"The capital of {document['country']} is"
        wanted = [likelihood(server, context, f" {capital}") for capital in capitals]
        got = [value for value, _ in sample["filtered_resps"]]
        assert all(abs(a - b) < 1e-9 for a, b in zip(got, wanted, strict=True)), (got, wanted)
        right += wanted.index(max(wanted)) == document["right"]
    same(accuracy, right / len(DOCUMENTS))
    assert right > 0


def local_chat_completions(server: Server) -> None:
    accuracy, samples = evaluate(server, "local-chat-completions", "/v1/chat/completions", CHAT)
    right = 0
    for sample, document in zip(samples, DOCUMENTS, strict=True):
        capitals: Any = document["capitals"]
        question = f"What is the capital of {document['country']}?"
        wanted = server.said(question, stop=["."], max_tokens=24)
        same(sample["filtered_resps"], [wanted])
        right += wanted == f"The capital of {document['country']} is {capitals[document['right']]}"
    same(accuracy, right / len(DOCUMENTS))
    assert right > 0


if __name__ == "__main__":
    prove("lm_eval", local_completions, local_chat_completions)
