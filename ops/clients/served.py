"""A running server asked over plain HTTP: what its clients must get, without a client between.

Only the standard library: this runs in the environment of every client.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any, TypeVar
from urllib.request import Request, urlopen

QUESTION = "What is the capital of France?"
"""Answered in one sentence by the shipped model."""
DESCRIBE = "Bern is a city with 130000 people. Describe it."
"""Asks for a `City`."""
TOKENS = 120
"""Budget that is enough for every answer here."""


Refusal = TypeVar("Refusal", bound=Exception)


class Server:
    """The reference. `url` has no path; `openai_url` is what OpenAI's clients call the base URL."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.openai_url = f"{self.url}/v1"
        self.model: str = self.get("/v1/models")["data"][0]["id"]

    def get(self, path: str) -> Any:
        """The JSON of a GET."""
        return json.loads(self._read(path, None))

    def post(self, path: str, **fields: Any) -> Any:
        """The JSON that comes back for a JSON object; `model` is added."""
        return json.loads(self._read(path, {"model": self.model, **fields}))

    def chat(self, question: str = QUESTION, **fields: Any) -> Any:
        """The only choice of a greedy chat completion."""
        messages = [{"role": "user", "content": question}]
        (choice,) = self.whole_chat(messages=messages, **{"max_tokens": TOKENS, **fields})["choices"]
        return choice

    def said(self, question: str = QUESTION, **fields: Any) -> str:
        """The text of a greedy chat completion."""
        text: str = self.chat(question, **fields)["message"]["content"]
        assert text
        return text

    def whole_chat(self, **fields: Any) -> Any:
        """A greedy chat completion as it came."""
        return self.post("/v1/chat/completions", temperature=0, **fields)

    def vectors(self, texts: list[str]) -> list[list[float]]:
        """The embeddings of texts."""
        return [entry["embedding"] for entry in self.post("/v1/embeddings", input=texts)["data"]]

    def metric(self, name: str, **labels: str) -> float:
        """Sum of a metric's samples that have these labels."""
        lines = re.findall(rf"(?m)^{re.escape(name)}(?:\{{(.*)\}})? (\S+)$", self._read("/metrics", None))
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        return sum(float(value) for found, value in lines if all(label in found for label in wanted))

    def _read(self, path: str, body: dict[str, Any] | None) -> str:
        data = None if body is None else json.dumps(body).encode()
        with urlopen(Request(self.url + path, data, {"Content-Type": "application/json"})) as response:
            text: bytes = response.read()
        return text.decode()


def same(got: object, wanted: object) -> None:
    """Check that a client got what the server says without it."""
    assert got == wanted, f"got {got!r} where plain HTTP says {wanted!r}"


def near(got: Iterable[Iterable[float]], wanted: Iterable[Iterable[float]]) -> None:
    """Check that a client got the vectors that come without it, whatever they were packed in."""
    for one, other in zip(got, wanted, strict=True):
        assert all(abs(a - b) < 1e-6 for a, b in zip(one, other, strict=True))


def joined(pieces: Iterable[str | None], wanted: str) -> None:
    """Check that a stream came in pieces, and that they make up the text that comes without streaming."""
    parts = [piece for piece in pieces if piece]
    same("".join(parts), wanted)
    assert len(parts) > 1, f"one piece: {parts}"


def refused(error_type: type[Refusal], call: Callable[[], object]) -> Refusal:
    """The error that a call raises, as it must."""
    try:
        call()
    except error_type as error:
        return error
    raise AssertionError("what should be refused was taken")


def prove(distribution: str, *checks: Callable[[Server], None]) -> None:
    """Run each check on the server that the command line names, and tell what they prove."""
    server = Server(sys.argv[1])
    for check in checks:
        check(server)
    names = ", ".join(check.__name__.replace("_", " ") for check in checks)
    print(f"{distribution} {version(distribution)}: {names}")
