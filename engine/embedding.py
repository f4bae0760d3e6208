"""Vectors of one length, from hidden states of any."""

from __future__ import annotations

import numpy as np

from engine.batch import Float32


def unit_vector(state: Float32, dimensions: int | None = None) -> Float32:
    """The first `dimensions` numbers of `state` (all of them if None), scaled to length 1; zeros stay zeros.

    Returns:
        float32 [dimensions].
    """
    kept = state[:dimensions]
    length = np.linalg.norm(kept)
    return (kept / length).astype(np.float32) if length else kept
