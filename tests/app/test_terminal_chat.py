"""The terminal chat against a server that says back what it was sent."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import httpx
import pytest

from app import terminal_chat
from app.cli import CommandFailedError
from app.terminal_chat import ChatConfig, Conversation, obey


class EchoServer:
    """Answers with the last message, a letter a chunk."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, object]] = []
        self.failure: bytes | None = None

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "echo"}]})
        body = json.loads(request.content)
        self.bodies.append(body)
        if self.failure is not None:
            return httpx.Response(400, content=self.failure)
        text = body["messages"][-1]["content"]
        if text == "break":
            return httpx.Response(200, content=b'data: {"error": {"message": "it broke"}}\n\n')
        chunks = [{"choices": [{"delta": {"content": letter}}]} for letter in text]
        lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in [{"choices": []}, *chunks]]
        return httpx.Response(200, content=": hello\n\n" + "".join(lines) + "data: [DONE]\n\n")


@pytest.fixture
def server() -> EchoServer:
    return EchoServer()


@pytest.fixture
def conversation(server: EchoServer) -> Conversation:
    client = httpx.Client(transport=httpx.MockTransport(server), base_url="http://echo")
    return Conversation(ChatConfig(system="be kind", max_tokens=7), client)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


SYSTEM = {"role": "system", "content": "be kind"}


def test_answers_stream_and_are_remembered(
    server: EchoServer, conversation: Conversation, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(conversation.ask("abc")) == ["a", "b", "c"]
    obey(conversation, "déf")
    assert capsys.readouterr().out == "déf\n"
    assert conversation.messages == [SYSTEM, user("abc"), assistant("abc"), user("déf"), assistant("déf")]
    assert server.bodies[1]["messages"] == conversation.messages[:4]
    assert server.bodies[1]["model"] == "echo"
    assert server.bodies[1]["max_tokens"] == 7
    assert server.bodies[1]["stream"] is True


def test_a_stopped_answer_is_kept_as_far_as_it_was_read(conversation: Conversation) -> None:
    pieces = conversation.ask("abc")
    assert next(pieces) == "a"
    pieces.close()
    assert conversation.messages == [SYSTEM, user("abc"), assistant("a")]


def test_an_answer_cannot_steer_the_terminal(
    conversation: Conversation, capsys: pytest.CaptureFixture[str]
) -> None:
    spoken = "a\x1b]0;title\x07\tb\x9b31m\r\n👩\u200d🌾"
    obey(conversation, spoken)
    assert capsys.readouterr().out == "a\ufffd]0;title\ufffd\tb\ufffd31m\ufffd\n👩\u200d🌾\n"
    assert conversation.messages[-1] == assistant(spoken)


def test_commands(conversation: Conversation, capsys: pytest.CaptureFixture[str]) -> None:
    obey(conversation, "hi")
    obey(conversation, "/clear")
    assert conversation.messages == [SYSTEM]
    obey(conversation, "/system be brief ")
    assert conversation.messages == [{"role": "system", "content": "be brief"}]
    obey(conversation, "/system")
    assert conversation.messages == []
    capsys.readouterr()
    obey(conversation, "/nope")
    assert "/nope is not a command" in capsys.readouterr().out
    obey(conversation, "")
    assert conversation.messages == []


@pytest.mark.parametrize(
    ("failure", "shown"),
    [(b'{"error": {"message": "too long"}}', "[too long]\n"), (b"<html>", "answered 400]\n")],
)
def test_an_error_is_shown_and_the_question_forgotten(
    server: EchoServer,
    conversation: Conversation,
    capsys: pytest.CaptureFixture[str],
    failure: bytes,
    shown: str,
) -> None:
    server.failure = failure
    obey(conversation, "hi")
    assert capsys.readouterr().out.endswith(shown)
    assert conversation.messages == [SYSTEM]


def test_an_error_within_an_answer(conversation: Conversation) -> None:
    with pytest.raises(CommandFailedError, match="it broke"):
        list(conversation.ask("break"))
    assert conversation.messages == [SYSTEM]


def test_lines_are_read_until_quit(
    server: EchoServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = httpx.Client
    monkeypatch.setattr(
        "httpx.Client", lambda **options: client(transport=httpx.MockTransport(server), **options)
    )
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\n/quit\nthree\n"))
    assert terminal_chat.run(ChatConfig(base_url="http://echo/v1", api_key="k")) == 0
    assert capsys.readouterr().out == "one\ntwo\n"
    assert len(server.bodies) == 2


def test_an_interrupt_drops_what_was_typed(
    server: EchoServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = httpx.Client
    monkeypatch.setattr(
        "httpx.Client", lambda **options: client(transport=httpx.MockTransport(server), **options)
    )
    typed: Iterator[str | BaseException] = iter(["one", KeyboardInterrupt(), "two", EOFError()])

    def read(prompt: str) -> str:
        line = next(typed)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", read)
    assert terminal_chat.run(ChatConfig(base_url="http://echo")) == 0
    assert capsys.readouterr().out == "one\n\ntwo\n"
    last = server.bodies[-1]["messages"]
    assert last == [user("one"), assistant("one"), user("two")]
