"""GGUF files on the native decoder, their blocks computed as they are."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from transformers import PreTrainedModel

from engine.models.loader import embedded_model_path, load_matrices
from engine.models.native import NativeDecoder
from engine.models.native_load import NativeModel, lay_down
from engine.models.native_plan import Quantize
from engine.tokenizer import load_tokenizer
from kernels.cpu.abi import Epilogue, Format, Kind
from kernels.cpu.build import Isa, supported_isas
from kernels.cpu.runtime import BLOCK, WIDE, Runtime
from tests.models import tiny, tiny_gguf
from tests.models.paged_sequences import PagedSequences, prompt_logits
from tests.models.test_gguf_loader import make
from tests.models.test_native import TEXT, divergence

TOKENS = random.Random(3).choices(range(tiny.VOCAB), k=60)


@pytest.fixture(params=supported_isas())
def isa(request: pytest.FixtureRequest) -> Isa:
    chosen: Isa = request.param
    return chosen


def lay(
    path: Path,
    isa: Isa | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    quantize: Quantize | None = "gguf",
) -> NativeModel:
    def quiet(_label: str, _fraction: float) -> None:
        pass

    spec, weights = load_matrices(path, dtype=dtype, progress=quiet)
    return lay_down(spec, weights, Runtime(2, isa), dtype=dtype, quantize=quantize, progress=quiet)


def sequences(path: Path, model: NativeModel) -> PagedSequences:
    made = PagedSequences(tiny.load(path), num_pages=40, page_size=16)
    made.decoder = NativeDecoder(model, num_pages=40, page_size=16)
    return made


def formats(model: NativeModel) -> set[int]:
    return {op.src_format for op in model.image.ops if op.kind == Kind.LINEAR}


def save(kind: str, directory: Path) -> tuple[Path, PreTrainedModel]:
    """A tiny model as a file, and the same numbers in `transformers`."""
    model = make("llama", tie_word_embeddings=True)
    return tiny_gguf.from_model(model, "llama", kind).write(directory / "model.gguf"), model


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
def test_blocks_as_they_are(kind: str, isa: Isa, tmp_path: Path) -> None:
    """Only activations are rounded: near `transformers` on the numbers that the file means."""
    path, oracle = save(kind, tmp_path)
    model = lay(path, isa)
    assert formats(model) == {Format.Q8 if kind == "Q8_0" else Format.Q4}
    computed = sequences(path, model).step({0: TOKENS}, logits_of="every")
    assert divergence(tiny.oracle_logits(oracle, TOKENS), computed) < 2e-2


def test_inputs_that_share_a_scale(tmp_path: Path) -> None:
    """As many as in the file's blocks; otherwise 64, but in the head."""
    path, _ = save("Q8_0", tmp_path)
    cases: list[tuple[Quantize, int]] = [("gguf", BLOCK), ("int8", WIDE)]
    for quantize, others in cases:
        linears = [op for op in lay(path, quantize=quantize).image.ops if op.kind == Kind.LINEAR]
        assert {op.group for op in linears if op.epilogue != Epilogue.LOGITS} == {others}
        assert {op.group for op in linears if op.epilogue == Epilogue.LOGITS} == {BLOCK}


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "F16"])
def test_plain_numbers_from_blocks(kind: str, tmp_path: Path) -> None:
    """Without quantisation blocks are decoded natively, to the numbers they mean."""
    path, oracle = save(kind, tmp_path)
    computed = sequences(path, lay(path, quantize=None)).step({0: TOKENS}, logits_of="every")
    torch.testing.assert_close(computed, tiny.oracle_logits(oracle, TOKENS), atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
def test_row_is_bit_identical_in_any_company(kind: str, isa: Isa, tmp_path: Path) -> None:
    path, _ = save(kind, tmp_path)
    model = lay(path, isa)
    rows = {key: TOKENS[key : key + 1 + 3 * key] for key in range(14)}
    together = sequences(path, model).step(rows)
    for key, tokens in rows.items():
        alone = sequences(path, model)
        for start in range(0, len(tokens), 7):
            logits = alone.step({key: tokens[start : start + 7]})
        assert torch.equal(logits[0], together[key])


def test_kinds_that_meet_in_one_projection(tmp_path: Path) -> None:
    """Q4_1 beside Q8_0 becomes 8 bits; plain numbers stay bfloat16."""
    model = make("llama")
    file = tiny_gguf.from_model(model, "llama", "Q4_1")
    state = model.state_dict()
    for layer in range(model.config.num_hidden_layers):
        for name, source, kind in (
            ("attn_v", "self_attn.v_proj", "Q8_0"),
            ("ffn_down", "mlp.down_proj", "F16"),
        ):
            values = state[f"model.layers.{layer}.{source}.weight"].numpy()
            encoding = GGMLQuantizationType[kind]
            file.tensors[f"blk.{layer}.{name}.weight"] = (tiny_gguf.encode(values, encoding, name), encoding)
    path = file.write(tmp_path / "model.gguf")
    laid = lay(path, dtype=torch.bfloat16)
    assert formats(laid) == {Format.Q8, Format.Q4, Format.BF16}
    computed = sequences(path, laid).step({0: TOKENS}, logits_of="every")
    assert divergence(tiny.oracle_logits(model, TOKENS), computed) < 2e-2


@pytest.mark.parametrize("quantize", ["gguf", "int8"])
def test_embedded_model_stays_close(quantize: Quantize) -> None:
    """Divergence from float32 on the same weights, over every position of a text."""
    path = embedded_model_path()
    tokens = load_tokenizer(path).encode(TEXT, add_special=True, parse_special=False)
    model = lay(path, dtype=torch.bfloat16, quantize=quantize)
    expected = prompt_logits(tiny.load(path), tokens)
    assert divergence(expected, sequences(path, model).step({0: tokens}, logits_of="every")) < 1e-2
    if quantize == "gguf":
        assert formats(model) == {Format.Q4, Format.Q8}
        size = sum(size for _, size in model.image.segments)
        assert size < 1.02 * np.memmap(path).nbytes, "no more than the file has"
