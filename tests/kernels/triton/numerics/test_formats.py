"""A model on Triton's kernels with KV, or weights and activations, in 8 bits, beside plain torch."""

from __future__ import annotations

import pytest
import torch

from engine.models import decoder
from engine.models.loader import LoadedModel
from engine.models.quantized import Kind, QuantizedModel, quantized
from kernels.dispatch import operations
from tests.kernels.triton.numerics.random_model import SPEC, random_weights
from tests.models.paged_sequences import PagedSequences

CPU = torch.device("cpu")
PROMPT = [int(byte) for byte in b"What a prompt is to a model, soil is to a radish."]
LATER = [int(byte) for byte in b" Water it"]
ROUNDING = 2e-2
"""What a code rounded the other way may change of a logit; they have a deviation of 3."""


@pytest.fixture
def on_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoders made from here on run on Triton's kernels."""
    monkeypatch.setattr(decoder, "operations", lambda _device: operations(torch.device("cuda")))


def sequences(pages: torch.dtype, device: torch.device) -> PagedSequences:
    model = LoadedModel(SPEC, random_weights(device))
    return PagedSequences(model, num_pages=24, page_size=16, dtype=pages, device=device)


def logits(model: PagedSequences) -> torch.Tensor:
    """[1 + len(LATER), vocab] after a prompt in two chunks, and after each of some decoded tokens."""
    model.step({0: PROMPT[:20]}, logits_of="none")
    rows = [model.step({0: PROMPT[20:]})]
    rows += [model.step({0: [token]}) for token in LATER]
    return torch.cat(rows).cpu()


@pytest.mark.parametrize(("pages", "bound"), [(torch.int8, 2e-3), (torch.uint8, 5e-2)])
def test_pages_in_8_bits(
    request: pytest.FixtureRequest, device: torch.device, pages: torch.dtype, bound: float
) -> None:
    """Kernels are as far from plain torch as rounding is, and 8 bits are not far from float32.

    Args:
        bound: greatest divergence from float32 pages, in nats, of any token's distribution.
    """
    exact, same = logits(sequences(torch.float32, CPU)), logits(sequences(pages, CPU))
    request.getfixturevalue("on_kernels")
    computed = logits(sequences(pages, device))
    assert divergence(exact, computed).max() < bound
    torch.testing.assert_close(computed, same, rtol=0, atol=ROUNDING)
    assert torch.equal(computed.argmax(-1), same.argmax(-1))


def divergence(exact: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Kullback-Leibler, nats, of each row of logits."""
    expected, log_expected = exact.softmax(-1), exact.log_softmax(-1)
    return (expected * (log_expected - other.log_softmax(-1))).sum(-1)


@pytest.mark.parametrize(("kind", "bound"), [("int8", 1e-2), ("fp8", 2e-1)])
def test_weights_and_activations_in_8_bits(
    request: pytest.FixtureRequest, device: torch.device, kind: Kind, bound: float
) -> None:
    """As above, for linears on quantised rows."""
    exact, same = logits(sequences(torch.float32, CPU)), logits(quantized_sequences(kind, CPU))
    request.getfixturevalue("on_kernels")
    computed = logits(quantized_sequences(kind, device))
    assert divergence(exact, computed).max() < bound
    torch.testing.assert_close(computed, same, rtol=0, atol=ROUNDING)
    assert torch.equal(computed.argmax(-1), same.argmax(-1))


def quantized_sequences(kind: Kind, device: torch.device) -> PagedSequences:
    weights = quantized(random_weights(CPU), kind, device, lambda _done: None)
    return PagedSequences(QuantizedModel(SPEC, weights), num_pages=24, page_size=16, device=device)


@pytest.mark.parametrize("pages", [torch.int8, torch.uint8])
def test_cached_prefix_in_8_bits(on_kernels: None, device: torch.device, pages: torch.dtype) -> None:
    """A prompt of whole pages and some, read at once, and after its first pages were there already."""
    model = sequences(pages, device)
    cold = model.step({0: PROMPT})
    model.fork(0, 1, 32)
    warm = model.step({1: PROMPT[32:]})
    torch.testing.assert_close(warm, cold, rtol=0, atol=ROUNDING)
    assert torch.equal(warm.argmax(-1), cold.argmax(-1))
    assert torch.equal(model.step({0: [65]}).argmax(-1), model.step({1: [65]}).argmax(-1))
