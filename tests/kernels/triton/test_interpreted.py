"""Runs the tests in `numerics` under Triton's interpreter, in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def test_interpreted_kernels(pytestconfig: pytest.Config) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=short", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, str(Path(__file__).parent / "numerics")],
        cwd=pytestconfig.rootpath,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.fail(done.stdout[-8000:] + done.stderr[-2000:], pytrace=False)
