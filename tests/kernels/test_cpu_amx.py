"""Tiles of Intel AMX on machines with and without: what is built, what is tried, what serves instead."""

from __future__ import annotations

import ctypes
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.cpu import build, runtime
from kernels.cpu.abi import Format
from kernels.cpu.build import Formats, Isa, is_supported, library_path
from kernels.cpu.errors import NativeUnavailableError
from kernels.cpu.runtime import Runtime
from tests.kernels.isas import EMULATED

TILED = Formats(frozenset({Format.BF16, Format.Q8, Format.Q4}), frozenset({Format.BF16}))
"""What tiles multiply."""
ROOT = Path(__file__).parents[2]
INSTRUCTIONS = re.compile(r"\t(ldtilecfg|tile\w+|tdp\w+)\b")
USED = {"ldtilecfg", "tileloadd", "tilestored", "tilezero", "tilerelease", "tdpbssd", "tdpbf16ps"}


def instructions(library: Path) -> set[str]:
    """Of AMX, in a library."""
    command = ["objdump", "--disassemble", "--no-show-raw-insn", str(library)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return set(INSTRUCTIONS.findall(text))


@pytest.mark.skipif(shutil.which("objdump") is None, reason="nothing to disassemble with")
def test_builds_anywhere_with_the_instructions_themselves() -> None:
    assert instructions(library_path("amx", TILED)) >= USED
    if is_supported("avx512"):
        assert instructions(library_path("avx512")) == set()


PRODUCTS = """
import numpy as np
import torch
from kernels.cpu import build
from kernels.cpu.build import ALL_FORMATS
from kernels.cpu.runtime import Runtime
from tests.kernels.test_cpu_amx import TILED
from tests.kernels.test_cpu_linear import ROWS, TARGETS, in_bfloat16, numbers, product, weight_of
from tests.models.random_models import random_model
from tests.models.test_native import NativeSequences, ids

features = build._cpu_features() | {"amx_tile", "amx_int8", "amx_bf16"}
build._cpu_features = lambda: features
code = Runtime(2, "amx", TILED)
for kind, target in TARGETS.items():
    weight = weight_of(kind, 333, 160)
    other = Runtime(2, "amx-emulated" if kind == "bfloat16" else "avx512")
    for rows in ROWS:
        x = in_bfloat16(numbers(rows, 160, seed=rows))
        assert np.array_equal(product(code, x, weight, target), product(other, x, weight, target))

model = random_model(dtype=torch.bfloat16, num_heads=3, num_kv_heads=1, head_dim=80)
steps = [{0: ids(40, 211, seed=1), 1: ids(150, 211, seed=2)}, {0: [3], 1: [4]}]
results = []
for isa, formats in (("amx", TILED), ("amx-emulated", ALL_FORMATS)):
    sequences = NativeSequences(model, num_pages=30, page_size=16, isa=isa, formats=formats)
    results.append([sequences.step(rows) for rows in steps])
assert all(torch.equal(*pair) for pair in zip(*results))
"""


@pytest.mark.skipif(not EMULATED, reason="needs AVX-512 for what is not tiles")
def test_machine_code(tmp_path: Path) -> None:
    """The library itself, on the processor or else with its tiles' instructions decoded one by one."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    if not is_supported("amx"):
        trap = tmp_path / "trap.so"
        flags = ["-std=c++20", "-O2", "-mfma", "-ffp-contract=off", "-fPIC", "-shared"]
        source = ROOT / "tests" / "kernels" / "amx_trap.cpp"
        subprocess.run(["c++", *flags, "-I", str(build._SOURCES), str(source), "-o", str(trap)], check=True)
        environment["LD_PRELOAD"] = str(trap)
    subprocess.run([sys.executable, "-c", PRODUCTS], check=True, env=environment)


def start_with(source: Path, before: str, after: str) -> int:
    """What trying out emulated tiles says, with a text in the emulation replaced."""
    shutil.copytree(build._SOURCES, source)
    emulation = source / "amx_emulated.h"
    text = emulation.read_text()
    assert before in text
    emulation.write_text(text.replace(before, after))
    library = source / "start.so"
    flags = ["-std=c++20", "-O1", "-fPIC", "-shared", "-DRADISH_AMX_EMULATED"]
    subprocess.run(["c++", *flags, str(source / "start.cpp"), "-o", str(library)], check=True)
    status: int = ctypes.CDLL(str(library)).radish_start()
    return status


def test_products_that_come_out_wrong_are_noticed(tmp_path: Path) -> None:
    assert start_with(tmp_path / "right", "columns", "columns") == 0
    signed = "static_cast<int8_t>(s.data[b]"
    assert start_with(tmp_path / "signs", signed, signed.replace("int8_t", "uint8_t")) == -1
    assert start_with(tmp_path / "pairs", "4 * k, sizeof pair", "2 * k, sizeof pair") == -1
    assert start_with(tmp_path / "rows", "m < s.rows[c]", "m < s.rows[c] - 1") == -1


@pytest.mark.skipif(is_supported("amx") or not is_supported("avx512"), reason="it might not be refused")
def test_without_permission_vectors_serve_and_it_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A processor that only says it has tiles: the system refuses them before one is touched."""
    flags = build._cpu_features() | {"amx_tile", "amx_int8", "amx_bf16"}
    monkeypatch.setattr(build, "_cpu_features", lambda: flags)
    with pytest.raises(NativeUnavailableError, match="the system refuses what amx needs") as refused:
        Runtime(1, "amx", TILED)
    load = runtime._load

    def load_after_refusal(isa: Isa, formats: Formats) -> ctypes.CDLL:
        if isa == "amx":
            raise refused.value
        return load(isa, formats)

    monkeypatch.setattr(runtime, "_load", load_after_refusal)
    with caplog.at_level(logging.WARNING, "radish.load"):
        assert Runtime(1).isa == "avx512"
    assert caplog.messages == [f"amx is not used, steps run on avx512: {refused.value}"]
