"""Matrices as they lie in a model's file: plain numbers, or the blocks of a GGUF file."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from kernels.cpu.abi import Encoding


@dataclass(frozen=True, slots=True)
class Blocks:
    """A matrix as its file has it: plain numbers, or in blocks of 32 neighbours of a row."""

    rows: npt.NDArray[np.uint8]
    """[rows, bytes of a row]"""
    kind: Encoding
    columns: int

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)"""
        return len(self.rows), self.columns

    def decoded(self) -> Tensor:
        """float32 [rows, columns]"""
        numbers = dequantize(self.rows, GGMLQuantizationType[self.kind.name])
        if not numbers.flags.writeable:  # float32 as they are, which torch does not take of a mapped file
            numbers = numbers.copy()
        return torch.from_numpy(numbers).view(self.shape)

    def forget(self) -> None:
        """Let the system have the memory of a mapped file back; what is read again comes from the file."""
        if self.rows.flags.writeable:
            return
        base: object = self.rows
        while isinstance(base, np.ndarray):
            base = base.base
        if isinstance(base, mmap.mmap):
            base.madvise(mmap.MADV_DONTNEED)


Matrix = Tensor | Blocks
