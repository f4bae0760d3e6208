"""What promises that texts stay the same refuses to start where it could not be kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine import load
from engine.config import Config
from engine.errors import ConfigError
from kernels.cpu.errors import NativeUnavailableError
from kernels.cpu.runtime import Runtime

PROMISES = pytest.mark.parametrize("promise", [{"exact": True}, {"draft_tokens": 7}])


@PROMISES
def test_not_without_the_native_path(monkeypatch: pytest.MonkeyPatch, promise: dict[str, Any]) -> None:
    def unavailable(*args: Any, **kwargs: Any) -> None:
        raise NativeUnavailableError("there is no C++ compiler")

    monkeypatch.setattr(Runtime, "__init__", unavailable)
    with pytest.raises(ConfigError, match=rf"{next(iter(promise))}: .*there is no C\+\+ compiler"):
        load.load_engine(Config(**promise, kv_memory=16), lambda stage, fraction: None)


@PROMISES
@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_not_on_a_gpu(monkeypatch: pytest.MonkeyPatch, device: Any, promise: dict[str, Any]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ConfigError, match=f"{next(iter(promise))}: on a GPU"):
        load.load_engine(Config(**promise, device=device), lambda stage, fraction: None)
