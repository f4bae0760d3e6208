"""What a test run has no time for: every row of the tile table compiled, every attention case interpreted.

usage: .venv/bin/python ops/kernel_matrix.py [ARCHITECTURE ...]

With names of architectures (sm_90 gfx942 …) only their rows are compiled. Takes half an hour on two cores.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.kernels.triton.cases import AttentionCase, attention_problem  # noqa: E402
from tests.kernels.triton.compiler import ARCHITECTURES, Architecture, FakeGpu  # noqa: E402

_ROWS = ((1, 30), (8, 200), (17, 17))
"""One for each of a row's three tiles."""


def main(names: list[str]) -> None:
    """Go through the table, then through the cases; end with 1 if anything is wrong."""
    wrong = [line for name in names or ARCHITECTURES for line in flaws(ARCHITECTURES[name])]
    if not names:
        tests = "tests/kernels/triton/numerics/test_attention.py"
        environment = {**os.environ, "TRITON_INTERPRET": "1", "ALL_KERNEL_CASES": "1"}
        command = [sys.executable, "-m", "pytest", "-q", tests]
        if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode:
            wrong.append("interpreted cases failed")
    print(f"{len(wrong)} flaws")
    sys.exit(bool(wrong))


def flaws(architecture: Architecture) -> Iterator[str]:
    """Kernels of one architecture that spill, or that need more shared memory than there is."""
    for case in variants():
        with FakeGpu(architecture) as gpu:
            attention_problem(case, architecture=architecture.name, device="meta").solve()
        for machine in gpu.machines():
            line = (
                f"{architecture.name} {case.name} {machine.kernel}: {machine.registers} registers,"
                f" {machine.spills} spills, {machine.shared / 1024:.0f} KiB shared"
            )
            print(line, flush=True)
            if machine.spills or machine.shared > architecture.shared_bytes:
                yield line


def variants() -> Iterator[AttentionCase]:
    """Every head size with what changes a kernel's registers."""
    for head_dim in (64, 128, 256):
        case = AttentionCase(
            name=f"d{head_dim}", rows=_ROWS, heads=(32, 8), head_dim=head_dim, dtype=torch.bfloat16
        )
        yield case
        yield replace(case, name=f"{case.name}-window", window=64)
        yield replace(case, name=f"{case.name}-fp8", quantized="fp8")
        yield replace(case, name=f"{case.name}-int8-window", quantized="int8", window=64)
        yield replace(case, name=f"{case.name}-float32", dtype=torch.float32)


if __name__ == "__main__":
    main(sys.argv[1:])
