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

Kind = Literal["free", "list", "records"]
"""What is asked for: free text, a list of strings, or records that are half names and punctuation."""
KINDS: tuple[Kind, ...] = ("free", "list", "records")

_LIST_ITEM_TOKENS = 8
_RECORD_TOKENS = 48


def schema_of(kind: Kind, max_tokens: int) -> dict[str, Any] | None:
    """A schema whose answers do not end before `max_tokens`, but could; None for free text.

    It asks for so many items that the shortest ones fit, and that those a model writes do not.
    """
    if kind == "free":
        return None
    if kind == "list":
        items: dict[str, Any] = {"type": "string", "minLength": _LIST_ITEM_TOKENS - 2}
        return {"type": "array", "items": items, "minItems": max(1, max_tokens // _LIST_ITEM_TOKENS)}
    return {"type": "array", "items": _RECORD, "minItems": max(1, max_tokens // _RECORD_TOKENS)}


_RECORD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "full_name": {"type": "string", "maxLength": 20},
        "date_of_birth": {"type": "string", "pattern": "^(19|20)[0-9]{2}-[01][0-9]$"},
        "number_of_children": {"type": "integer", "minimum": 0, "maximum": 20},
        "country_of_residence": {"type": "string", "maxLength": 20},
        "is_available": {"type": "boolean"},
        "preferred_language": {"enum": ["english", "french", "german", "spanish"]},
    },
    "required": [
        *("full_name", "date_of_birth", "number_of_children"),
        *("country_of_residence", "is_available", "preferred_language"),
    ],
    "additionalProperties": False,
}


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One request of the benchmark."""

    messages: list[dict[str, str]]
    seed: int
    schema: dict[str, Any] | None = None


class Workload:
    """An endless, reproducible supply of jobs.

    Every job has a system message of `prompt_words` words and a short user message of its own. With
    `prompts="shared"` all jobs of one workload have the same system message, with "distinct" each its own.
    """

    def __init__(self, *, prompts: Literal["shared", "distinct"], prompt_words: int, seed: str) -> None:
        self._random = random.Random(seed)
        self._prompt_words = prompt_words
        self._shared = self._words(prompt_words) if prompts == "shared" else None
        self._made = 0

    def next(self) -> Job:
        """Make the next job."""
        system = self._words(self._prompt_words) if self._shared is None else self._shared
        user = f"Write a long story about {self._words(12)}."
        job = Job(
            messages=[{"role": "system", "content": system}, {"role": "user", "content": user}],
            seed=self._made,
        )
        self._made += 1
        return job

    def _words(self, count: int) -> str:
        return " ".join(self._random.choices(_WORDS, k=count))
