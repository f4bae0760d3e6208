"""The decoder of the Llama line over a flat packed batch: no token is padding.

Llama (arXiv:2302.13971), Mistral (arXiv:2310.06825), Qwen2 (arXiv:2407.10671) and Qwen3
(arXiv:2505.09388) differ in what `ModelSpec` and `Weights` say, not in code.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.batch import Batch
from engine.models.kv_cache import KVCache
from engine.models.rope import rotary_angles, rotary_frequencies
from engine.models.spec import ModelSpec
from engine.models.weights import LayerOf, WeightsOf
from kernels.dispatch import operations
from kernels.quantize import QuantizedRows, Vectors, Weight
from kernels.transfer import to_device


class Decoder:
    """A model and its KV pages. Weights and pages share one device; one step runs at a time."""

    def __init__(self, spec: ModelSpec, weights: WeightsOf[Weight], kv: KVCache) -> None:
        self.spec = spec
        self.hidden_size = spec.hidden_size
        assert isinstance(weights.embed, Tensor)
        assert isinstance(weights.lm_head, Tensor)
        self._layers, self._norm_weight = weights.layers, weights.norm
        self._embed, self._lm_head = weights.embed, weights.lm_head
        self.kv = kv
        self.device = weights.embed.device
        self.dtype = weights.embed.dtype
        self._ops = operations(self.device)
        frequencies, self._attention_factor = rotary_frequencies(spec)
        self._frequencies = frequencies.to(self.device)

    @torch.inference_mode()
    def forward(self, batch: Batch, token_ids: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Run a step and write its keys and values to their pages.

        Args:
            batch: where the step's tokens are.
            token_ids: int64 [T], `batch.token_ids` with pending ids filled in.
            hidden: float32 [E, hidden], overwritten with what the final norm gives for `batch.embed_rows`.

        Returns:
            float32 logits [S + Q, vocab] of `batch.logit_rows`.
        """
        rows = self._ops.rows(
            batch.query_starts, batch.context_lens, batch.page_table, batch.kv_slots, self.device
        )
        normed = self.compute(token_ids, to_device(batch.positions, self.device), rows)
        if hidden is not None:
            hidden.copy_(normed.index_select(0, to_device(batch.embed_rows, self.device)))
        return self.head(normed.index_select(0, to_device(batch.logit_rows, self.device))).float()

    def compute(self, token_ids: Tensor, positions: Tensor, rows: Any) -> Tensor:
        """All layers: launches that depend on nothing but these arguments, weights and pages.

        Args:
            token_ids, positions: integers [T].
            rows: what the operations' `rows` gave.

        Returns:
            [T, hidden] after the final norm.
        """
        angles = rotary_angles(self._frequencies, self._attention_factor, positions)
        x, residual = None, F.embedding(token_ids, self._embed)
        for index, layer in enumerate(self._layers):
            normed, residual = self._norm(x, residual, layer.input_norm, layer.q)
            x = self._attention(index, layer, normed, angles, rows)
            normed, residual = self._norm(x, residual, layer.post_norm, layer.gate)
            x = self._mlp(layer, normed)
        normed, _ = self._norm(x, residual, self._norm_weight, self._lm_head)
        assert isinstance(normed, Tensor)
        return normed

    def head(self, normed: Tensor) -> Tensor:
        """Logits [..., vocab], in the type of the weights, of what `compute` gave."""
        return F.linear(normed, self._lm_head)

    def _norm(
        self, x: Tensor | None, residual: Tensor, weight: Tensor, matrix: Weight
    ) -> tuple[Vectors, Tensor]:
        """Of residual + x, in the form in which it is multiplied with `matrix`; and the sum."""
        codes = matrix.codes.dtype if isinstance(matrix, QuantizedRows) else None
        return self._ops.add_rms_norm(x, residual, weight, self.spec.rms_eps, codes)

    def _attention(
        self, index: int, layer: LayerOf[Weight], x: Vectors, angles: tuple[Tensor, Tensor], rows: Any
    ) -> Tensor:
        spec, ops = self.spec, self._ops
        query = ops.linear(x, layer.q, layer.q_bias).view(-1, spec.num_heads, spec.head_dim)
        key = ops.linear(x, layer.k, layer.k_bias).view(-1, spec.num_kv_heads, spec.head_dim)
        value = ops.linear(x, layer.v, layer.v_bias).view(-1, spec.num_kv_heads, spec.head_dim)
        norms = None
        if layer.q_norm is not None and layer.k_norm is not None:
            norms = (layer.q_norm, layer.k_norm, spec.rms_eps)
        cache = self.kv.layers[index]
        query = ops.rotate_and_write((query, key, value), angles, norms, cache, rows)
        attended = ops.paged_attention(query, cache, rows, spec.sliding_window[index])
        return ops.linear(attended.flatten(1), layer.o, layer.o_bias)

    def _mlp(self, layer: LayerOf[Weight], x: Vectors) -> Tensor:
        ops = self._ops
        gate, up = ops.linear(x, layer.gate, layer.gate_bias), ops.linear(x, layer.up, layer.up_bias)
        return ops.linear(ops.silu_mul(gate, up), layer.down, layer.down_bias)
