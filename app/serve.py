"""`radish serve`: load a model, show how far that is, serve it, say how to try it."""

from __future__ import annotations

import errno
import gc
import logging
import os
import resource
import shlex
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
import uvloop

from app.cli import CommandFailedError
from app.logs import formatter
from app.progress import progress_bar
from engine.config import Config
from engine.errors import ConfigError
from engine.models.errors import ModelError
from engine.native_build import build_ahead

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

OPTIONS = Config
EXIT_HANGS = 70
"""Exit code (EX_SOFTWARE of sysexits.h) after a step that did not end even when it was told to."""
_OPEN_FILES = 65536
_SWITCH_S = 0.0005

_log = logging.getLogger("radish.app")


def run(config: Config) -> int:
    """Serve until told to stop; returns the exit code."""
    _set_up_logging(config)
    _allow_connections()
    with progress_bar() as progress, _one_line_errors(config), _no_collections():
        build_ahead(config)
        _check_files(config)
        progress("Starting torch", 0.0)
        # Imported here because they import torch: that takes seconds, and `--help` must not wait for it.
        from app.server import create_app, listen, serve  # noqa: PLC0415
        from engine.load import load_engine  # noqa: PLC0415

        gc.freeze()  # modules stay: to look for garbage among them takes 0.2 s
        listen(config).close()  # an address that is taken is told before the model is loaded
        tracing = _tracing(config)
        engine = load_engine(config, progress)
    with _one_line_errors(config):
        app = create_app(engine, config, tracing)
        needs_key = bool(config.api_key) or config.api_key_file is not None
        chats = engine.tokenizer.chat_template is not None
        # What is there by now stays; to look for garbage in it would stop every stream for 100 ms.
        gc.collect()
        gc.freeze()
        # Nor do streams wait long for the threads that prepare large requests (5 ms each time by default).
        sys.setswitchinterval(_SWITCH_S)
        uvloop.run(
            serve(app, config, lambda url: _tell(url, engine.model_name, chats=chats, needs_key=needs_key))
        )
    if tracing is not None:
        tracing.shutdown()
    if engine.hangs:
        _log.critical("a step does not end, so the process is ended without it")
        logging.shutdown()
        # Python would wait for the step's thread.
        os._exit(EXIT_HANGS)
    return 0


def _check_files(config: Config) -> None:
    """See that the files options name can be read, before anything that takes long.

    Raises:
        ConfigError: the message names the option.
    """
    if config.model is not None and not os.access(config.model, os.R_OK):
        why = "it cannot be read" if os.path.exists(config.model) else "there is no such file or directory"
        raise ConfigError(f"model: {config.model}: {why}")
    # Imported here because `--help` must not wait for what it imports.
    from app.keys import configured_keys  # noqa: PLC0415

    configured_keys(config)


def _allow_connections() -> None:
    """Raise the limit of open files, which most systems set for programs that call `select` (1024)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextmanager
def _no_collections() -> Iterator[None]:
    """Look for no garbage meanwhile: that is a fifth of the time that imports and tokenizers take."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _tracing(config: Config) -> TracerProvider | None:
    if config.trace_endpoint is None:
        return None
    try:
        # An optional extra, so imported only where it is asked for.
        from app.trace_export import exporting_provider  # noqa: PLC0415
    except ImportError as error:
        raise CommandFailedError(
            f"--trace-endpoint needs pip install 'radish-serve[traces]': {error}"
        ) from None
    return exporting_provider(config.trace_endpoint)


@contextmanager
def _one_line_errors(config: Config) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise CommandFailedError(str(error), status=2) from error
    except ModelError as error:
        raise CommandFailedError(str(error)) from error
    except OSError as error:
        where = error.filename or f"cannot listen on {config.host}:{config.port}"
        is_wrong = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
        raise CommandFailedError(
            f"{where}: {error.strerror or error}", status=2 if is_wrong else 1
        ) from error


def _set_up_logging(config: Config) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(config.log_format))
    logging.basicConfig(level=config.log_level.upper(), handlers=[handler])
    # What it tells at level info is told here, in this program's own words.
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLogger().level))


def _tell(url: str, model: str, *, chats: bool, needs_key: bool) -> None:
    """Where the server is, and a line to try it with: a chat if the model `chats`, else a completion."""
    text = "Tell me a joke about radishes."
    path = "chat/completions" if chats else "completions"
    prompt = {"messages": [{"role": "user", "content": text}]} if chats else {"prompt": text}
    quoted = shlex.quote(msgspec.json.encode({"model": model} | prompt).decode())
    key = " -H 'Authorization: Bearer YOUR_KEY'" if needs_key else ""
    print(f"Serving {model} on {url}\nTry it:\n")
    print(f"curl {url}/v1/{path} -H 'Content-Type: application/json'{key} -d {quoted}\n", flush=True)
