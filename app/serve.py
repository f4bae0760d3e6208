"""`radish serve`: load a model, show how far that is, serve it, say how to try it."""

from __future__ import annotations

import logging
import shlex
from typing import TYPE_CHECKING

import msgspec
import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from app.cli import CommandFailedError
from engine.config import Config
from engine.errors import ConfigError
from engine.models.errors import ModelError

if TYPE_CHECKING:
    from engine.engine import Engine

OPTIONS = Config


def run(config: Config) -> int:
    """Serve until told to stop; returns the exit code."""
    _set_up_logging(config)
    try:
        engine = _load(config)
    except (ModelError, ConfigError) as error:
        raise CommandFailedError(str(error)) from error
    from app.server import create_app, serve  # noqa: PLC0415  see _load

    try:
        uvloop.run(serve(create_app(engine, config), config, lambda url: _tell(url, engine.model_name)))
    except OSError as error:
        address = f"{config.host}:{config.port}"
        raise CommandFailedError(f"cannot listen on {address}: {error.strerror or error}") from error
    return 0


def _load(config: Config) -> Engine:
    """Load the engine; a bar shows how far that is, on a terminal only."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        bar = progress.add_task("starting torch", total=1.0)
        # Imported here because it imports torch: that takes seconds, and `--help` must not wait for it.
        from engine.load import load_engine  # noqa: PLC0415

        return load_engine(
            config, lambda stage, fraction: progress.update(bar, description=stage, completed=fraction)
        )


def _set_up_logging(config: Config) -> None:
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # What it tells at level info is told here, in this program's own words.
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLogger().level))


def _tell(url: str, model: str) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": "Tell me a joke about radishes."}]}
    quoted = shlex.quote(msgspec.json.encode(body).decode())
    print(f"Serving {model} on {url}\nTry it:\n")
    print(f"curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d {quoted}\n", flush=True)
