"""A GGUF file's weights for `decoder.Decoder`: 4-bit blocks as they are, all else as plain numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from torch import Tensor

from engine.models.quantized import converted
from engine.models.weights import WeightsOf
from kernels.cpu.abi import Encoding
from kernels.cpu.blocks import Blocks, Matrix
from kernels.quantize import PACKED_BLOCK, PackedRows, Weight

_IN_4_BITS: Final = frozenset({Encoding.Q4_0, Encoding.Q4_1})


def packed_weights(
    weights: WeightsOf[Matrix],
    dtype: torch.dtype,
    device: torch.device,
    progress: Callable[[float], None],
) -> WeightsOf[Weight]:
    """The weights on the device.

    Args:
        weights: as of `engine.models.loader.load_matrices`.
        dtype: of plain numbers.
        progress: told how much of it is done (0 to 1).
    """

    def plain(matrix: Matrix) -> Tensor:
        return (matrix.decoded() if isinstance(matrix, Blocks) else matrix).to(device, dtype)

    def linear(matrix: Matrix, _name: str) -> Weight:
        if isinstance(matrix, Blocks) and matrix.kind in _IN_4_BITS:
            return packed(matrix, device)
        return plain(matrix)

    return converted(weights, plain=plain, linear=linear, progress=progress)


def packed(blocks: Blocks, device: torch.device) -> PackedRows:
    """The numbers of Q4_0 or Q4_1 blocks, exactly: their codes as they are, scales and offsets apart."""
    rows = blocks.rows.reshape(len(blocks.rows), blocks.columns // PACKED_BLOCK, -1)
    header = rows.shape[-1] - PACKED_BLOCK // 2
    numbers = torch.from_numpy(rows[..., :header].copy().view(np.float16)).to(device)
    scales = numbers[..., 0].contiguous()
    # Q4_0 counts its 16 steps from -8.
    offsets = numbers[..., 1].contiguous() if blocks.kind == Encoding.Q4_1 else scales * -8
    codes = torch.from_numpy(rows[..., header:].reshape(len(rows), -1).copy())
    return PackedRows(codes.to(device), scales, offsets)
