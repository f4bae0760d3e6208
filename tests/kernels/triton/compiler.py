"""Compile on a machine without a GPU what a launch on one would build, and read the machine code.

`FakeGpu` stands in for the driver: launch functions run as they are, on meta tensors, and Triton specialises
and compiles each launch for the target as it would there, without running it. Register spills, shared memory
and instructions are then read from the real cubin or hsaco with the tools in Triton's wheel.
"""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction, KernelInterface

_CUOBJDUMP: Final = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


@dataclass(frozen=True, slots=True)
class Architecture:
    """A target and its limits."""

    name: str
    target: GPUTarget
    shared_bytes: int
    """Most shared memory of one program."""
    matrix: str
    """Mnemonic of its matrix instruction for large tiles."""
    small_matrix: str
    """…and for tiles of 16 rows."""


_KIB: Final = 1024
ARCHITECTURES: Final = {
    each.name: each
    for each in (
        Architecture("sm_80", GPUTarget("cuda", 80, 32), 163 * _KIB, "HMMA", "HMMA"),
        Architecture("sm_89", GPUTarget("cuda", 89, 32), 99 * _KIB, "HMMA", "HMMA"),
        Architecture("sm_90", GPUTarget("cuda", 90, 32), 227 * _KIB, "HGMMA", "HMMA"),
        Architecture("sm_100", GPUTarget("cuda", 100, 32), 227 * _KIB, "UTC", "HMMA"),
        Architecture("gfx942", GPUTarget("hip", "gfx942", 64), 64 * _KIB, "v_mfma", "v_mfma"),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the machine code of one compiled kernel needs and does."""

    kernel: str
    shared: int
    """Bytes of shared memory."""
    registers: int
    spills: int
    """Instructions that spill registers, or on AMD spilled vector registers."""
    instructions: dict[str, int]
    """Occurrences of mnemonics of interest."""


_SASS: Final = {
    "HGMMA": r"\b[HIQ]GMMA\b",
    "HMMA": r"\b[HIQ]MMA\b",
    "UTC": r"\bUTC\w*MMA\b",
    "async copy": r"\bLDGSTS\b",
    "128-bit": r"\b(?:LDG|LDGSTS)\.E[\w.]*\.128\b",
    "64-bit": r"\b(?:LDG|LDGSTS)\.E[\w.]*\.64\b",
}
_GCN: Final = {"v_mfma": r"v_mfma_\w+", "128-bit": r"(?:global|buffer)_load_dwordx4"}


def inspect(name: str, kernel: Any) -> Machine:
    """Read a compiled kernel's machine code."""
    if "cubin" in kernel.asm:
        return _inspect_cubin(name, kernel)
    code = kernel.asm["amdgcn"]

    def greatest(key: str) -> int:
        return max(map(int, re.findall(rf"\.{key}:\s+(\d+)", code)), default=0)

    return Machine(
        kernel=name,
        shared=kernel.metadata.shared,
        registers=greatest("vgpr_count"),
        spills=greatest("vgpr_spill_count"),  # scalar registers spill into lanes of vector ones: cheap
        instructions=_count(code, _GCN),
    )


def _inspect_cubin(name: str, kernel: Any) -> Machine:
    dump = _dumped(kernel.asm["cubin"])
    registers = re.search(r"REG:(\d+)", dump)
    return Machine(
        kernel=name,
        shared=kernel.metadata.shared,
        registers=int(registers[1]) if registers else 0,
        spills=len(re.findall(r"\b(?:LDL|STL)\b", dump)),
        instructions=_count(dump, _SASS),
    )


@functools.cache
def _dumped(cubin: bytes) -> str:
    """Resources and machine code; kept, as models have kernels in common and this takes long."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(_CUOBJDUMP), "--dump-resource-usage", "-sass", file.name]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _count(code: str, patterns: dict[str, str]) -> dict[str, int]:
    return {name: len(re.findall(pattern, code)) for name, pattern in patterns.items()}


class _Driver(DriverBase):  # type: ignore[misc]  # Triton has no stubs
    """Answers what launch code asks of a driver."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target
        properties = {"max_shared_mem": 1 << 20, "multiprocessor_count": 132, "warpSize": 32}
        self.utils = types.SimpleNamespace(get_device_properties=lambda _device: properties)

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int | None = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta")

    def get_benchmarker(self) -> Callable[..., Any]:
        raise NotImplementedError("kernels are not tuned while they run")


@dataclass(slots=True)
class FakeGpu:
    """Within this context a launch on meta tensors compiles its kernel for the target and keeps it."""

    architecture: Architecture
    kernels: list[tuple[str, Any]] = field(default_factory=list)
    """Name and compiled kernel of each different launch."""
    _before: Any = None
    _touched: set[JITFunction[Any]] = field(default_factory=set)

    def __enter__(self) -> Self:
        self._before = (driver._active, KernelInterface.__getitem__)
        driver.set_active(_Driver(self.architecture.target))

        def getitem(kernel: JITFunction[Any], grid: Any) -> Callable[..., None]:
            def launch(*args: Any, **kwargs: Any) -> None:
                if kernel not in self._touched:
                    self._touched.add(kernel)
                    kernel.device_caches.clear()  # its entries are for the target before
                compiled = kernel.run(*args, grid=grid, warmup=True, **kwargs)
                if all(compiled is not known for _, known in self.kernels):
                    self.kernels.append((kernel.__name__, compiled))

            return launch

        KernelInterface.__getitem__ = getitem
        return self

    def __exit__(self, *_exception: object) -> None:
        driver._active, KernelInterface.__getitem__ = self._before
        for kernel in self._touched:
            kernel.device_caches.clear()

    def machines(self) -> list[Machine]:
        """The machine code of everything launched so far."""
        return [inspect(name, kernel) for name, kernel in self.kernels]
