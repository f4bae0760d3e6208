"""Progress shows on a terminal, and nowhere else."""

from __future__ import annotations

import sys

import pytest

from tests.terminal import in_a_script, on_a_terminal

BAR = (
    *(sys.executable, "-c"),
    "from app.progress import progress_bar\n"
    "with progress_bar() as progress: progress('Compiling the native step', 0.0)",
)
BENCH = (
    *(sys.executable, "-c"),
    "from app.bench import _progress\n"
    "with _progress() as progress: progress.advance(progress.add_task('8 at a time', total=2))",
)


@pytest.mark.parametrize(("command", "shown"), [(BAR, "Compiling the native step"), (BENCH, "8 at a time")])
def test_it_shows_on_a_terminal_only(command: tuple[str, ...], shown: str) -> None:
    assert shown in on_a_terminal(*command)
    assert in_a_script(*command) == ""
