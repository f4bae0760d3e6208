"""Final hidden states, as they are asked for embeddings, against `transformers`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.models.native_plan import Quantize
from kernels.cpu.build import Isa, supported_isas
from kernels.cpu.errors import NativeStepError
from tests.models import tiny
from tests.models.paged_sequences import PagedSequences
from tests.models.random_models import in_float32, random_model
from tests.models.test_native import NativeSequences, ids

SIZES: dict[str, Any] = {"num_pages": 40, "page_size": 4}


def oracle_states(model: PreTrainedModel, tokens: list[int]) -> Tensor:
    """float32 [tokens, hidden] after the final norm."""
    with torch.no_grad():
        states: Tensor = model.base_model(torch.tensor([tokens])).last_hidden_state[0]
    return states


@pytest.mark.parametrize("name", tiny.MODELS)
def test_they_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """In two chunks, several sequences together, on plain torch and on the native step."""
    oracle = tiny.make(name)
    model = tiny.load(tiny.save(oracle, tmp_path))
    tokens = {key: ids(36 + 5 * key, tiny.VOCAB, seed=key) for key in range(3)}
    for sequences in (PagedSequences(model, **SIZES), NativeSequences(model, **SIZES)):
        sequences.step({key: row[:7] for key, row in tokens.items()}, logits_of="none")
        states = sequences.hidden_states({key: row[7:] for key, row in tokens.items()})
        for key, row in tokens.items():
            torch.testing.assert_close(states[key], oracle_states(oracle, row)[-1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("isa", supported_isas())
@pytest.mark.parametrize(
    ("dtype", "quantize", "least"),
    [(torch.float32, None, 0.999999), (torch.bfloat16, None, 0.999), (torch.float32, "int8", 0.997)],
)
@pytest.mark.parametrize("width", [64, 72])
def test_every_instruction_set_and_format_stays_close(
    isa: Isa, dtype: torch.dtype, quantize: Quantize | None, least: float, width: int
) -> None:
    """Also where rows are padded; and they do not depend on what else is in the step."""
    model = random_model(dtype=dtype, hidden_size=width)
    tokens = {key: ids(9 + key, 211, seed=key) for key in range(3)}
    expected = PagedSequences(in_float32(model), **SIZES).hidden_states(tokens)
    native = NativeSequences(model, **SIZES, isa=isa, quantize=quantize)
    states = native.hidden_states(tokens)
    assert states.shape == (3, width)
    assert torch.cosine_similarity(states, expected).min() >= least
    alone = NativeSequences(model, **SIZES, isa=isa, quantize=quantize).hidden_states({1: tokens[1]})
    assert torch.equal(alone[0], states[1])


def test_a_row_that_is_not_there_is_refused() -> None:
    native = NativeSequences(random_model(), **SIZES)
    batch = native._batch({0: [1, 2, 3]}, "none")
    wrong = replace(batch, embed_rows=batch.query_starts[1:].astype("int64"))
    with pytest.raises(NativeStepError):
        native.decoder.forward(wrong, torch.from_numpy(wrong.token_ids), torch.empty(1, 64))
