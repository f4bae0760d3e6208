"""A server on a CPU starts without Triton, whose import takes seconds where it is installed at all."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys
import app.__main__, engine.load, engine.models.decoder
print(*(name for name in sys.modules if name == "triton" or name.startswith("kernels.gpu")))
"""


def test_nothing_imports_triton(pytestconfig: pytest.Config) -> None:
    command = [sys.executable, "-c", CODE]
    done = subprocess.run(command, cwd=pytestconfig.rootpath, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
