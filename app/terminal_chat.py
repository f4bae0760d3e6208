"""`radish chat`: talk to a running server from a terminal."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from typing import Annotated, Any

import httpx
import msgspec

from app.cli import CommandFailedError

_Meta = msgspec.Meta

_HELP = """\
/system TEXT   set the system message and start anew; without TEXT: none
/clear         start anew
/quit          leave; so does the end of the input
Ctrl-C stops an answer, or drops what was typed."""

# An answer must not steer the terminal: what would, apart from line ends and tabs, is shown as U+FFFD.
_HARMLESS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}

_CONNECT_S = 5.0
_ANSWER_S = 600.0
"""Longest silence within an answer; a long prompt takes its time."""


class ChatConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `radish chat`."""

    base_url: Annotated[str, _Meta(description="Server to talk to.")] = "http://127.0.0.1:8000"
    model: Annotated[str | None, _Meta(description="Without it: the first one the server lists.")] = None
    api_key: Annotated[str | None, _Meta(description="Key to send, where the server wants one.")] = None
    system: Annotated[str | None, _Meta(description="System message.")] = None
    temperature: Annotated[float, _Meta(ge=0, description="0 is greedy.")] = 0.7
    max_tokens: Annotated[int, _Meta(ge=1, description="Longest answer.", extra={"unit": "TOKENS"})] = 1024


class Conversation:
    """What was said so far, and the server that answers."""

    def __init__(self, config: ChatConfig, client: httpx.Client) -> None:
        self._config = config
        self._client = client
        self._model = config.model or self._first_model()
        self.messages: list[dict[str, str]] = []
        self.restart(config.system)

    @property
    def system(self) -> str | None:
        """The system message, if there is one."""
        return self.messages[0]["content"] if self.messages and self.messages[0]["role"] == "system" else None

    def restart(self, system: str | None) -> None:
        """Forget what was said."""
        self.messages = [{"role": "system", "content": system}] if system else []

    def ask(self, text: str) -> Generator[str]:
        """Say `text`; yields the answer as it comes.

        An answer that is not read to its end is kept as far as it was read.

        Raises:
            CommandFailedError: the server did not answer. What was said is forgotten.
        """
        self.messages.append({"role": "user", "content": text})
        answer = ""
        try:
            for piece in filter(None, self._stream()):
                answer += piece
                yield piece
        finally:
            if answer:
                self.messages.append({"role": "assistant", "content": answer})
            else:
                self.messages.pop()

    def _stream(self) -> Iterator[str]:
        body = {
            "model": self._model,
            "messages": self.messages,
            "temperature": self._config.temperature,
            "max_tokens": self._config.max_tokens,
            "stream": True,
        }
        try:
            with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.is_error:
                    response.read()
                    raise CommandFailedError(_error_message(response))
                for line in response.iter_lines():
                    if line.startswith("data:") and line != "data: [DONE]":
                        yield _content(json.loads(line[5:]))
        except httpx.HTTPError as error:
            raise CommandFailedError(f"{self._config.base_url}: {error}") from error

    def _first_model(self) -> str:
        try:
            response = self._client.get("/v1/models")
        except httpx.HTTPError as error:
            raise CommandFailedError(f"no server at {self._config.base_url}: {error}") from error
        if response.is_error:
            raise CommandFailedError(_error_message(response))
        return str(response.json()["data"][0]["id"])


OPTIONS = ChatConfig


def run(config: ChatConfig) -> int:
    """Read lines and print answers until the input ends or the user leaves; returns the exit code."""
    interactive = sys.stdin.isatty()
    if interactive:
        with suppress(ImportError):
            importlib.import_module("readline")  # gives input() its line editing, where there is one
        print(_HELP)
    headers = {"Authorization": f"Bearer {config.api_key}"} if config.api_key else {}
    timeout = httpx.Timeout(_ANSWER_S, connect=_CONNECT_S)
    base_url = config.base_url.rstrip("/").removesuffix("/v1")
    with httpx.Client(base_url=base_url, headers=headers, timeout=timeout) as client:
        conversation = Conversation(config, client)
        while True:
            try:
                line = input("> " if interactive else "").strip()
            except KeyboardInterrupt:
                print()
                continue
            except EOFError:
                return 0
            if line == "/quit":
                return 0
            obey(conversation, line)


def obey(conversation: Conversation, line: str) -> None:
    """Do what one line of input says: a command, or something to be answered."""
    command, _, rest = line.partition(" ")
    match command:
        case "":
            pass
        case "/help":
            print(_HELP)
        case "/clear":
            conversation.restart(conversation.system)
        case "/system":
            conversation.restart(rest.strip() or None)
        case _ if command.startswith("/"):
            print(f"{command} is not a command; /help lists them.")
        case _:
            _print_answer(conversation.ask(line))


def _print_answer(answer: Generator[str]) -> None:
    try:
        with closing(answer) as pieces:  # the server stops when nobody listens any more
            for piece in pieces:
                print(piece.translate(_HARMLESS), end="", flush=True)
    except CommandFailedError as error:
        print(f"[{error}]", end="")
    except KeyboardInterrupt:
        print(" [stopped]", end="")
    print()


def _content(event: dict[str, Any]) -> str:
    """The text of one chunk.

    Raises:
        CommandFailedError: the server sent an error instead.
    """
    if "error" in event:
        raise CommandFailedError(str(event["error"]["message"]))
    return "".join(choice["delta"].get("content") or "" for choice in event["choices"])


def _error_message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{response.url} answered {response.status_code}"
