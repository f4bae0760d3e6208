"""Drawing one token from one row of logits.

Everything here is a function of the row and of one uniform number, which is a function of the
sequence's seed and the token's position: neighbours in the batch, the row's place in it, and
interruptions change nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.params import SamplingParams

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_FIRST_BOUND = 2.0**-4
_LAST_BOUND = 2.0**-149
"""The smallest positive float32: no weight of a token that may be drawn is below it."""


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1), one of 2**52, from a counter-based generator.

    Two rounds of SplitMix64 (Steele, Lea and Flood 2014, doi:10.1145/2714064.2660195): the first
    spreads seeds that are close, the second is the generator's own output for counter `position`.
    """
    return (_mix(_mix(seed + _GAMMA) + (position + 1) * _GAMMA) >> 12) * 2.0**-52


def draw(logits: Tensor, params: SamplingParams, noise: float) -> Tensor:
    """Sample a token of `logits` ([V] float32, with a finite maximum; overwritten) by inverse CDF.

    Args:
        logits: after penalties, bias and masks.
        params: temperature > 0, then top-k, top-p and min-p in this order (the one of
            `transformers`), each over what the one before left. Ties at a cut are all kept, so the
            result does not depend on how equal logits happen to be sorted.
        noise: in [0, 1).

    Returns:
        The token id, int64, no dimensions.
    """
    weights = _weights(logits, params)
    cumulative = weights.cumsum(0, dtype=torch.float64)
    # The first place whose cumulative weight exceeds the target has a weight of its own above zero.
    return torch.searchsorted(cumulative, cumulative[-1:] * noise, right=True)[0]


def _weights(logits: Tensor, params: SamplingParams) -> Tensor:
    """Unnormalised probabilities [V] after truncation, 1.0 for the likeliest token."""
    logits -= logits.max()
    weights = logits.div_(params.temperature).exp_()
    if 0 < params.top_k < len(weights):
        weights[weights < weights.topk(params.top_k).values[-1]] = 0.0
    if params.top_p < 1.0:
        weights[weights < _nucleus_cut(weights, params.top_p)] = 0.0
    if params.min_p > 0.0:
        weights[weights < params.min_p] = 0.0
    return weights


def _nucleus_cut(weights: Tensor, top_p: float) -> Tensor:
    """The smallest weight of the nucleus (Holtzman et al. 2019, arXiv:1904.09751).

    A token is in it while the likelier ones together have less than `top_p`. Sorting is for the
    tokens above a first bound only, lowered until they have `top_p` together.
    """
    goal = weights.sum(dtype=torch.float64).item() * top_p
    bound = _FIRST_BOUND
    candidates = weights[weights >= bound]
    while candidates.sum(dtype=torch.float64).item() < goal and bound > _LAST_BOUND:
        bound *= _FIRST_BOUND
        candidates = weights[weights >= bound]
    ordered = candidates.sort(descending=True).values
    before = ordered.cumsum(0, dtype=torch.float64) - ordered
    return ordered[before < goal][-1]


def _mix(value: int) -> int:
    """The output function of SplitMix64, on 64 bits."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
