"""The decoder as one native call a step: the same model as `decoder.Decoder`, laid down once as a flat
program that the runtime of `kernels.cpu` executes without coming back to Python.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.batch import NOTHING, Batch, Float32, Int64, SampleRow
from engine.models.native_load import NativeModel
from engine.models.native_plan import HEAD_UNIT
from engine.models.rope import rotary_angles, rotary_frequencies
from engine.models.spec import ModelSpec
from kernels.cpu.abi import Draw, Format, Geometry, Step, Wanted
from kernels.cpu.build import Isa
from kernels.cpu.runtime import Memory, padded

KV_FORMATS: Final = {torch.float32: Format.F32, torch.bfloat16: Format.BF16, torch.int8: Format.Q8}
NOT_SOUGHT: Final = -2
"""Stands for the likeliest token of a row whose logits are wanted."""
_ROPE_STEP: Final = 4096
"""Positions by which the table of angles grows."""
_AHEAD: Final = 256 << 20
"""Bytes of the pages that are kept backed beyond those used so far: some prompts of thousands of tokens."""
_Nothing = ctypes.c_char * 0


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """A step of the program, but for what only running it needs."""

    step: Step
    context: int
    """Tokens that the row with the most of them sees."""
    kept: tuple[object, ...]
    """What the step points to."""


class NativeDecoder:
    """A model and its KV pages in native memory. One step runs at a time, others may be prepared meanwhile.

    float32 weights give float32 products and pages. bfloat16 weights are multiplied with activations
    rounded to bfloat16, everything is accumulated in float32 and the residual stream stays float32;
    pages are bfloat16. Of quantised weights 32 or 64 along a row share a scale, as do activations;
    pages are bfloat16. A row's logits are bit-identical alone, in any batch and in any chunks.
    """

    def __init__(
        self, model: NativeModel, *, num_pages: int, page_size: int, kv_dtype: torch.dtype | None = None
    ) -> None:
        """Reserve pages.

        Args:
            kv_dtype: of the pages, one of `KV_FORMATS`; None for what goes with the weights. In int8 each
                key and each value of a head has a scale of its own.
        """
        spec = model.spec
        self._spec = spec
        self.hidden_size = spec.hidden_size
        self.isa: Isa = model.runtime.isa
        kv_format = model.kv_format if kv_dtype is None else KV_FORMATS[kv_dtype]
        kv_dtype = next(dtype for dtype, format_ in KV_FORMATS.items() if format_ == kv_format)
        self.kv: Memory = model.runtime.allocate(num_pages * self.bytes_per_page(spec, page_size, kv_dtype))
        self._backing = self.kv.keep_backed(layers=spec.num_layers, pages=num_pages, ahead=_AHEAD)
        geometry = Geometry(
            heads=spec.num_heads,
            kv_heads=spec.num_kv_heads,
            head_dim=padded(spec.head_dim, HEAD_UNIT),
            true_head_dim=spec.head_dim,
            rotary_half=spec.rotary_dim // 2,
            page_size=page_size,
            kv_format=kv_format,
            vocab=spec.vocab_size,
            query_scale=math.log2(math.e) / math.sqrt(spec.head_dim),
            kv=self.kv.address,
            num_pages=num_pages,
            backing=self._backing.address,
        )
        self._image = model.image  # the program points into it
        self._program = model.runtime.program(geometry, model.image.ops, model.image.buffers)
        self._frequencies, self._attention_factor = rotary_frequencies(spec)
        self._angles = np.zeros((0, 2, spec.rotary_dim // 2), dtype=np.float32)
        self._rope = 0

    @staticmethod
    def bytes_per_page(spec: ModelSpec, page_size: int, dtype: torch.dtype) -> int:
        """Bytes that one page takes over all layers, keys and values together.

        Args:
            dtype: of the pages.
        """
        vector = padded(spec.head_dim, HEAD_UNIT) * dtype.itemsize
        if dtype == torch.int8:
            vector += torch.bfloat16.itemsize  # its scale
        return 2 * spec.num_layers * page_size * spec.num_kv_heads * vector

    def forward(self, batch: Batch, token_ids: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Run a step and write its keys and values to their pages.

        Args:
            batch: where the step's tokens are.
            token_ids: int64 [T], `batch.token_ids` with pending ids filled in.
            hidden: float32 [E, hidden], overwritten with what the final norm gives for `batch.embed_rows`.

        Returns:
            float32 logits [S + Q, vocab] of `batch.logit_rows`.

        Raises:
            MemoryError: the step may be run again.
            NativeStepError: an id or a place is out of range; nothing was computed.
        """
        logits = np.empty((len(batch.logit_rows), self._spec.vocab_size), dtype=np.float32)
        known = replace(batch, token_ids=token_ids.numpy(), pending_at=NOTHING, pending_from=NOTHING)
        into = None if hidden is None else hidden.numpy()
        self.run(self.prepare(known, wanted=bytearray(), chosen=NOTHING, hidden=into), logits)
        return torch.from_numpy(logits)

    def prepare(
        self,
        batch: Batch,
        *,
        wanted: bytearray,
        chosen: Int64,
        hidden: Float32 | None = None,
        draws: ctypes.Array[Draw] | None = None,
    ) -> PreparedStep:
        """Lay out a step. Needs nothing of those before it, which may be running.

        Args:
            wanted: `Wanted` of each sampling row [S]; none for all logits.
            chosen: [S] to be overwritten with the tokens that are drawn or likeliest, where such are wanted.
            hidden: float32 [E, hidden], as in `forward`.
            draws: of rows whose logits are wanted.
        """
        count = len(batch.logit_rows)
        assert len(wanted) == len(chosen) <= count, "a row without its token"
        arrays: dict[str, npt.NDArray[np.generic]] = {
            "token_ids": np.array(batch.token_ids, np.int64),  # the batch stays as it is
            "pending_at": _flat(batch.pending_at, np.int64),
            "pending_from": _flat(batch.pending_from, np.int64),
            "previous": _flat(batch.previous, np.int64),
            "positions": _flat(batch.positions, np.int64),
            "kv_slots": _flat(batch.kv_slots, np.int64),
            "logit_rows": _flat(batch.logit_rows, np.int64),
            "embed_rows": _flat(batch.embed_rows, np.int64),
            "query_starts": _flat(batch.query_starts, np.int32),
            "context_lens": _flat(batch.context_lens, np.int32),
            "page_table": _flat(batch.page_table, np.int32),
            "wanted": np.frombuffer(wanted.ljust(count, b"\0"), np.uint8),  # of other rows only logits
            "chosen": chosen,
        }
        if hidden is not None:
            arrays["hidden"] = hidden
        step = Step(
            tokens=len(batch.token_ids),
            rows=len(batch.context_lens),
            samples=count,
            table_width=batch.page_table.shape[1],
            embeds=0 if hidden is None else len(hidden),
            pending=len(batch.pending_at),
            previous_count=len(batch.previous),
            **{name: _address(array) for name, array in arrays.items()},
        )
        if draws is not None:
            step.draws, step.draw_count = ctypes.addressof(draws), len(draws)
        context = max(batch.context_lens.tolist(), default=0)
        return PreparedStep(step, context, (*arrays.values(), draws))

    def run(self, prepared: PreparedStep, logits: Float32 | None) -> None:
        """Run a step, once.

        Args:
            logits: [S + Q, vocab] to be overwritten, but for rows that want only their likeliest token; None
                if all do.

        Raises:
            MemoryError, NativeStepError: as `forward`.
        """
        self._reach(prepared.context)
        step = prepared.step
        step.rope, step.rope_rows = self._rope, len(self._angles)
        if logits is not None:
            step.logits = _address(logits)
        self._program.run(step)

    def _reach(self, context: int) -> None:
        """Make the table of angles cover positions below `context`."""
        if context <= len(self._angles):
            return
        positions = torch.arange(padded(context, _ROPE_STEP))
        angles = rotary_angles(self._frequencies, self._attention_factor, positions)
        self._angles = torch.stack(angles, dim=1).numpy()
        self._rope = _address(self._angles)


def wanted(row: SampleRow) -> int:
    """What a row wants of the step, one of `Wanted`."""
    if not row.takes_likeliest:
        return Wanted.ONLY_LOGITS
    return Wanted.BOTH if row.has_grammar else Wanted.ONLY_LIKELIEST


def _address(array: npt.NDArray[np.generic]) -> int:
    """As `array.ctypes.data`, in a third of the time."""
    return ctypes.addressof(_Nothing.from_buffer(array.data))


def _flat(array: npt.NDArray[np.generic], dtype: type[np.generic]) -> npt.NDArray[np.generic]:
    return np.ascontiguousarray(array, dtype=dtype)
