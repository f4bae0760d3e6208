"""`--exact` refuses to start where it could not be kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine import load
from engine.config import Config
from engine.errors import ConfigError
from kernels.cpu.errors import NativeUnavailableError
from kernels.cpu.runtime import Runtime


def test_not_without_the_native_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(*args: Any, **kwargs: Any) -> None:
        raise NativeUnavailableError("there is no C++ compiler")

    monkeypatch.setattr(Runtime, "__init__", unavailable)
    with pytest.raises(ConfigError, match=r"exact: .*there is no C\+\+ compiler"):
        load.load_engine(Config(exact=True, kv_memory=16), lambda stage, fraction: None)


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_not_on_a_gpu(monkeypatch: pytest.MonkeyPatch, device: Any) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ConfigError, match="exact: on a GPU"):
        load.load_engine(Config(exact=True, device=device), lambda stage, fraction: None)
