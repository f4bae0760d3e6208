"""A GGUF file's metadata turned into a `ModelSpec`; meanings and defaults are those of llama.cpp."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Literal

from engine.models.errors import ModelError
from engine.models.gguf_file import GGUFFile
from engine.models.spec import ModelSpec, RopeScaling

_ARCHITECTURES: Final[dict[str, Literal["llama", "qwen2", "qwen3"]]] = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
}
_UNSUPPORTED: Final = {
    "expert_count": 0,
    "attention.sliding_window_pattern": None,
    "rope.scaling.yarn_ext_factor": 1.0,
    "rope.scaling.yarn_log_multiplier": 0.0,
}
"""Fields that may only have the value here, or be absent."""


def read_spec(file: GGUFFile, rope_factors: Mapping[str, tuple[float, ...]]) -> ModelSpec:
    """The model in `file`.

    Args:
        rope_factors: the file's tensors of divisors of the rotary frequencies, by name.

    Raises:
        ModelError: a field is missing, wrong or not supported; the message names it.
    """
    fields = _Fields(file)
    num_heads = fields.count("attention.head_count")
    num_kv_heads = fields.count("attention.head_count_kv", num_heads)
    if num_heads % num_kv_heads:
        raise fields.wrong("attention.head_count_kv", f"which does not divide {num_heads} heads")
    hidden = fields.count("embedding_length")
    head_dim = fields.count("attention.key_length", hidden // num_heads)
    if fields.count("attention.value_length", head_dim) != head_dim:
        raise fields.wrong("attention.value_length", f"not the length of keys, {head_dim}")
    rotary_dim = fields.count("rope.dimension_count", head_dim)
    if rotary_dim % 2 or rotary_dim > head_dim:
        raise fields.wrong("rope.dimension_count", f"not an even number up to {head_dim}")
    num_layers = fields.count("block_count")
    if num_layers > len(file.tensors):
        raise fields.wrong("block_count", f"but there are only {len(file.tensors)} tensors")
    return ModelSpec(
        architecture=fields.architecture,
        name=str(file.metadata.get("general.name") or file.path.stem),
        num_layers=num_layers,
        hidden_size=hidden,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=fields.count("feed_forward_length"),
        vocab_size=_vocab_size(file),
        max_position=fields.count("context_length"),
        rms_eps=fields.number("attention.layer_norm_rms_epsilon"),
        rope_theta=fields.number("rope.freq_base", 10_000.0),
        rope_scaling=_rope_scaling(fields, rope_factors, rotary_dim),
        rotary_dim=rotary_dim,
        tie_embeddings="output.weight" not in file.tensors,
        sliding_window=(_window(fields),) * num_layers,
    )


class _Fields:
    """Typed access to the fields under the architecture's prefix."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        name = file.metadata.get("general.architecture")
        if not isinstance(name, str) or name not in _ARCHITECTURES:
            raise ModelError(
                f"{file.path}: field 'general.architecture' is {name!r}; "
                f"supported are {', '.join(_ARCHITECTURES)}"
            )
        self.architecture = _ARCHITECTURES[name]
        if file.metadata.get("split.count", 1) not in {0, 1}:
            raise ModelError(f"{file.path}: field 'split.count': files split in parts are not supported")
        for key, harmless in _UNSUPPORTED.items():
            if self.get(key) not in {None, harmless}:
                raise self.wrong(key, "which is not supported")

    def get(self, key: str) -> Any:
        """The value, None if absent; a list counts as its elements' one value."""
        value = self._file.metadata.get(f"{self.architecture}.{key}")
        if isinstance(value, list):
            return value[0] if value and value.count(value[0]) == len(value) else str(value)
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """A positive whole number."""
        value = self._given(key, default)
        if not isinstance(value, int) or value < 1:
            raise self.wrong(key, "not a positive whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite positive number."""
        value = self._given(key, default)
        if not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise self.wrong(key, "not a positive number")
        return float(value)

    def wrong(self, key: str, why: str) -> ModelError:
        """The error to raise for a field."""
        return ModelError(f"{self._file.path}: field '{self.architecture}.{key}' is {self.get(key)!r}, {why}")

    def _given(self, key: str, default: float | None) -> Any:
        value = self.get(key)
        if value is None and default is None:
            raise ModelError(f"{self._file.path}: field '{self.architecture}.{key}' is missing")
        return default if value is None else value


def _vocab_size(file: GGUFFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or not embedding.shape:
        raise ModelError(f"{file.path}: tensor 'token_embd.weight' is missing")
    return embedding.shape[0]


def _window(fields: _Fields) -> int | None:
    """Mistral's window is on every layer; which layers of a Qwen model have one, a GGUF does not say."""
    key = "attention.sliding_window"
    if not fields.get(key):
        return None
    window = fields.count(key)
    if window >= fields.count("context_length"):
        return None
    if fields.architecture != "llama":
        raise fields.wrong(key, f"which is not supported for {fields.architecture}")
    return window


def _rope_scaling(
    fields: _Fields, tensors: Mapping[str, tuple[float, ...]], rotary_dim: int
) -> RopeScaling | None:
    for name, factors in tensors.items():
        if len(factors) != rotary_dim // 2:
            raise fields.wrong("rope.dimension_count", f"but {name!r} has {len(factors)} numbers")
    kind = fields.get("rope.scaling.type") or "linear"
    factor = fields.number("rope.scaling.factor", fields.number("rope.scale_linear", 1.0))
    original = fields.count("rope.scaling.original_context_length", fields.count("context_length"))
    magnitude = fields.number("rope.scaling.attn_factor", 1.0)
    divisors = tensors.get("rope_freqs.weight")
    if kind == "longrope":
        if "rope_factors_short.weight" not in tensors or "rope_factors_long.weight" not in tensors:
            raise fields.wrong("rope.scaling.type", "but the tensors rope_factors_* are missing")
        return RopeScaling(
            kind="longrope",
            original_max_position=original,
            attention_factor=magnitude,
            short_factor=tensors["rope_factors_short.weight"],
            long_factor=tensors["rope_factors_long.weight"],
        )
    if kind == "yarn" and divisors is None:
        return RopeScaling(
            kind="yarn",
            factor=factor,
            original_max_position=original,
            beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
            attention_factor=magnitude * (1 + 0.1 * math.log(factor)),
        )
    if kind not in {"linear", "none"}:
        raise fields.wrong("rope.scaling.type", "which is not supported")
    if kind == "none":
        factor = 1.0
    if divisors is not None:
        # How Llama 3.1 is stored: its scaling worked out, one divisor a pair whatever the length.
        scaled = tuple(divisor * factor for divisor in divisors)
        return RopeScaling(kind="longrope", attention_factor=1.0, short_factor=scaled, long_factor=scaled)
    return None if factor == 1.0 else RopeScaling(kind="linear", factor=factor)
