"""What the benchmark asks: prompts of random words, with a prefix in common or none, and schemas."""

from __future__ import annotations

import random
from typing import Any, Literal

import msgspec

_WORDS = (
    *("amber", "basin", "cedar", "delta", "ember", "fjord", "gravel"),
    *("hollow", "island", "juniper", "kelp", "ledge", "marsh", "nectar"),
    *("opal", "prairie", "quartz", "ravine", "saffron", "tundra", "umber"),
    *("valley", "willow", "yarrow", "zenith", "beacon", "copper", "dynamo"),
)

_STRING = {"type": "string", "maxLength": 24}

# Small enough that an answer fits in the default number of tokens, and different in what they exercise.
SCHEMAS: tuple[dict[str, Any], ...] = (
    {
        "type": "object",
        "properties": {"name": _STRING, "age": {"type": "integer", "minimum": 0, "maximum": 130}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    {
        "type": "object",
        "properties": {
            "labels": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 4},
            "certain": {"type": "boolean"},
        },
        "required": ["labels", "certain"],
        "additionalProperties": False,
    },
    {
        "type": "object",
        "properties": {
            "tool": {"const": "weather"},
            "place": {
                "type": "object",
                "properties": {"city": _STRING, "country": _STRING},
                "required": ["city", "country"],
                "additionalProperties": False,
            },
        },
        "required": ["tool", "place"],
        "additionalProperties": False,
    },
    {
        "type": "object",
        "properties": {"answer": {"anyOf": [{"type": "null"}, {"enum": ["yes", "no"]}]}, "reason": _STRING},
        "required": ["answer", "reason"],
        "additionalProperties": False,
    },
)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One request of the benchmark."""

    messages: list[dict[str, str]]
    seed: int
    schema: dict[str, Any] | None


class Workload:
    """An endless, reproducible supply of jobs.

    Every job has a system message of `prompt_words` words and a short user message of its own. With
    `prompts="shared"` all jobs of one workload have the same system message, with "distinct" each its own.
    """

    def __init__(
        self, *, prompts: Literal["shared", "distinct"], schema: bool, prompt_words: int, seed: str
    ) -> None:
        self._random = random.Random(seed)
        self._schema = schema
        self._prompt_words = prompt_words
        self._shared = self._words(prompt_words) if prompts == "shared" else None
        self._made = 0

    def next(self) -> Job:
        """Make the next job."""
        system = self._words(self._prompt_words) if self._shared is None else self._shared
        task = "Fill in the form" if self._schema else "Write a long story"
        user = f"{task} about {self._words(12)}."
        job = Job(
            messages=[{"role": "system", "content": system}, {"role": "user", "content": user}],
            seed=self._made,
            schema=SCHEMAS[self._made % len(SCHEMAS)] if self._schema else None,
        )
        self._made += 1
        return job

    def _words(self, count: int) -> str:
        return " ".join(self._random.choices(_WORDS, k=count))
