"""GGUF files for a GPU: 4-bit blocks are kept as they are and mean what the file means, to the last bit."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from engine.models.gguf_packed import packed, packed_weights
from engine.models.loader import load_matrices, load_model
from engine.models.quantized import QuantizedModel
from kernels.cpu.abi import Encoding
from kernels.cpu.blocks import Blocks
from kernels.quantize import PackedRows
from tests.models import tiny, tiny_gguf
from tests.models.paged_sequences import PagedSequences, prompt_logits
from tests.models.test_gguf_loader import make

CPU = torch.device("cpu")
TOKENS = random.Random(3).choices(range(tiny.VOCAB), k=60)


def quiet(_label: str, _done: float) -> None:
    pass


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_blocks_mean_what_they_meant(kind: str) -> None:
    weight = torch.randn(7, 96, generator=torch.Generator().manual_seed(0)) + 0.5
    rows = tiny_gguf.encode(weight.numpy(), GGMLQuantizationType[kind], "weight")
    blocks = Blocks(rows, Encoding[kind], 96)
    assert torch.equal(packed(blocks, CPU).plain(), blocks.decoded())


@pytest.mark.parametrize(
    ("kind", "is_packed"), [("Q4_0", True), ("Q4_1", True), ("Q8_0", False), ("F16", False)]
)
def test_file(kind: str, is_packed: bool, tmp_path: Path) -> None:
    """The logits are those of the decoded file; what is not in 4 bits is decoded."""
    path = tiny_gguf.from_model(make("llama", tie_word_embeddings=True), "llama", kind)
    file = path.write(tmp_path / "model.gguf")
    spec, matrices = load_matrices(file, dtype=torch.float32, progress=quiet)
    weights = packed_weights(matrices, torch.float32, CPU, lambda _done: None)
    assert weights.lm_head is weights.embed
    assert {type(layer.down) for layer in weights.layers} == {PackedRows if kind.startswith("Q4") else Tensor}
    model = PagedSequences(QuantizedModel(spec, weights), num_pages=15, page_size=4)
    decoded = load_model(file, dtype=torch.float32, device=CPU, progress=quiet)
    assert torch.equal(model.step({0: TOKENS}, logits_of="every"), prompt_logits(decoded, TOKENS))
