"""Runs the kernels' tests on this machine's GPU, compares whole models, times everything, writes RESULTS.md.

usage: ops/gpu_check

Kernels need torch, triton, numpy and pytest. Models need msgspec and transformers too. The engine's own test
needs what the server needs; where that is missing it is left out, and the report says so.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import triton

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "ops" / "gpu" / "RESULTS.md"
TESTS = "tests/kernels/triton/numerics"
SERVER = ["msgspec", "anyio", "llguidance", "tokenizers", "regex", "jinja2", "gguf"]
NEEDED = {
    f"{TESTS}/test_sampling.py": ["msgspec"],
    **{f"{TESTS}/test_{name}.py": SERVER for name in ("engine", "formats", "graphs")},
}
"""Modules beyond torch, triton, numpy and pytest that a test file imports."""


def main() -> None:
    """Run all, report as it goes, and write the report."""
    if not torch.cuda.is_available():
        sys.exit("ops/gpu_check needs a GPU that the installed torch can use. Nothing was run or written.")
    started = time.time()
    lines = ["# Results on a GPU", "", *environment(), ""]
    passed = True
    for title, section in (
        ("Correctness", tests),
        ("Models", models),
        ("Kernels", kernels),
        ("Tiles", tiles),
    ):
        print(f"== {title}", flush=True)
        lines += [f"## {title}", ""]
        for line in section():
            print(line, flush=True)
            passed = passed and not line.startswith("FAILED")
            lines.append(line)
        lines.append("")
    lines.append(f"The whole check took {time.time() - started:.0f} s.")
    RESULTS.write_text("\n".join(lines) + "\n")
    print(f"Written to {RESULTS}")
    sys.exit(not passed)


def environment() -> list[str]:
    """What this was run on."""
    properties = torch.cuda.get_device_properties(0)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return [
        f"{properties.name}, {properties.multi_processor_count} multiprocessors,"
        f" {properties.total_memory >> 30} GiB; torch {torch.__version__}, triton {triton.__version__},"
        f" Python {sys.version.split()[0]}; commit {commit.stdout.strip() or 'unknown'}.",
    ]


def missing(modules: list[str]) -> list[str]:
    """Those that cannot be imported."""
    return [module for module in modules if importlib.util.find_spec(module) is None]


def tests() -> Iterator[str]:
    """The cases of the interpreter, all of them, on the device."""
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", str(ROOT), "-q", "--tb=short"]
    for path, modules in NEEDED.items():
        lacking = missing(modules)
        if lacking:
            command.append(f"--ignore={path}")
            yield f"Left out, for want of {', '.join(lacking)}: {path}"
    if not missing(["anyio"]):
        command += ["-o", "anyio_mode=auto"]
    done = subprocess.run([*command, TESTS], cwd=ROOT, capture_output=True, text=True, check=False)
    output = done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or ["no output"]
    if done.returncode:
        yield f"FAILED: {output[-1]}"
        yield "```"
        yield from output[-200:]
        yield "```"
    else:
        yield output[-1]


def models() -> Iterator[str]:
    """Whole models against transformers."""
    lacking = missing(["msgspec", "transformers"])
    if lacking:
        yield f"Left out: bring wheels of {', '.join(lacking)} for this Python (pip download)."
        return
    from models import COMPARED, TIMED, agreement, step_times  # noqa: PLC0415  # needs the modules above

    yield "Against `transformers` on the same random weights:"
    yield ""
    yield "| model | dtype | largest difference of logits, in standard deviations | equal greedy texts |"
    yield "|---|---|---|---|"
    for shape, dtype, kind in COMPARED:
        found = agreement(shape, dtype, kind)
        torch.cuda.empty_cache()
        yield f"| {found.model} | {found.dtype} | {found.largest_difference:.2g} | {found.equal_texts} |"
    for shape, kind in TIMED:
        yield ""
        yield f"A decode step of the {shape.name} model in {kind or 'bfloat16'} at 1024 tokens of context:"
        yield ""
        yield "| batch | ms as a graph | tokens/s | ms kernel by kernel |"
        yield "|---|---|---|---|"
        for size, us, launched_us in step_times(shape, kind):
            yield f"| {size} | {us / 1e3:.2f} | {size / us * 1e6:.0f} | {launched_us / 1e3:.2f} |"
        torch.cuda.empty_cache()


def kernels() -> Iterator[str]:
    """Times against what the GPU can do."""
    from kernel_times import all_times  # noqa: PLC0415  # makes no sense before a GPU is known to be there
    from timing import copy_bandwidth, matmul_rate  # noqa: PLC0415

    bandwidth, rate = copy_bandwidth(), matmul_rate()
    yield f"Measured peaks: copy {bandwidth / 1e12:.2f} TB/s, bfloat16 product {rate / 1e12:.0f} TFLOP/s."
    yield "Medians of graph replays with a cold L2 cache; 32 query heads over 8 KV heads of 128, pages of 16."
    yield ""
    yield "| kernel | shape | µs | rate | share of the measured peak | beside |"
    yield "|---|---|---|---|---|---|"
    for row in all_times():
        rates, share = "", ""
        if row.bytes:
            achieved = row.bytes / (row.us * 1e-6)
            rates, share = f"{achieved / 1e12:.2f} TB/s", f"{achieved / bandwidth:.0%}"
        elif row.flops:
            achieved = row.flops / (row.us * 1e-6)
            rates, share = f"{achieved / 1e12:.0f} TFLOP/s", f"{achieved / rate:.0%}"
        yield f"| {row.kernel} | {row.shape} | {row.us:.1f} | {rates} | {share} | {row.beside} |"


def tiles() -> Iterator[str]:
    """What `radish tune` would write."""
    from kernels.gpu.tuning import tune  # noqa: PLC0415  # as above

    for head_dim in (64, 128):
        for page_type in ("bfloat16", "int8"):
            for name, best in tune(head_dim, page_type, lambda _done: None).items():
                yield f"- {name}: {', '.join(map(str, best))}"


if __name__ == "__main__":
    main()
