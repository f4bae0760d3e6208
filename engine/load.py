"""From a configuration to an engine with a real model: load, size the KV pool, wire the parts."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil
import torch

from engine.batch import Runner
from engine.config import Config
from engine.engine import Engine
from engine.errors import ConfigError
from engine.models.decoder import Decoder
from engine.models.gguf_packed import packed_weights
from engine.models.kv_cache import KVCache
from engine.models.loader import LoadedModel, embedded_model_path, load_matrices, load_model, model_spec
from engine.models.native import NativeDecoder
from engine.models.native_load import NativeModel, load_native
from engine.models.quantized import QuantizedModel, quantized
from engine.models.spec import ModelSpec
from engine.native_build import cpu_dtype, native_formats
from engine.native_runner import NativeRunner
from engine.native_sampler import NativeSampler
from engine.runner import Model, ModelRunner
from engine.sampler import Sampler
from engine.token_check import check_token_bytes
from engine.tokenizer import Tokenizer, load_tokenizer
from grammars.compiler import Compiler
from grammars.vocab import Vocabulary
from kernels.cpu.build import is_built, supported_isas
from kernels.cpu.errors import NativeUnavailableError
from kernels.cpu.runtime import Runtime
from kernels.quantize import CODES

_log = logging.getLogger("radish.load")

_MIB = 1 << 20
_MOST_KV_BY_DEFAULT = 4096 * _MIB
_DRAFT_TOKENS = 7
"""Of a step, where nobody said. Eight rows of one text take little longer than one: both wait for memory."""


def load_engine(config: Config, progress: Callable[[str, float], None]) -> Engine:
    """Load the configured model and build an engine, not started yet. Blocks for seconds.

    Args:
        progress: told what is being done and how much of it is done (0 to 1).

    Raises:
        ModelError: the model's files are missing, damaged or unsupported.
        ConfigError: the configuration asks for what this machine does not have.
    """
    threads = config.threads or os.cpu_count() or 1
    torch.set_num_threads(threads)
    device = _device(config)
    dtype = _dtype(config, device)
    path = Path(config.model) if config.model else embedded_model_path()
    kv_dtype = _kv_dtype(config, dtype)
    if config.kv_memory:  # what cannot be is told before weights are read
        _num_pages(config, model_spec(path), kv_dtype, device)
    progress("Reading the tokenizer", 0.0)
    with ThreadPoolExecutor(1) as aside:  # weights leave it a core, or wait for a disk
        reading = aside.submit(_tokenizer, path)
        laid = _native(config, path, dtype, threads, progress) if device.type == "cpu" else None
        loaded = laid or _for_torch(config, path, dtype, device, progress)
        tokenizer = reading.result()
    limit = loaded.spec.max_position
    max_context = min(config.max_context or limit, limit)
    # Rotary angles that are stretched for long contexts are chosen by the longest one that is served.
    spec = msgspec.structs.replace(loaded.spec, max_position=max_context)
    num_pages = _num_pages(config, spec, kv_dtype, device)
    progress("Reserving memory", 0.0)
    if isinstance(loaded, NativeModel):
        runner: Runner = _native_runner(replace(loaded, spec=spec), num_pages, config.page_size, kv_dtype)
    else:
        kv = KVCache.allocate(spec, num_pages, config.page_size, kv_dtype, device)
        model = _replayed(Decoder(spec, loaded.weights, kv), config.max_running, progress)
        runner = ModelRunner(model, _sampler(spec.vocab_size, device), device)
    # Last, because it starts a process that nobody would end if something above failed.
    compiler = _compiler(config, tokenizer, loaded.spec.vocab_size)
    compiler.warm_up()
    _return_freed_memory()
    return Engine(
        config=_with_draft_tokens(config, is_native=isinstance(loaded, NativeModel)),
        runner=runner,
        compiler=compiler,
        tokenizer=tokenizer,
        model_name=config.served_model_name or (path.resolve().name if path.is_dir() else path.stem),
        hidden_size=spec.hidden_size,
        vocab_size=spec.vocab_size,
        num_pages=num_pages,
        max_context=max_context,
    )


def _native_runner(loaded: NativeModel, num_pages: int, page_size: int, kv_dtype: torch.dtype) -> Runner:
    try:
        decoder = NativeDecoder(loaded, num_pages=num_pages, page_size=page_size, kv_dtype=kv_dtype)
    except MemoryError as error:  # a limit on the process, say
        raise ConfigError(f"kv_memory: {error}") from error
    vocab_size = loaded.spec.vocab_size
    return NativeRunner(decoder, NativeSampler(vocab_size, loaded.runtime), vocab_size)


def _with_draft_tokens(config: Config, *, is_native: bool) -> Config:
    """Elsewhere than on the native path texts would depend on what is tried."""
    if config.draft_tokens is not None:
        return config
    return msgspec.structs.replace(config, draft_tokens=_DRAFT_TOKENS if is_native else 0)


def _tokenizer(path: Path) -> Tokenizer:
    tokenizer = load_tokenizer(path)
    check_token_bytes(tokenizer)
    _return_freed_memory()
    return tokenizer


def _return_freed_memory() -> None:
    """glibc keeps what was freed in between; loading leaves tens of MiB of it."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def _for_torch(
    config: Config,
    path: Path,
    dtype: torch.dtype,
    device: torch.device,
    progress: Callable[[str, float], None],
) -> LoadedModel | QuantizedModel:
    def quantizing(done: float) -> None:
        progress("Quantizing weights", done)

    kind = config.quantize
    if kind == "none":
        return load_model(path, dtype=dtype, device=device, progress=progress)
    if kind == "gguf":
        _check_blocks(path)
        spec, matrices = load_matrices(path, dtype=dtype, progress=progress)
        return QuantizedModel(spec, packed_weights(matrices, dtype, device, quantizing))
    loaded = load_model(path, dtype=dtype, device=torch.device("cpu"), progress=progress)
    return QuantizedModel(loaded.spec, quantized(loaded.weights, kind, device, quantizing))


def _native(
    config: Config, path: Path, dtype: torch.dtype, threads: int, progress: Callable[[str, float], None]
) -> NativeModel | None:
    """The model as one native call a step; None, and a warning, where that cannot be had."""
    if config.quantize == "fp8":
        raise ConfigError("quantize: fp8 runs on a GPU only; int8 takes as little memory")
    if config.quantize == "int4":
        raise ConfigError("quantize: int4 runs on a GPU only; int8 quantises any model here")
    try:
        formats = native_formats(config)
        if not is_built(supported_isas()[0], formats):
            progress("Compiling the native step", 0.0)
        runtime = Runtime(threads, formats=formats)
    except NativeUnavailableError as error:
        if config.quantize != "none":
            raise ConfigError(f"quantize: {config.quantize} needs the native path: {error}") from error
        if config.kv_dtype != "auto":
            raise ConfigError(f"kv_dtype: {config.kv_dtype} needs the native path: {error}") from error
        if config.exact:
            raise ConfigError(f"exact: only the native path adds up in a fixed order: {error}") from error
        if config.draft_tokens:
            raise ConfigError(
                f"draft_tokens: only on the native path texts stay the same: {error}"
            ) from error
        _log.warning("serving on plain torch, several times slower: %s", error)
        return None
    quantize = None if config.quantize == "none" else config.quantize
    if quantize == "gguf":
        _check_blocks(path)
    model = load_native(path, dtype=dtype, quantize=quantize, runtime=runtime, progress=progress)
    # What is left to torch is small, and its workers would spin on the cores of the step's own.
    torch.set_num_threads(1)
    _log.info("native step runtime: %s, %d threads", runtime.isa, threads)
    return model


def _check_blocks(path: Path) -> None:
    if path.is_dir():
        raise ConfigError(f"quantize: {path} is no GGUF file; int8 quantises any model")


def _replayed(decoder: Decoder, max_running: int, progress: Callable[[str, float], None]) -> Model:
    """The decoder, on a GPU with graphs of its decode steps."""
    if decoder.device.type == "cpu":
        return decoder
    # Imports Triton, which a CPU does without.
    from engine.models.graphs import MOST_ROWS, CudaCapture, GraphedDecoder  # noqa: PLC0415
    from kernels.gpu.tile_table import TileError  # noqa: PLC0415

    try:
        return GraphedDecoder(
            decoder,
            max_rows=min(max_running, MOST_ROWS),
            capture=CudaCapture(),
            progress=lambda done: progress("Capturing decode steps", done),
        )
    except TileError as error:
        raise ConfigError(f"device: {error}") from error


def _sampler(vocab_size: int, device: torch.device) -> Sampler:
    if device.type == "cpu":
        return Sampler(vocab_size)
    from engine.gpu_sampler import GpuSampler  # noqa: PLC0415  # imports Triton, which a CPU does without

    return GpuSampler(vocab_size)


def _device(config: Config) -> torch.device:
    device = _chosen_device(config)
    if config.exact and device.type != "cpu":
        raise ConfigError("exact: on a GPU the order of additions depends on the batch; use --device cpu")
    if config.draft_tokens and device.type != "cpu":
        raise ConfigError("draft_tokens: on a GPU texts would depend on what is tried; use --device cpu")
    return device


def _chosen_device(config: Config) -> torch.device:
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device: this machine has no GPU that the installed torch can use")
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(config.device)


def _dtype(config: Config, device: torch.device) -> torch.dtype:
    if config.kv_dtype == "fp8" and device.type == "cpu":
        raise ConfigError("kv_dtype: fp8 runs on a GPU only; int8 takes as little memory")
    chosen = cpu_dtype(config)
    if device.type == "cuda" and config.dtype == "auto":
        chosen = "bfloat16"
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[chosen]


def _kv_dtype(config: Config, dtype: torch.dtype) -> torch.dtype:
    if config.kv_dtype in CODES:
        return CODES[config.kv_dtype]
    return torch.bfloat16 if config.kv_dtype == "bfloat16" or config.quantize != "none" else dtype


def _memory(device: torch.device) -> tuple[int, int]:
    """How many bytes are free, and how many there are."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info()
    memory = psutil.virtual_memory()
    return memory.available, memory.total


def _num_pages(config: Config, spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> int:
    """Pages that fit the configured memory, or a quarter of what is free."""
    wanted = config.kv_memory * _MIB
    free, total = _memory(device)
    if wanted > total:
        raise ConfigError(f"kv_memory: there are only {total // _MIB} MiB of memory")
    if not wanted:
        wanted = min(_MOST_KV_BY_DEFAULT, free // 4)
    # The native path pads heads, so on a CPU this is the most that a page may take.
    cache = NativeDecoder if device.type == "cpu" else KVCache
    page = cache.bytes_per_page(spec, config.page_size, dtype)
    if wanted < 2 * page:
        raise ConfigError(f"kv_memory: {wanted // _MIB} MiB hold fewer than 2 pages of {page // 1024} KiB")
    return wanted // page


def _compiler(config: Config, tokenizer: Tokenizer, vocab_size: int) -> Compiler:
    vocabulary = Vocabulary(
        token_bytes=tokenizer.token_bytes,
        eos_ids=tokenizer.eos_ids,
        special_ids=tokenizer.special_ids,
        width=vocab_size,
        encode=lambda text: tokenizer.encode(text, add_special=False, parse_special=False),
    )
    return Compiler(vocabulary, timeout_s=config.grammar_timeout, cache_bytes=config.grammar_cache * _MIB)
