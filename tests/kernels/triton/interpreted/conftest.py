"""Prepare the interpreter before any kernel runs."""

from __future__ import annotations

import torch

from tests.kernels.triton import interpreter

interpreter.install()
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)  # which fills what torch.empty returns with NaN
