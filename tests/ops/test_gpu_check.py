"""The check for machines with a GPU: what can be seen of it without one."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "ops" / "gpu" / "RESULTS.md"


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "ops" / "gpu")
    return importlib.import_module("check")


def test_sections_are_replaced_one_by_one(check: Any, tmp_path: Path) -> None:
    path = tmp_path / "RESULTS.md"
    path.write_text("# Results on a GPU\n\nNot run yet.\n")
    first = check.Report(path)
    first.put("Models", ["| a |", "", "text"])
    first.put("Kernels", ["old"])
    check.Report(path).put("Kernels", ["new", "newer"])
    assert path.read_text() == (
        "# Results on a GPU\n\n## Models\n\n| a |\n\ntext\n\n## Kernels\n\nnew\nnewer\n"
    )


def test_a_part_that_fails_is_told_and_the_next_one_runs(
    check: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(check, "_LIMIT_S", 20)
    parts = [
        check.Part("breaks", ("-c", "print('| begun |', flush=True); raise KeyError('x')")),
        check.Part("wants", ("-c", "raise AssertionError"), ("no_such_module", "os")),
        check.Part("works", ("-c", "print('done')")),
    ]
    report = check.Report(tmp_path / "RESULTS.md")
    assert not check.run("models", parts, report)
    lines = report.sections["Models"]
    assert lines[:3] == ["FAILED: breaks (exit status 1)", "```", "| begun |"]
    assert "KeyError: 'x'" in lines
    assert "Left out, for want of no_such_module: wants" in lines
    assert "done" in lines
    assert check.run("models", parts[1:], report)


def test_a_part_that_hangs_is_ended(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_LIMIT_S", 0.5)
    part = check.Part("hangs", ("-c", "import threading; threading.Event().wait()"))
    assert part.lines() == ["FAILED: hangs was not done after 0.5 s", "```", "```"]


def test_without_a_gpu_nothing_is_written() -> None:
    before = RESULTS.read_text()
    environment = {**os.environ, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [ROOT / "ops" / "gpu_check"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("ops/gpu_check needs a GPU that the installed torch can use.")
    assert RESULTS.read_text() == before
