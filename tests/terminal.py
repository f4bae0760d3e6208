"""Commands run on a terminal, as a person runs them, and without one, as a script does."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

_ROOT = Path(__file__).parents[1]


def on_a_terminal(*command: str) -> str:
    """What a command whose output and errors are a terminal writes there."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=_ROOT, env={**os.environ, "TERM": "xterm"}
    ) as process:
        os.close(theirs)
        written = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # how Linux tells that the other end is closed
                break
            written += part
    os.close(ours)
    assert process.returncode == 0, written.decode()
    return written.decode()


def in_a_script(*command: str) -> str:
    """What a command whose output and errors are a pipe writes there."""
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=_ROOT)
    return done.stdout + done.stderr
