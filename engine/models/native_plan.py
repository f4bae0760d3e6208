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
from engine.models.weights import LayerWeights, Weights
from kernels.cpu.abi import Epilogue, Format, Kind, Op, Rows
from kernels.cpu.image import Image
from kernels.cpu.runtime import GROUP, PANEL, Memory, Packed, Part, Runtime, padded, q8_row_bytes

Quantize = Literal["int8"]
HEAD_UNIT: Final = 16
"""Heads are padded to a multiple of this."""


def weight_format(weights: Weights, quantize: Quantize | None) -> Format:
    """How linear weights are to be stored."""
    if quantize == "int8":
        return Format.Q8
    return Format.F32 if weights.embed.dtype == torch.float32 else Format.BF16


@dataclass(slots=True)
class Planner:
    """Lays down the operations of a model, and collects what they point to."""

    spec: ModelSpec
    runtime: Runtime
    format: Format
    """Of linear weights, and of the activations they are multiplied with."""
    ops: list[Op] = field(default_factory=list)
    buffers: list[int] = field(default_factory=list)
    """Bytes of a row of each buffer."""
    memories: list[Memory] = field(default_factory=list)
    """What the operations point to."""

    @property
    def kv_format(self) -> Format:
        return Format.F32 if self.format == Format.F32 else Format.BF16

    @property
    def kv_dtype(self) -> torch.dtype:
        return torch.float32 if self.kv_format == Format.F32 else torch.bfloat16

    def lay(self, weights: Weights, progress: Callable[[float], None]) -> None:
        """The whole step, from token ids to logits.

        Args:
            progress: told how much is done (0 to 1).
        """
        progress(0.0)
        spec = self.spec
        residual = self._buffer(spec.hidden_size, Format.F32)
        normed = self._buffer(spec.hidden_size, self.format)
        head = self._pack([Part(weight=weights.lm_head)], spec.vocab_size, spec.hidden_size)
        self._embed(weights, head, residual)
        layer_buffers = self._layer_buffers()
        for index, layer in enumerate(weights.layers):
            self._attention(index, layer, residual, normed, layer_buffers)
            self._mlp(layer, residual, normed, layer_buffers)
            progress((index + 1) / spec.num_layers)
        self._norm(weights.norm, residual, 0, kind=Kind.HIDDEN)
        self._norm(weights.norm, residual, normed, rows=Rows.SAMPLING, gather=1)
        self._linear(head, normed, 0, Epilogue.LOGITS, rows=Rows.SAMPLING, columns=spec.vocab_size)

    def image(self, note: bytes) -> Image:
        """What was laid down."""
        return Image(
            ops=tuple(self.ops),
            buffers=tuple(self.buffers),
            segments=tuple((memory.address, memory.size) for memory in self.memories),
            owners=tuple(self.memories),
            note=note,
        )

    def _layer_buffers(self) -> dict[str, int]:
        spec, dim = self.spec, self._head_dim
        plain = Format.F32 if self.format == Format.Q8 else self.format
        buffers = {
            "qkv": self._buffer((spec.num_heads + 2 * spec.num_kv_heads) * dim, Format.F32),
            "queries": self._buffer(spec.num_heads * dim, Format.F32),  # at most: as pages want them
            "attended": self._buffer(spec.num_heads * dim, plain),
            "gated": self._buffer(spec.intermediate_size, plain),
        }
        if self.format == Format.Q8:
            buffers["quantized"] = self._buffer(max(spec.num_heads * dim, spec.intermediate_size), Format.Q8)
        return buffers

    @property
    def _head_dim(self) -> int:
        return padded(self.spec.head_dim, HEAD_UNIT)

    def _embed(self, weights: Weights, head: Packed, residual: int) -> None:
        """From the packed head where it holds the same numbers, else from the table as loaded."""
        spec = self.spec
        tied = weights.lm_head is weights.embed and self.format != Format.Q8
        op = Op(kind=Kind.EMBED, dst=residual, n=padded(spec.hidden_size, GROUP), columns=spec.hidden_size)
        if tied:
            op.packed, op.weight, op.k, op.src_format = 1, head.memory.address, head.k, head.format
        else:
            op.weight = self._keep(weights.embed)
            op.src_format = Format.F32 if weights.embed.dtype == torch.float32 else Format.BF16
        self.ops.append(op)

    def _attention(
        self, index: int, layer: LayerWeights, residual: int, normed: int, buffers: dict[str, int]
    ) -> None:
        spec = self.spec
        self._norm(layer.input_norm, residual, normed)
        self._qkv(layer, normed, buffers["qkv"])
        rotate = Op(
            kind=Kind.ROTATE,
            src=buffers["qkv"],
            dst=buffers["queries"],
            layer=index,
            eps=spec.rms_eps,
            q_norm=self._head_gain(layer.q_norm),
            k_norm=self._head_gain(layer.k_norm),
        )
        attend = Op(
            kind=Kind.ATTEND,
            src=buffers["queries"],
            dst=buffers["attended"],
            dst_format=Format.F32 if self.format == Format.Q8 else self.format,
            layer=index,
            window=spec.sliding_window[index] or 0,
        )
        self.ops += [rotate, attend]
        attended = self._quantize(buffers, "attended", spec.num_heads * self._head_dim)
        columns = self._pad_heads(layer.o, spec.num_heads, dim=1)
        output = self._pack([Part(weight=columns)], spec.hidden_size, columns.shape[1])
        self._linear(output, attended, residual, Epilogue.ADD, bias=layer.o_bias)

    def _mlp(self, layer: LayerWeights, residual: int, normed: int, buffers: dict[str, int]) -> None:
        spec = self.spec
        self._norm(layer.post_norm, residual, normed)
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
        self._linear(gate_up, normed, buffers["gated"], Epilogue.GATED, bias=bias)
        gated = self._quantize(buffers, "gated", spec.intermediate_size)
        down = self._pack([Part(weight=layer.down)], spec.hidden_size, spec.intermediate_size)
        self._linear(down, gated, residual, Epilogue.ADD, bias=layer.down_bias)

    def _qkv(self, layer: LayerWeights, normed: int, qkv: int) -> None:
        """Queries, keys and values of all heads in one linear."""
        spec, dim = self.spec, self._head_dim
        heads = (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
        weights, biases = (layer.q, layer.k, layer.v), (layer.q_bias, layer.k_bias, layer.v_bias)
        parts, joined, row = [], [], 0
        for weight, bias, count in zip(weights, biases, heads, strict=True):
            parts.append(Part(weight=self._pad_heads(weight, count, dim=0), offset=row))
            zeros = torch.zeros(count * dim)
            joined.append(zeros if bias is None else self._pad_heads(bias.float(), count, dim=0))
            row += count * dim
        has_bias = any(bias is not None for bias in biases)
        packed = self._pack(parts, row, spec.hidden_size)
        self._linear(packed, normed, qkv, Epilogue.STORE, bias=torch.cat(joined) if has_bias else None)

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
        dst: int,
        *,
        kind: Kind = Kind.NORM,
        rows: Rows = Rows.ALL_TOKENS,
        gather: int = 0,
    ) -> None:
        width = padded(self.spec.hidden_size, GROUP)
        self.ops.append(
            Op(
                kind=kind,
                rows=rows,
                gather=gather,
                src=src,
                dst=dst,
                dst_format=self.format,
                n=width,
                columns=self.spec.hidden_size,
                eps=self.spec.rms_eps,
                weight=self._keep(_padded_bias(gain, width)),
            )
        )

    def _linear(
        self,
        weight: Packed,
        src: int,
        dst: int,
        epilogue: Epilogue,
        *,
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
            dst_format=Format.F32 if weight.format == Format.Q8 else weight.format,
            epilogue=epilogue,
            n=weight.n,
            k=weight.k,
            columns=columns,
            weight=weight.memory.address,
        )
        if bias is not None:
            op.bias = self._keep(_padded_bias(bias, weight.n))
        self.ops.append(op)

    def _quantize(self, buffers: dict[str, int], name: str, width: int) -> int:
        """The buffer from which a linear reads `name`, after quantising it if that is needed."""
        if self.format != Format.Q8:
            return buffers[name]
        src, dst = buffers[name], buffers["quantized"]
        self.ops.append(Op(kind=Kind.QUANTIZE, src=src, dst=dst, n=padded(width, GROUP)))
        return dst

    def _pack(self, parts: Sequence[Part], rows: int, columns: int) -> Packed:
        packed = self.runtime.pack(parts, rows=rows, columns=columns, target=self.format)
        self.memories.append(packed.memory)
        return packed

    def _keep(self, tensor: Tensor) -> int:
        """The address of a copy."""
        self.memories.append(self.runtime.store(tensor))
        return self.memories[-1].address

    def _buffer(self, width: int, kind: Format) -> int:
        """A buffer whose rows hold `width` activations, padded."""
        columns = padded(width, GROUP)
        row = {Format.F32: 4 * columns, Format.BF16: 2 * columns, Format.Q8: q8_row_bytes(columns)}
        self.buffers.append(padded(row[kind], GROUP))
        return len(self.buffers) - 1


def _padded_bias(vector: Tensor | None, width: int) -> Tensor:
    """float32 [width], zeros where there is nothing."""
    result = torch.zeros(width)
    if vector is not None:
        result[: len(vector)] = vector
    return result
