"""The decoder of the Llama line over a flat packed batch: no token is padding.

Llama (arXiv:2302.13971), Mistral (arXiv:2310.06825), Qwen2 (arXiv:2407.10671) and Qwen3
(arXiv:2505.09388) differ in what `ModelSpec` and `Weights` say, not in code.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.batch import Batch
from engine.models.kv_cache import KVCache
from engine.models.rope import rotary_angles, rotary_frequencies
from engine.models.spec import ModelSpec
from engine.models.weights import LayerWeights, Weights
from kernels.dispatch import operations
from kernels.paged import PagedRows


class Decoder:
    """A model and its KV pages. Weights and pages share one device; one step runs at a time."""

    def __init__(self, spec: ModelSpec, weights: Weights, kv: KVCache) -> None:
        self._spec = spec
        self._weights = weights
        self._kv = kv
        self._device = weights.embed.device
        self._ops = operations(self._device)
        frequencies, self._attention_factor = rotary_frequencies(spec)
        self._frequencies = frequencies.to(self._device)

    @torch.inference_mode()
    def forward(self, batch: Batch, token_ids: Tensor) -> Tensor:
        """Run a step and write its keys and values to their pages.

        Args:
            batch: where the step's tokens are.
            token_ids: int64 [T], `batch.token_ids` with pending ids filled in.

        Returns:
            float32 logits [S, vocab] of `batch.logit_rows`.
        """
        rows = self._paged_rows(batch)
        positions = torch.from_numpy(batch.positions).to(self._device)
        angles = rotary_angles(self._frequencies, self._attention_factor, positions)
        x = F.embedding(token_ids, self._weights.embed)
        for index, layer in enumerate(self._weights.layers):
            normed = self._ops.rms_norm(x, layer.input_norm, self._spec.rms_eps)
            x = x + self._attention(index, layer, normed, angles, rows)
            x = x + self._mlp(layer, self._ops.rms_norm(x, layer.post_norm, self._spec.rms_eps))
        last = x.index_select(0, torch.from_numpy(batch.logit_rows).to(self._device))
        last = self._ops.rms_norm(last, self._weights.norm, self._spec.rms_eps)
        return F.linear(last, self._weights.lm_head).float()

    def _paged_rows(self, batch: Batch) -> PagedRows:
        return PagedRows(
            query_starts=batch.query_starts.tolist(),
            context_lens=batch.context_lens.tolist(),
            page_table=torch.from_numpy(batch.page_table).to(self._device, torch.int64),
            slots=torch.from_numpy(batch.kv_slots).to(self._device),
        )

    def _attention(
        self, index: int, layer: LayerWeights, x: Tensor, angles: tuple[Tensor, Tensor], rows: PagedRows
    ) -> Tensor:
        spec, ops = self._spec, self._ops
        query = F.linear(x, layer.q, layer.q_bias).view(-1, spec.num_heads, spec.head_dim)
        key = F.linear(x, layer.k, layer.k_bias).view(-1, spec.num_kv_heads, spec.head_dim)
        value = F.linear(x, layer.v, layer.v_bias).view(-1, spec.num_kv_heads, spec.head_dim)
        if layer.q_norm is not None and layer.k_norm is not None:
            query = ops.rms_norm(query, layer.q_norm, spec.rms_eps)
            key = ops.rms_norm(key, layer.k_norm, spec.rms_eps)
        query, key = ops.rotate(query, *angles), ops.rotate(key, *angles)
        key_pages, value_pages = self._kv.keys[index], self._kv.values[index]
        ops.kv_write(key, key_pages, rows)
        ops.kv_write(value, value_pages, rows)
        attended = ops.paged_attention(query, key_pages, value_pages, rows, spec.sliding_window[index])
        return F.linear(attended.flatten(1), layer.o, layer.o_bias)

    def _mlp(self, layer: LayerWeights, x: Tensor) -> Tensor:
        gate, up = F.linear(x, layer.gate, layer.gate_bias), F.linear(x, layer.up, layer.up_bias)
        return F.linear(self._ops.silu_mul(gate, up), layer.down, layer.down_bias)
