"""A checkpoint's config.json turned into a `ModelSpec`.

Fields and defaults are those of `transformers`. Its version 5 writes `rope_parameters`; before, the
same content was `rope_scaling` beside `rope_theta`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from engine.models.errors import ModelError
from engine.models.spec import ModelSpec, RopeScaling

_Count = Annotated[int, msgspec.Meta(ge=1)]
_Positive = Annotated[float, msgspec.Meta(gt=0)]
_Architecture = Literal["llama", "mistral", "qwen2", "qwen3"]

_ARCHITECTURES: Final[dict[str, _Architecture]] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
_QKV_BIASES: Final = ("q_bias", "k_bias", "v_bias")
_MLP_BIASES: Final = ("gate_bias", "up_bias", "down_bias")
_DEFAULT_WINDOW: Final = 4096


class _Rope(msgspec.Struct, frozen=True, kw_only=True):
    """`rope_parameters` or `rope_scaling`."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: _Positive | None = None
    partial_rotary_factor: _Positive | None = None
    factor: _Positive | None = None
    original_max_position_embeddings: _Count | None = None
    low_freq_factor: _Positive | None = None
    high_freq_factor: _Positive | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    truncate: bool = True
    short_factor: tuple[float, ...] | None = None
    long_factor: tuple[float, ...] | None = None


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of config.json that matter here."""

    architectures: list[str]
    hidden_size: _Count
    intermediate_size: _Count
    num_hidden_layers: Annotated[int, msgspec.Meta(ge=1, le=10_000)]
    num_attention_heads: _Count
    vocab_size: _Count
    max_position_embeddings: _Count
    num_key_value_heads: _Count | None = None
    head_dim: _Count | None = None
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    rope_theta: _Positive | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    partial_rotary_factor: _Positive | None = None
    original_max_position_embeddings: _Count | None = None
    sliding_window: _Count | msgspec.UnsetType | None = msgspec.UNSET
    use_sliding_window: bool = False
    max_window_layers: int = 28
    layer_types: list[str] | None = None
    quantization_config: dict[str, Any] | None = None


def read_config(directory: Path) -> tuple[ModelSpec, tuple[str, ...]]:
    """The model of a checkpoint directory, and the optional fields of `LayerWeights` it has.

    Raises:
        ModelError: config.json is missing, malformed, or asks for what is not supported; the message
            names the field.
    """
    path = directory / "config.json"
    try:
        config = msgspec.json.decode(path.read_bytes(), type=_Config)
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ModelError(f"{path}: {error}") from error
    try:
        return _spec(config, directory.resolve().name)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error


def _spec(config: _Config, name: str) -> tuple[ModelSpec, tuple[str, ...]]:
    architecture = _architecture(config)
    head_dim = _head_dim(config, architecture)
    num_kv_heads = config.num_key_value_heads or config.num_attention_heads
    if config.num_attention_heads % num_kv_heads:
        raise ModelError(
            f"field 'num_key_value_heads' is {num_kv_heads}, "
            f"which does not divide num_attention_heads, {config.num_attention_heads}"
        )
    field, rope = _rope(config)
    rotary_dim = int(head_dim * (rope.partial_rotary_factor or config.partial_rotary_factor or 1.0))
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise ModelError(f"field 'partial_rotary_factor' rotates {rotary_dim} of {head_dim} dimensions")
    spec = ModelSpec(
        architecture=architecture,
        name=name,
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        max_position=config.max_position_embeddings,
        rms_eps=config.rms_norm_eps,
        rope_theta=rope.rope_theta or config.rope_theta or 10_000.0,
        rope_scaling=_rope_scaling(config, field, rope, rotary_dim),
        rotary_dim=rotary_dim,
        tie_embeddings=config.tie_word_embeddings,
        sliding_window=_windows(config, architecture),
    )
    return spec, _optional_fields(config, architecture)


def _architecture(config: _Config) -> _Architecture:
    if len(config.architectures) != 1 or config.architectures[0] not in _ARCHITECTURES:
        raise ModelError(
            f"field 'architectures' is {config.architectures}; supported are {', '.join(_ARCHITECTURES)}"
        )
    if config.quantization_config is not None:
        method = config.quantization_config.get("quant_method", "of an unnamed method")
        raise ModelError(f"field 'quantization_config': quantised weights ({method}) are not supported")
    if config.hidden_act != "silu":
        raise ModelError(f"field 'hidden_act' is {config.hidden_act!r}; only 'silu' is supported")
    return _ARCHITECTURES[config.architectures[0]]


def _head_dim(config: _Config, architecture: _Architecture) -> int:
    if config.head_dim is not None:
        return config.head_dim
    if architecture == "qwen3":
        return 128
    if config.hidden_size % config.num_attention_heads:
        raise ModelError(
            f"field 'num_attention_heads' is {config.num_attention_heads}, "
            f"which does not divide hidden_size, {config.hidden_size}, and there is no head_dim"
        )
    return config.hidden_size // config.num_attention_heads


def _rope(config: _Config) -> tuple[str, _Rope]:
    """The rotary settings, and the name of the field they are in."""
    field = "rope_scaling" if config.rope_scaling else "rope_parameters"
    raw = config.rope_scaling or config.rope_parameters or {}
    nested = next((key for key, value in raw.items() if isinstance(value, dict)), None)
    if nested is not None:
        raise ModelError(f"field '{field}.{nested}': rotary settings by layer are not supported")
    try:
        return field, msgspec.convert(raw, _Rope)
    except msgspec.ValidationError as error:
        raise ModelError(f"field {field!r}: {error}") from error


def _rope_scaling(config: _Config, field: str, rope: _Rope, rotary_dim: int) -> RopeScaling | None:
    def needed(key: str) -> Any:
        value = getattr(rope, key)
        if value is None:
            raise ModelError(f"field '{field}.{key}' is missing")
        return value

    kind = rope.rope_type or rope.type or "default"
    original = (
        config.original_max_position_embeddings
        or rope.original_max_position_embeddings
        or config.max_position_embeddings
    )
    stretch = rope.factor or config.max_position_embeddings / original
    match kind:
        case "default":
            return None
        case "linear" | "dynamic":
            return RopeScaling(kind=kind, factor=needed("factor"))
        case "llama3":
            return RopeScaling(
                kind=kind,
                factor=needed("factor"),
                original_max_position=original,
                low_freq_factor=needed("low_freq_factor"),
                high_freq_factor=needed("high_freq_factor"),
            )
        case "yarn":
            return RopeScaling(
                kind=kind,
                factor=stretch,
                original_max_position=original,
                beta_fast=rope.beta_fast or 32.0,
                beta_slow=rope.beta_slow or 1.0,
                mscale=rope.mscale,
                mscale_all_dim=rope.mscale_all_dim,
                attention_factor=rope.attention_factor,
                truncate=rope.truncate,
            )
        case "longrope":
            for key in ("short_factor", "long_factor"):
                if len(needed(key)) != rotary_dim // 2:
                    raise ModelError(
                        f"field '{field}.{key}' has {len(needed(key))} numbers, expected {rotary_dim // 2}"
                    )
            return RopeScaling(
                kind=kind,
                factor=stretch,
                original_max_position=original,
                attention_factor=rope.attention_factor,
                short_factor=needed("short_factor"),
                long_factor=needed("long_factor"),
            )
        case _:
            raise ModelError(f"field '{field}.rope_type' is {kind!r}, which is not supported")


def _windows(config: _Config, architecture: _Architecture) -> tuple[int | None, ...]:
    window = _DEFAULT_WINDOW if config.sliding_window is msgspec.UNSET else config.sliding_window
    layers = config.num_hidden_layers
    if architecture == "mistral":
        return (window,) * layers
    if architecture == "llama" or not config.use_sliding_window:
        return (None,) * layers
    if config.layer_types is None:
        return tuple(window if index >= config.max_window_layers else None for index in range(layers))
    if len(config.layer_types) != layers:
        raise ModelError(f"field 'layer_types' has {len(config.layer_types)} entries for {layers} layers")
    kinds = {"full_attention": None, "sliding_attention": window}
    for kind in config.layer_types:
        if kind not in kinds:
            raise ModelError(f"field 'layer_types' has {kind!r}; supported are {', '.join(kinds)}")
    return tuple(kinds[kind] for kind in config.layer_types)


def _optional_fields(config: _Config, architecture: _Architecture) -> tuple[str, ...]:
    """Mistral has no biases and Qwen2 always has three, whatever the config says."""
    fields: tuple[str, ...] = ()
    if architecture == "qwen2":
        fields += _QKV_BIASES
    if architecture in {"llama", "qwen3"} and config.attention_bias:
        fields += (*_QKV_BIASES, "o_bias")
    if architecture == "llama" and config.mlp_bias:
        fields += _MLP_BIASES
    if architecture == "qwen3":
        fields += ("q_norm", "k_norm")
    return fields
