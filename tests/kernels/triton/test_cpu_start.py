"""A server on a CPU starts without what takes long to import, where it is installed at all, and is not used:
Triton takes seconds, the validator another one with all that it checks formats by."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys
import app.__main__, app.serve, app.server, engine.load, engine.models.decoder
unused = ("triton", "jsonschema", "transformers")
print(*(name for name in sys.modules if name in unused or name.startswith("kernels.gpu")))
"""


def test_nothing_imports_what_a_cpu_does_without(pytestconfig: pytest.Config) -> None:
    command = [sys.executable, "-c", CODE]
    done = subprocess.run(command, cwd=pytestconfig.rootpath, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
