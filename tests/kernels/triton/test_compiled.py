"""Kernels compiled for real GPUs, as a model runner launches them: what they spill, need and contain."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from engine.models.quantized import Kind
from tests.kernels.triton.compiler import ARCHITECTURES, Architecture, FakeGpu, Machine
from tests.kernels.triton.launches import (
    launch_model_step,
    launch_quantized,
    launch_quantized_step,
    model_spec,
)

KINDS: tuple[Kind, ...] = ("int8", "fp8", "int4")
each_architecture = pytest.mark.parametrize(
    "architecture", ARCHITECTURES.values(), ids=lambda architecture: architecture.name
)
most_different = pytest.mark.parametrize(
    "architecture",
    [ARCHITECTURES["sm_80"], ARCHITECTURES["sm_90"]],
    ids=lambda architecture: architecture.name,
)
"""One without fp8 and one with; the others take a minute more."""


def machines_of(architecture: Architecture, launch: Callable[[], object]) -> list[Machine]:
    """The machine code of all launches, none of which spills or needs more than there is."""
    with FakeGpu(architecture) as gpu:
        launch()
    machines = gpu.machines()
    spilling = [(each.kernel, each.spills, each.registers) for each in machines if each.spills]
    assert not spilling
    oversized = [(each.kernel, each.shared) for each in machines if each.shared > architecture.shared_bytes]
    assert not oversized
    return machines


@each_architecture
def test_model_step(architecture: Architecture) -> None:
    """A step of an 8B-class model in bfloat16 and of its sampler."""
    spec = model_spec(num_heads=32, num_kv_heads=8, head_dim=128)
    machines = machines_of(
        architecture,
        lambda: launch_model_step(architecture.name, spec, head_norms=True, dtype=torch.bfloat16),
    )
    kernels = {each.kernel: each for each in machines}
    assert set(kernels) == {
        "add_rms_norm_kernel",
        "apply_mask_kernel",
        "combine_kernel",
        "logprobs_kernel",
        "penalties_kernel",
        "prefill_kernel",
        "rotate_and_write_kernel",
        "sample_kernel",
        "silu_mul_kernel",
        "split_kernel",
    }
    narrow, wide = (each for each in machines if each.kernel == "split_kernel")
    assert narrow.instructions[architecture.small_matrix]
    assert wide.instructions[architecture.matrix]
    assert kernels["prefill_kernel"].instructions[architecture.matrix]
    for each in machines:
        if each.kernel not in ("apply_mask_kernel", "penalties_kernel"):
            assert each.instructions["128-bit"], f"{each.kernel} loads narrow words"
    if architecture.target.backend == "cuda":
        for each in (narrow, wide, kernels["prefill_kernel"]):
            assert each.instructions["async copy"]


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        pytest.param(architecture, kind, id=f"{architecture.name}-{kind}")
        for architecture in ARCHITECTURES.values()
        for kind in KINDS
        if kind != "int8" or architecture.name in ("sm_80", "sm_90")  # it is compiled much as fp8 is
    ],
)
def test_quantized_model_step(architecture: Architecture, kind: Kind) -> None:
    """In 8 bits keys and values are so, too, and products are of codes where the architecture can do that."""
    spec = model_spec(num_heads=32, num_kv_heads=8, head_dim=128)
    machines = machines_of(architecture, lambda: launch_quantized_step(architecture.name, spec, kind))
    kernels = {each.kernel for each in machines}
    linear = {"linear_int4_kernel"} if kind == "int4" else {"row_codes_kernel", "linear_8bit_kernel"}
    assert linear | {"rotate_and_write_kernel"} <= kernels
    for each in machines:
        if each.kernel in ("linear_int4_kernel", "linear_8bit_kernel", "split_kernel", "prefill_kernel"):
            assert each.instructions[architecture.matrix] or each.instructions[architecture.small_matrix]


@most_different
def test_quantized_linears(architecture: Architecture) -> None:
    machines = machines_of(architecture, lambda: launch_quantized(architecture.name))
    for each in machines:
        if each.kernel.startswith("linear"):
            assert each.instructions[architecture.matrix] or each.instructions[architecture.small_matrix]
