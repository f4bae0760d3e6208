"""What a test run has no time for: kernels of every kind of model compiled, every attention case interpreted.

usage: .venv/bin/python ops/kernel_matrix.py [ARCHITECTURE ...]

With names of architectures (sm_90 gfx942 …) only theirs are compiled. Takes an hour on two cores.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from engine.models.quantized import Kind  # noqa: E402
from tests.kernels.triton.cases import AttentionCase, attention_problem  # noqa: E402
from tests.kernels.triton.compiler import ARCHITECTURES, Architecture, FakeGpu, Machine  # noqa: E402
from tests.kernels.triton.launches import (  # noqa: E402
    launch_model_step,
    launch_quantized,
    launch_quantized_step,
    model_spec,
)

_ROWS: Final = ((1, 30), (8, 200), (17, 17))
"""One for each of a row's three tiles."""
KINDS: Final[tuple[Kind, ...]] = ("int8", "fp8", "int4")
_ATTENTION: Final = frozenset({"split_kernel", "prefill_kernel"})
_WITH_PRODUCTS: Final = _ATTENTION | {"linear_8bit_kernel", "linear_int4_kernel"}


def main(names: list[str]) -> None:
    """Go through the launches, then through the cases; end with 1 if anything is wrong."""
    wrong = [line for name in names or ARCHITECTURES for line in flaws(ARCHITECTURES[name])]
    if not names:
        tests = "tests/kernels/triton/numerics/test_attention.py"
        environment = {**os.environ, "TRITON_INTERPRET": "1", "ALL_KERNEL_CASES": "1"}
        command = [sys.executable, "-m", "pytest", "-q", tests]
        if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode:
            wrong.append("interpreted cases failed")
    print(f"{len(wrong)} flaws", *wrong, sep="\n")
    sys.exit(bool(wrong))


def flaws(architecture: Architecture) -> Iterator[str]:
    """Kernels of one architecture that are not as they should be; prints all of them."""
    for title, is_exact, launch in launches(architecture):
        with FakeGpu(architecture) as gpu:
            launch()
        for machine in gpu.machines():
            lacking = [] if is_exact else lacks(machine, architecture)
            line = (
                f"{architecture.name} {title} {machine.kernel}: {machine.registers} registers,"
                f" {machine.spills} spills, {machine.shared / 1024:.0f} KiB shared"
                + "".join(f", no {each}" for each in lacking)
            )
            print(line, flush=True)
            if machine.spills or machine.shared > architecture.shared_bytes or lacking:
                yield line


def lacks(machine: Machine, architecture: Architecture) -> list[str]:
    """What is not in a kernel that should be."""
    lacking, found = [], machine.instructions
    if machine.kernel in _WITH_PRODUCTS and not (
        found[architecture.matrix] or found[architecture.small_matrix]
    ):
        lacking.append("matrix instructions")
    if machine.kernel in _ATTENTION and not found["128-bit"]:
        lacking.append("128-bit loads")
    return lacking


def launches(architecture: Architecture) -> Iterator[tuple[str, bool, Callable[[], object]]]:
    """Title, whether it is in float32, and what launches the kernels."""
    name = architecture.name
    for case in variants():
        problem = attention_problem(case, architecture=name, device="meta")
        yield case.name, case.dtype == torch.float32, problem.solve
    for heads in ((32, 8, 128), (9, 3, 64), (14, 2, 64), (16, 8, 256)):
        spec = model_spec(num_heads=heads[0], num_kv_heads=heads[1], head_dim=heads[2])
        shape = f"model-{heads[0]}over{heads[1]}-d{heads[2]}"
        for dtype in (torch.bfloat16, torch.int8, torch.uint8):
            launch = partial(launch_model_step, name, spec, head_norms=True, dtype=dtype)
            yield f"{shape}-{dtype}".replace("torch.", ""), False, launch
        for kind in KINDS:
            yield f"{shape}-{kind}", False, partial(launch_quantized_step, name, spec, kind)
    yield "linears", False, partial(launch_quantized, name)


def variants() -> Iterator[AttentionCase]:
    """Every head size with what changes a kernel's registers, and every size of a group of heads."""
    for head_dim in (64, 80, 96, 128, 256):
        case = AttentionCase(
            name=f"d{head_dim}", rows=_ROWS, heads=(32, 8), head_dim=head_dim, dtype=torch.bfloat16
        )
        yield case
        yield replace(case, name=f"{case.name}-window", window=64)
        yield replace(case, name=f"{case.name}-cap", cap=30.0)
        yield replace(case, name=f"{case.name}-fp8", quantized="fp8")
        yield replace(case, name=f"{case.name}-int8", quantized="int8")
        yield replace(case, name=f"{case.name}-int8-window", quantized="int8", window=64)
        yield replace(case, name=f"{case.name}-float32", dtype=torch.float32)
    for group in (1, 3, 7, 8, 16, 32):
        for head_dim in (64, 128):
            case = AttentionCase(
                name=f"d{head_dim}-group{group}",
                rows=_ROWS,
                heads=(2 * group, 2),
                head_dim=head_dim,
                dtype=torch.bfloat16,
            )
            yield case
            yield replace(case, name=f"{case.name}-fp8", quantized="fp8")
    base = AttentionCase(name="page", rows=_ROWS, heads=(32, 8), head_dim=128, dtype=torch.bfloat16)
    for page_size in (1, 64):
        yield replace(base, name=f"page{page_size}", page_size=page_size)
    yield replace(base, name="float16", dtype=torch.float16)


if __name__ == "__main__":
    main(sys.argv[1:])
