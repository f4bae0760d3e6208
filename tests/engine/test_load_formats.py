"""What this machine lacks is refused by the name of the field: what only a GPU computes in, and memory."""

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


def test_memory_that_the_system_does_not_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.load._num_pages", lambda *_: 1 << 40)
    with pytest.raises(ConfigError, match=r"^kv_memory: cannot map \d+ bytes$"):
        load_engine(Config(device="cpu"), lambda _stage, _fraction: None)
