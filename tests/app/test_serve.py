"""`radish serve` as a person runs it: the real command, the real model, the line it says to try."""

from __future__ import annotations

import gc
import resource
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import uvloop

from app.__main__ import main
from engine import load
from tests.fakes import fake_engine


def test_the_line_to_try_works_and_sigterm_ends_it() -> None:
    command = [sys.executable, "-m", "app", "serve", "--port", "0", "--kv-memory", "64"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            line = next(line for line in process.stdout if line.startswith("curl "))
            _, url, _, header, _, body = shlex.split(line)
            name, value = header.split(": ")
            answer = httpx.post(url, content=body, headers={name: value}, timeout=60).raise_for_status()
            (choice,) = answer.json()["choices"]
            assert choice["message"]["content"]
            assert (
                first == f"Serving {answer.json()['model']} on {url.removesuffix('/v1/chat/completions')}\n"
            )
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()


def test_many_connections_may_be_open() -> None:
    """More than the thousand files that systems allow by default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        with socket.create_server(("127.0.0.1", 0)) as taken:
            assert main(["serve", "--port", str(taken.getsockname()[1])]) == 1
        allowed = 65536 if hard == resource.RLIM_INFINITY else min(65536, hard)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (allowed, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_killed_server_starts_again_on_its_port() -> None:
    """SIGKILL amid a stream: the stream breaks off, no process is left, and the next server says the same."""
    first: Any = None
    port = 0
    for attempt in range(2):
        command = [sys.executable, "-m", "app", "serve", "--port", str(port), "--kv-memory", "64"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                url = process.stdout.readline().split()[-1]
                port = int(url.rpartition(":")[2])
                model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
                body = {"model": model, "prompt": "The sky is", "max_tokens": 8, "temperature": 0}
                said = httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()["choices"][0]["text"]
                assert said == (first or said)
                first = said
                if attempt:
                    continue
                others = psutil.Process(process.pid).children(recursive=True)
                assert others, "grammars are compiled by a process of their own"
                endless = body | {"max_tokens": 2000, "ignore_eos": True, "stream": True}
                with httpx.stream("POST", f"{url}/v1/completions", json=endless, timeout=60) as stream:
                    lines = stream.iter_lines()
                    assert next(lines).startswith("data: {")
                    process.kill()
                    with pytest.raises(httpx.RemoteProtocolError):
                        for _ in lines:
                            pass
                _, alive = psutil.wait_procs(others, timeout=30)
                assert alive == []
            finally:
                process.kill()


def test_streams_wait_neither_for_garbage_nor_long_for_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = fake_engine()
    frozen: list[int] = []
    intervals = [sys.getswitchinterval()]

    def run(serving: Coroutine[Any, Any, None]) -> None:
        serving.close()
        frozen.append(gc.get_freeze_count())
        intervals.append(sys.getswitchinterval())

    monkeypatch.setattr(load, "load_engine", lambda config, progress: engine)
    monkeypatch.setattr(uvloop, "run", run)
    tracked = len(gc.get_objects())
    try:
        assert main(["serve", "--port", "0"]) == 0
    finally:
        gc.unfreeze()
        sys.setswitchinterval(intervals[0])
        engine.compiler.close()
    assert frozen[0] > tracked / 2  # what was loaded, not what is made for a request
    assert intervals[1] == pytest.approx(0.0005)


def test_an_address_that_is_taken_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"radish serve: cannot listen on 127.0.0.1:{port}: Address already in use")


def test_a_model_that_cannot_be_loaded_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.gguf").write_text("not a model")
    for path in (tmp_path / "text.gguf", tmp_path):
        assert main(["serve", "--port", "0", "--model", str(path)]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("radish serve: ")
        assert str(path) in line


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("model", "{missing}", "model: {missing}: there is no such file or directory"),
        ("api-key-file", "{missing}", "api_key_file: {missing}: No such file or directory"),
        ("api-key-file", "{tmp_path}", "api_key_file: {tmp_path}: Is a directory"),
        (
            "api-key-file",
            "{wrong}",
            "api_key_file: {wrong}, line 2: Expected `int` >= 1 - at `$.concurrency`",
        ),
        ("api-key-file", "{empty}", "api_key_file: {empty} holds no key"),
        ("api-key", "a,,b", "argument --api-key: must not be empty"),
        ("api-key", "two words", "api_key: a key is empty, or has white space in it"),
        (
            "host",
            "no.such.host.invalid",
            "cannot listen on no.such.host.invalid:0: Name or service not known",
        ),
        ("host", "192.0.2.1", "cannot listen on 192.0.2.1:0: Cannot assign requested address"),
        ("host", "", "argument --host: must not be empty"),
        (
            "cors-origins",
            "*, https://a.example/",
            "argument --cors-origins: must be an origin as browsers send it, such as https://example.org, "
            "not 'https://a.example/'",
        ),
        (
            "trace-endpoint",
            "127.0.0.1:4318",
            "argument --trace-endpoint: must be a URL that begins with http:// or https://, "
            "not '127.0.0.1:4318'",
        ),
        ("keep-alive", "inf", "argument --keep-alive: must be finite, not inf"),
        ("step-timeout", "1e300", "argument --step-timeout: must be at most 100000000.0, not 1e300"),
        ("threads", "100000", "argument --threads: must be at most 1024, not 100000"),
        ("kv-memory", "99999999999", "kv_memory: there are only {total} MiB of memory"),
        ("page-size", "100000000", "kv_memory: 64 MiB hold fewer than 2 pages of 2250000000 KiB"),
        ("kv-dtype", "fp8", "kv_dtype: fp8 runs on a GPU only; int8 takes as little memory"),
    ],
)
def test_a_wrong_option_is_one_line_before_the_model_is_loaded(
    *,
    option: str,
    value: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def weights(*arguments: Any, **named: Any) -> None:
        raise AssertionError("the model is being loaded")

    monkeypatch.setattr(load, "_native", weights)
    (tmp_path / "wrong").write_text("key-1\nkey-2 concurrency=0\n")
    (tmp_path / "empty").write_text("# none\n")
    names = {
        "tmp_path": tmp_path,
        "total": psutil.virtual_memory().total >> 20,
        **{name: tmp_path / name for name in ("missing", "wrong", "empty")},
    }
    options = {"port": "0", "device": "cpu", "kv-memory": "64", option: value.format(**names)}
    command = ["serve", *(f"--{name}={text}" for name, text in options.items())]
    try:
        status = main(command)
    except SystemExit as error:  # as argparse ends
        status = int(error.code or 0)
    assert status == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"radish serve: {message.format(**names)}"
