"""What only a GPU computes in is refused on a CPU, by the name of the field."""

from __future__ import annotations

import pytest

from engine.config import Config
from engine.errors import ConfigError
from engine.load import load_engine


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            Config(device="cpu", kv_dtype="fp8"),
            "kv_dtype: fp8 runs on a GPU only; int8 takes as little memory",
        ),
        (
            Config(device="cpu", quantize="fp8"),
            "quantize: fp8 runs on a GPU only; int8 takes as little memory",
        ),
        (
            Config(device="cpu", quantize="int4"),
            "quantize: int4 runs on a GPU only; int8 quantises any model here",
        ),
    ],
    ids=["kv_dtype", "fp8", "int4"],
)
def test_formats_of_a_gpu(config: Config, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}$"):
        load_engine(config, lambda _stage, _fraction: None)
