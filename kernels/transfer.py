"""Copies between host and device that the host does not wait for."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def to_device(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """An array as a tensor of the same shape and type; on a CPU it may share the array's memory."""
    host = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cuda":
        # Memory that can be paged out would be copied by the host itself, once the device is through.
        host = host.pin_memory()
    return host.to(device, non_blocking=True)


class HostCopy:
    """A tensor on its way to the host."""

    def __init__(self, tensor: Tensor) -> None:
        """Begin to copy what the device will have computed by then."""
        self._event: torch.cuda.Event | None = None
        self._host = tensor
        if tensor.device.type == "cuda":
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def wait(self) -> Tensor:
        """The copy, on the host; blocks until it is there."""
        if self._event is not None:
            self._event.synchronize()
        return self._host
