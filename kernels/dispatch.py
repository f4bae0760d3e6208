"""One table: which implementation of each operation a device uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kernels import reference
from kernels.paged import PagedRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """What a decoder is made of besides matrix products; semantics in `kernels.reference`."""

    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    rotate: Callable[[Tensor, Tensor, Tensor], Tensor]
    silu_mul: Callable[[Tensor, Tensor], Tensor]
    kv_write: Callable[[Tensor, Tensor, PagedRows], None]
    paged_attention: Callable[[Tensor, Tensor, Tensor, PagedRows, int | None], Tensor]


_REFERENCE: Final = Operations(
    rms_norm=reference.rms_norm,
    rotate=reference.rotate,
    silu_mul=reference.silu_mul,
    kv_write=reference.kv_write,
    paged_attention=reference.paged_attention,
)
_TABLE: Final = {"cpu": _REFERENCE, "cuda": _REFERENCE}


def operations(device: torch.device) -> Operations:
    """The operations of a device.

    Raises:
        ValueError: no row of the table is for this type of device.
    """
    if device.type not in _TABLE:
        raise ValueError(f"no kernels for device {device.type!r}; there are some for {', '.join(_TABLE)}")
    return _TABLE[device.type]
