"""Interpreted and compiled kernels cannot live in one process: TRITON_INTERPRET decides at import.

The tests in `interpreted` are collected where it is set, which `test_interpreted.py` does in a process of
its own.
"""

from __future__ import annotations

import os

collect_ignore = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["interpreted"]
