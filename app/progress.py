"""A bar on the terminal for what takes long; nothing at all where nobody looks on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def progress_bar() -> Iterator[Callable[[str, float], None]]:
    """A function that shows what is being done and how much of it is done (0 to 1; 0: that is not known)."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bars:
        bar = bars.add_task("", total=None)
        yield lambda stage, fraction: bars.update(
            bar, description=stage, completed=fraction, total=1.0 if fraction else None
        )
