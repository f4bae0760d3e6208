"""What a configuration has compiled."""

from __future__ import annotations

from typing import Any

import pytest

from engine import native_build
from engine.config import Config
from engine.native_build import native_formats
from kernels.cpu.abi import Format
from kernels.cpu.build import Formats
from tests.kernels.test_cpu_build import run_apart

F32, BF16, Q8, Q4 = Format.F32, Format.BF16, Format.Q8, Format.Q4


@pytest.mark.parametrize(
    ("fields", "weights", "pages"),
    [
        ({"dtype": "float32"}, {F32}, F32),
        ({"dtype": "bfloat16"}, {BF16}, BF16),
        ({"dtype": "float32", "kv_dtype": "bfloat16"}, {F32}, BF16),
        ({"dtype": "bfloat16", "kv_dtype": "int8"}, {BF16}, Q8),
        ({"quantize": "int8"}, {Q8}, BF16),
        ({"quantize": "gguf", "kv_dtype": "int8"}, {Q8, Q4, BF16}, Q8),
    ],
)
def test_formats(fields: dict[str, Any], weights: set[Format], pages: Format) -> None:
    formats = native_formats(Config(**fields))
    assert formats == Formats(frozenset(weights), frozenset({pages}))


def test_without_bfloat16_in_the_processor_it_is_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_build, "supported_isas", lambda: ("avx2", "portable"))
    assert native_formats(Config()).weights == {F32}


def test_it_is_known_before_torch_is_imported() -> None:
    run_apart("import sys, app.serve; assert 'torch' not in sys.modules")
