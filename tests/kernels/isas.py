"""Instruction sets that tests of the native runtime go through."""

from __future__ import annotations

from typing import Final

from kernels.cpu.build import Isa, is_supported, supported_isas

EMULATED: Final[tuple[Isa, ...]] = ("amx-emulated",) if is_supported("amx-emulated") else ()
"""What this machine runs only because tests bring the processor's part, slowly."""
TESTED: Final[tuple[Isa, ...]] = (*supported_isas(), *EMULATED)
