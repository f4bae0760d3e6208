"""Where the check runs: on the GPU or, to try the check itself, in Triton's interpreter with tiny sizes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

import torch

IS_TRIAL: Final = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE: Final = torch.device("cpu" if IS_TRIAL else "cuda")
_SHRUNK: Final = 128


def sized(number: int, least: int = 1) -> int:
    """The number, much smaller (not below `least`) on trial."""
    return max(least, number // _SHRUNK) if IS_TRIAL else number


def prepare() -> None:
    """Let the interpreter, where it is used, stand in for the GPU."""
    if not IS_TRIAL:
        return
    from kernels import dispatch  # noqa: PLC0415
    from tests.kernels.triton import interpreter  # noqa: PLC0415

    interpreter.install()
    dispatch._TABLE["cpu"] = dispatch._cuda


def again(launch: Callable[[], None]) -> Callable[[], None]:
    """What stands in for a graph of the launch."""
    launch()
    return launch
