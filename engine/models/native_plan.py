"""Lays a decoder down as the flat program of a native step: operations, and the packed weights, tensors
and buffers they point to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.spec import ModelSpec
from engine.models.weights import LayerOf, WeightsOf
from kernels.cpu.abi import Encoding, Epilogue, Format, Kind, Op, Rows
from kernels.cpu.blocks import Blocks, Matrix
from kernels.cpu.image import Image
from kernels.cpu.runtime import (
    BLOCK,
    GROUP,
    PANEL,
    WIDE,
    Packed,
    Part,
    Piece,
    Runtime,
    padded,
    q8_row_bytes,
)

Quantize = Literal["int8", "gguf"]
"""int8: 8-bit weights, 64 to a scale, in the head and the embeddings 32. gguf: blocks as the file has them
where they are Q8_0, Q4_0 or Q4_1; 8 bits for other blocks and for mixtures in one projection, bfloat16 for
plain numbers. Activations are int8 wherever weights are quantised, and as many of them share a scale."""
HEAD_UNIT: Final = 16
"""Heads are padded to a multiple of this."""


@dataclass(slots=True)
class Planner:
    """Lays down the operations of a model, and collects what they point to."""

    spec: ModelSpec
    runtime: Runtime
    dtype: torch.dtype
    """Of linear weights that are not quantised, float32 or bfloat16."""
    quantize: Quantize | None
    ops: list[Op] = field(default_factory=list)
    buffers: list[int] = field(default_factory=list)
    """Bytes of a row of each buffer."""
    memories: list[Piece] = field(default_factory=list)
    """What the operations point to."""

    _named: dict[tuple[str, Format], int] = field(default_factory=dict)
    """Buffers by what is in them and how."""

    @property
    def kv_format(self) -> Format:
        return Format.F32 if self._plain == Format.F32 and self.quantize is None else Format.BF16

    @property
    def _plain(self) -> Format:
        return Format.F32 if self.dtype == torch.float32 else Format.BF16

    def lay(self, weights: WeightsOf[Matrix], progress: Callable[[float], None]) -> None:
        """The whole step, from token ids to logits.

        Args:
            progress: told how much is done (0 to 1).
        """
        progress(0.0)
        spec = self.spec
        # What the head rounds away counts most: there 32 share a scale however it is quantised.
        head = self._pack([Part(weight=weights.lm_head)], spec.vocab_size, spec.hidden_size, group=BLOCK)
        table = head
        if weights.lm_head is not weights.embed:
            table = self._pack([Part(weight=weights.embed)], spec.vocab_size, spec.hidden_size, group=BLOCK)
        residual = self._buffer("residual", spec.hidden_size, Format.F32)
        self.ops.append(
            Op(
                kind=Kind.EMBED,
                dst=residual,
                src_format=table.format,
                k=table.k,
                group=table.group,
                weight=table.memory.address,
            )
        )
        for index, layer in enumerate(weights.layers):
            residual = self._attention(index, layer, residual)
            self._mlp(layer, residual)
            progress((index + 1) / spec.num_layers)
        self._norm(weights.norm, residual, None, kind=Kind.HIDDEN)
        normed = self._norm(weights.norm, residual, head, rows=Rows.SAMPLING, gather=1)
        self._linear(head, normed, 0, Epilogue.LOGITS, rows=Rows.SAMPLING, columns=spec.vocab_size)

    def _format(self, parts: Sequence[Part]) -> Format:
        """How the parts of one linear weight are stored together."""
        if self.quantize is None:
            return self._plain
        kinds = {part.weight.kind if isinstance(part.weight, Blocks) else None for part in parts}
        if self.quantize == "int8" or kinds == {Encoding.Q8_0}:
            return Format.Q8
        if kinds <= {Encoding.Q4_0, Encoding.Q4_1}:
            return Format.Q4
        return Format.BF16 if any(_is_plain(part.weight) for part in parts) else Format.Q8

    def image(self, note: bytes) -> Image:
        """What was laid down."""
        return Image(
            ops=tuple(self.ops),
            buffers=tuple(self.buffers),
            segments=tuple((memory.address, memory.size) for memory in self.memories),
            owners=tuple(self.memories),
            note=note,
        )

    @property
    def _head_dim(self) -> int:
        return padded(self.spec.head_dim, HEAD_UNIT)

    def _attention(self, index: int, layer: LayerOf[Matrix], residual: int) -> int:
        """The buffer with the residual after it: in the last layer, of tokens whose results are wanted."""
        spec, width = self.spec, self.spec.num_heads * self._head_dim
        qkv = self._qkv(layer, residual)
        queries = self._buffer("queries", width, Format.F32)  # at most: as pages want them
        rotate = Op(
            kind=Kind.ROTATE,
            src=qkv,
            dst=queries,
            layer=index,
            eps=spec.rms_eps,
            q_norm=self._head_gain(layer.q_norm),
            k_norm=self._head_gain(layer.k_norm),
        )
        self.ops.append(rotate)
        if index == spec.num_layers - 1:
            queries = self._keep_rows("queries", queries, width)
            residual = self._keep_rows("residual", residual, spec.hidden_size)
        output = self._pack([Part(weight=self._head_columns(layer.o))], spec.hidden_size, width)
        wanted = _float_input(output.format)
        attended = self._buffer("attended", width, wanted)
        attend = Op(
            kind=Kind.ATTEND,
            src=queries,
            dst=attended,
            dst_format=wanted,
            layer=index,
            window=spec.sliding_window[index] or 0,
        )
        self.ops.append(attend)
        attended = self._quantize(attended, width, output)
        self._linear(output, attended, residual, Epilogue.ADD, bias=layer.o_bias)
        return residual

    def _keep_rows(self, name: str, src: int, width: int) -> int:
        """A buffer with those rows of float32 `src` that results depend on: from here on only they count."""
        dst = self._buffer(f"kept {name}", width, Format.F32)
        self.ops.append(Op(kind=Kind.KEEP, src=src, dst=dst))
        return dst

    def _mlp(self, layer: LayerOf[Matrix], residual: int) -> None:
        spec = self.spec
        # Sixteen rows of gate alternate with the same sixteen of up, so that both meet in one tile.
        inner = padded(spec.intermediate_size, HEAD_UNIT)
        parts = [
            Part(weight=layer.gate, offset=0, block=HEAD_UNIT, stride=PANEL),
            Part(weight=layer.up, offset=HEAD_UNIT, block=HEAD_UNIT, stride=PANEL),
        ]
        bias = None
        if layer.gate_bias is not None or layer.up_bias is not None:
            halves = [_padded_bias(b, inner) for b in (layer.gate_bias, layer.up_bias)]
            bias = torch.stack([half.view(-1, HEAD_UNIT) for half in halves], dim=1).flatten()
        gate_up = self._pack(parts, 2 * inner, spec.hidden_size)
        down = self._pack([Part(weight=layer.down)], spec.hidden_size, spec.intermediate_size)
        normed = self._norm(layer.post_norm, residual, gate_up)
        wanted = _float_input(down.format)
        gated = self._buffer("gated", spec.intermediate_size, wanted)
        self._linear(gate_up, normed, gated, Epilogue.GATED, dst_format=wanted, bias=bias)
        gated = self._quantize(gated, spec.intermediate_size, down)
        self._linear(down, gated, residual, Epilogue.ADD, bias=layer.down_bias)

    def _qkv(self, layer: LayerOf[Matrix], residual: int) -> int:
        """Queries, keys and values of all heads in one linear, after the norm."""
        spec, dim = self.spec, self._head_dim
        heads = (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
        weights, biases = (layer.q, layer.k, layer.v), (layer.q_bias, layer.k_bias, layer.v_bias)
        parts, joined, row = [], [], 0
        for weight, bias, count in zip(weights, biases, heads, strict=True):
            parts.append(Part(weight=weight, offset=row, block=spec.head_dim, stride=dim))
            zeros = torch.zeros(count * dim)
            joined.append(zeros if bias is None else self._pad_heads(bias.float(), count, dim=0))
            row += count * dim
        has_bias = any(bias is not None for bias in biases)
        packed = self._pack(parts, row, spec.hidden_size)
        normed = self._norm(layer.input_norm, residual, packed)
        qkv = self._buffer("qkv", row, Format.F32)
        self._linear(packed, normed, qkv, Epilogue.STORE, bias=torch.cat(joined) if has_bias else None)
        return qkv

    def _head_columns(self, output: Matrix) -> Matrix:
        """The output projection with zeros where heads are padded; blocks that this cuts are decoded."""
        if self._head_dim == self.spec.head_dim:
            return output
        if isinstance(output, Blocks):
            output = output.decoded()
        return self._pad_heads(output, self.spec.num_heads, dim=1)

    def _pad_heads(self, tensor: Tensor, heads: int, *, dim: int) -> Tensor:
        """Zeros after each head along `dim`, up to the width heads have in native memory."""
        missing = self._head_dim - self.spec.head_dim
        if missing == 0:
            return tensor
        shape = tensor.shape
        split = tensor.reshape(*shape[:dim], heads, self.spec.head_dim, *shape[dim + 1 :])
        after = len(shape) - dim - 1  # dimensions that follow the one to be padded
        return F.pad(split, (0, 0) * after + (0, missing)).flatten(dim, dim + 1)

    def _head_gain(self, gain: Tensor | None) -> int | None:
        if gain is None:
            return None
        return self._keep(_padded_bias(gain, self._head_dim))

    def _norm(
        self,
        gain: Tensor,
        src: int,
        target: Packed | None,
        *,
        kind: Kind = Kind.NORM,
        rows: Rows = Rows.ALL_TOKENS,
        gather: int = 0,
    ) -> int:
        """The buffer with the result as the linear `target` takes it."""
        width = padded(self.spec.hidden_size, GROUP)
        activations = Format.F32 if target is None else _activations(target.format)
        dst = 0 if kind == Kind.HIDDEN else self._buffer("normed", width, activations)
        self.ops.append(
            Op(
                kind=kind,
                rows=rows,
                gather=gather,
                src=src,
                dst=dst,
                dst_format=activations,
                n=width,
                group=0 if target is None else target.group,
                columns=self.spec.hidden_size,
                eps=self.spec.rms_eps,
                weight=self._keep(_padded_bias(gain, width)),
            )
        )
        return dst

    def _linear(
        self,
        weight: Packed,
        src: int,
        dst: int,
        epilogue: Epilogue,
        *,
        dst_format: Format = Format.F32,
        bias: Tensor | None = None,
        rows: Rows = Rows.ALL_TOKENS,
        columns: int = 0,
    ) -> None:
        op = Op(
            kind=Kind.LINEAR,
            rows=rows,
            src=src,
            dst=dst,
            src_format=weight.format,
            dst_format=dst_format,
            epilogue=epilogue,
            n=weight.n,
            k=weight.k,
            group=weight.group,
            columns=columns,
            weight=weight.memory.address,
        )
        if bias is not None:
            op.bias = self._keep(_padded_bias(bias, weight.n))
        self.ops.append(op)

    def _quantize(self, src: int, width: int, target: Packed) -> int:
        """The buffer from which the linear `target` reads `src`."""
        if _activations(target.format) != Format.Q8:
            return src
        dst = self._buffer(f"quantized {src}", width, Format.Q8)
        self.ops.append(Op(kind=Kind.QUANTIZE, src=src, dst=dst, n=padded(width, GROUP), group=target.group))
        return dst

    def _pack(self, parts: Sequence[Part], rows: int, columns: int, *, group: int | None = None) -> Packed:
        if group is None:
            group = WIDE if self.quantize == "int8" else BLOCK
        packed = self.runtime.pack(parts, rows=rows, columns=columns, target=self._format(parts), group=group)
        self.memories.append(packed.memory)
        return packed

    def _keep(self, tensor: Tensor) -> int:
        """The address of a copy."""
        self.memories.append(self.runtime.store(tensor))
        return self.memories[-1].address

    def _buffer(self, name: str, width: int, kind: Format) -> int:
        """The buffer `name` in one format, whose rows hold `width` activations, padded."""
        if (name, kind) not in self._named:
            columns = padded(width, GROUP)
            row = {Format.F32: 4 * columns, Format.BF16: 2 * columns, Format.Q8: q8_row_bytes(columns)}
            self._named[name, kind] = len(self.buffers)
            self.buffers.append(padded(row[kind], GROUP))
        return self._named[name, kind]


def _is_plain(matrix: Matrix) -> bool:
    """Whether a GGUF file has it as plain numbers: those are in bfloat16 where they were converted."""
    if isinstance(matrix, Blocks):
        return matrix.kind in {Encoding.F32, Encoding.BF16}
    return matrix.dtype == torch.bfloat16


def _activations(weights: Format) -> Format:
    """What a linear with weights of a format takes."""
    return Format.Q8 if weights == Format.Q4 else weights


def _float_input(weights: Format) -> Format:
    """What is computed for it, before it is quantised if that is needed."""
    return Format.F32 if _activations(weights) == Format.Q8 else weights


def _padded_bias(vector: Tensor | None, width: int) -> Tensor:
    """float32 [width], zeros where there is nothing."""
    result = torch.zeros(width)
    if vector is not None:
        result[: len(vector)] = vector
    return result
