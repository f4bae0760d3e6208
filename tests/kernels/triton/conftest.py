"""Interpreted and compiled kernels cannot live in one process: TRITON_INTERPRET decides at import.

The tests in `numerics` are collected where they can run: in the process that `test_interpreted.py` starts,
and where there is a GPU.
"""

from __future__ import annotations

import os

import torch

# Triton 3.9 warns unless told what it does anyway.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

_can_run = os.environ.get("TRITON_INTERPRET") == "1" or torch.cuda.is_available()
collect_ignore = [] if _can_run else ["numerics"]
