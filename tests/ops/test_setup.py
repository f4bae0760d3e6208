"""The set-up shows pip's own progress on a terminal, and elsewhere only what failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.terminal import in_a_script, on_a_terminal

SETUP = Path(__file__).parents[2] / "ops" / "setup.py"
RUN = f"import runpy; run = runpy.run_path({str(SETUP)!r})['run']; run('sh', '-c', {{!r}})"


def command(script: str) -> tuple[str, ...]:
    return sys.executable, "-c", RUN.format(script)


def test_what_it_runs_is_seen_on_a_terminal_only() -> None:
    installs = command("echo Collecting torch; echo a warning >&2")
    assert on_a_terminal(*installs).split("\r\n") == ["Collecting torch", "a warning", ""]
    assert in_a_script(*installs) == ""


def test_a_failure_tells_everything_and_ends_it() -> None:
    failing = command("echo Collecting torch; echo no such version >&2; exit 3")
    done = subprocess.run(failing, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    first, second, last = done.stderr.splitlines()
    assert (first, second) == ("Collecting torch", "no such version")
    assert last.startswith("Set-up failed: sh -c ")
