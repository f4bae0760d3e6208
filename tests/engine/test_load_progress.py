"""A start tells what it is at: a first one compiles and packs, a second one finds both done."""

from __future__ import annotations

import threading
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from engine.config import Config
from engine.load import load_engine
from kernels.cpu.build import library_path, supported_isas
from tests.engine.tokenizer_files import CHATML, byte_level_json, write_directory
from tests.models import tiny

LAYERS = 3
Reports = list[tuple[str, float]]


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cached file, and a compiler that is quick: it copies what the real one made."""
    built = library_path(supported_isas()[0])
    compiler = tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\nfor output; do :; done\ncp "{built}" "$output"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny model with a tokenizer of bytes."""
    sizes: dict[str, Any] = {"vocab_size": 256 + len(CHATML), "hidden_size": 64, "intermediate_size": 64}
    heads: dict[str, Any] = {"num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2}
    with tiny.quiet():
        random = LlamaForCausalLM(LlamaConfig(**sizes, **heads, max_position_embeddings=64))
    tiny.randomise(random)
    return write_directory(tiny.save(random, tmp_path / "model"), tokenizer_json=byte_level_json())


async def start(config: Config) -> Reports:
    reports: Reports = []
    engine = load_engine(config, lambda stage, fraction: reports.append((stage, fraction)))
    await engine.start()
    await engine.stop()
    for thread in threading.enumerate():
        if thread.name == "radish-weights":
            thread.join()
    return reports


@pytest.mark.usefixtures("empty_cache")
async def test_each_phase_is_told_by_its_name(model: Path) -> None:
    config = Config(model=str(model), quantize="int8", kv_memory=1)
    first, second = await start(config), await start(config)
    assert [stage for stage, _ in groupby(first, key=lambda report: report[0])] == [
        "Reading the tokenizer",
        "Compiling the native step",
        "Reading packed weights",
        "Loading weights",
        "Quantizing weights",
        "Reserving memory",
    ]
    assert [stage for stage, _ in second] == [
        "Reading the tokenizer",
        "Reading packed weights",
        "Reserving memory",
    ]
    for stage in ("Loading weights", "Quantizing weights"):
        fractions = [fraction for told, fraction in first if told == stage]
        assert fractions == sorted(fractions)
        assert (fractions[0], fractions[-1]) == (0.0, 1.0)
        assert len(fractions) > LAYERS
