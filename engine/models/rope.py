"""Rotary frequencies of every scaling variant the Llama line uses.

RoPE: arXiv:2104.09864. Linear: position interpolation, arXiv:2306.15595. YaRN: arXiv:2309.00071.
LongRoPE: arXiv:2402.13753. llama3: the Llama 3.1 release. All in float32, in the order of operations
`transformers` uses, so that angles at far positions round alike.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.models.spec import ModelSpec, RopeScaling


def rotary_frequencies(spec: ModelSpec) -> tuple[Tensor, float]:
    """Angle a position of each rotated pair, and what cosines and sines are multiplied by.

    Returns:
        float32 [rotary_dim / 2] on the CPU, and the attention factor (1.0 for most variants).

    The frequencies are the same for every sequence and every step: KV of a shared prefix must not
    depend on who reads it. Two variants depend on the length of the sequence in `transformers`:

    - dynamic leaves the frequencies alone up to `max_position`; beyond it, where each key would keep
      the frequencies of the step that wrote it, a sequence cannot go.
    - longrope takes its long factors if `max_position`, the longest sequence that will be served, is
      beyond the original context, and its short factors if not.
    """
    exponents = torch.arange(0, spec.rotary_dim, 2, dtype=torch.int64).float() / spec.rotary_dim
    periods = spec.rope_theta**exponents
    scaling = spec.rope_scaling
    if scaling is None or scaling.kind == "dynamic":
        return 1.0 / periods, 1.0
    if scaling.kind == "linear":
        return 1.0 / periods / scaling.factor, 1.0
    if scaling.kind == "llama3":
        return _llama3(1.0 / periods, scaling), 1.0
    if scaling.kind == "yarn":
        return _yarn(periods, spec, scaling), _yarn_attention_factor(scaling)
    is_long = spec.max_position > scaling.original_max_position
    factors = torch.tensor(scaling.long_factor if is_long else scaling.short_factor, dtype=torch.float32)
    return 1.0 / (factors * periods), _longrope_attention_factor(scaling)


def rotary_angles(frequencies: Tensor, attention_factor: float, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines, float32 [T, rotary_dim / 2], of int64 positions [T]."""
    angles = positions[:, None].float() * frequencies
    return angles.cos() * attention_factor, angles.sin() * attention_factor


def _llama3(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Divide low frequencies by the factor, keep high ones, blend in between."""
    wavelengths = 2 * math.pi / frequencies
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = (scaling.original_max_position / wavelengths - low) / (high - low)
    blended = (1 - kept) * frequencies / scaling.factor + kept * frequencies
    is_low = wavelengths > scaling.original_max_position / low
    is_high = wavelengths < scaling.original_max_position / high
    return torch.where(is_low, frequencies / scaling.factor, torch.where(is_high, frequencies, blended))


def _yarn(periods: Tensor, spec: ModelSpec, scaling: RopeScaling) -> Tensor:
    """Interpolate pairs that turn less than `beta_slow` times in the original context, keep those that
    turn more than `beta_fast` times, blend linearly in between."""

    def pair_turning(rotations: float) -> float:
        wavelength = scaling.original_max_position / (rotations * 2 * math.pi)
        return spec.rotary_dim * math.log(wavelength) / (2 * math.log(spec.rope_theta))

    low, high = pair_turning(scaling.beta_fast), pair_turning(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.rotary_dim - 1)
    width = high - low if high != low else 0.001
    interpolated = ((torch.arange(spec.rotary_dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return (1.0 / (scaling.factor * periods)) * interpolated + (1.0 / periods) * (1 - interpolated)


def _yarn_attention_factor(scaling: RopeScaling) -> float:
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return _magnitude(scaling.factor, scaling.mscale) / _magnitude(scaling.factor, scaling.mscale_all_dim)
    return _magnitude(scaling.factor, 1.0)


def _magnitude(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _longrope_attention_factor(scaling: RopeScaling) -> float:
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.factor <= 1:
        return 1.0
    return math.sqrt(1 + math.log(scaling.factor) / math.log(scaling.original_max_position))
