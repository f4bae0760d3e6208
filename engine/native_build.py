"""What the native step has to be compiled for: known from the configuration alone, so that a first start
compiles while torch is imported and the tokenizer is read."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Final, Literal

from engine.config import Config
from kernels.cpu.abi import Format
from kernels.cpu.build import Formats, library_path, supported_isas
from kernels.cpu.errors import NativeUnavailableError

_log = logging.getLogger("radish.load")

_GPU_DRIVER: Final = Path("/dev/nvidiactl")


def cpu_dtype(config: Config) -> Literal["float32", "bfloat16"]:
    """The type on a CPU of weights that are not quantised."""
    if config.dtype != "auto":
        return config.dtype
    return "bfloat16" if "avx512" in supported_isas() and config.quantize == "none" else "float32"


def native_formats(config: Config) -> Formats:
    """Of all weights and pages that a model may have under this configuration."""
    plain = Format.F32 if cpu_dtype(config) == "float32" else Format.BF16
    packed = {"int8": {Format.Q8}, "gguf": {Format.Q8, Format.Q4, Format.BF16}}
    weights = {plain} if config.quantize == "none" else packed.get(config.quantize, set())
    pages = plain if config.quantize == "none" else Format.BF16
    chosen = {"auto": pages, "bfloat16": Format.BF16, "int8": Format.Q8, "fp8": pages}[config.kv_dtype]
    return Formats(frozenset(weights), frozenset({chosen}))


def build_ahead(config: Config) -> None:
    """Begin to build what this configuration will load, unless that may run on a GPU."""
    if config.device == "cuda" or (config.device == "auto" and _GPU_DRIVER.exists()):
        return
    threading.Thread(target=_build, args=(native_formats(config),), name="radish-build").start()


def _build(formats: Formats) -> None:
    try:
        library_path(supported_isas()[0], formats)
    except NativeUnavailableError as error:
        _log.debug("the native step cannot be built ahead: %s", error)  # whoever loads it tells
