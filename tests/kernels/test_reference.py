"""The plain torch operations against NumPy in double precision, and against `transformers`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from kernels import reference
from kernels.dispatch import operations
from kernels.paged import PagedCache, PagedRows
from tests.kernels.largest_tensor import LargestTensor

Float64 = npt.NDArray[np.float64]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_rms_norm() -> None:
    x, weight = normal(5, 48) * 3, normal(48, seed=1)
    wide = x.numpy().astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 0.01) * weight.numpy()
    np.testing.assert_allclose(reference.rms_norm(x, weight, 0.01).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_rms_norm_reduces_in_float32() -> None:
    """Squares of large numbers, summed in bfloat16, would lose most of their digits."""
    x = (normal(3, 4096) * 1000).to(torch.bfloat16)
    result = reference.rms_norm(x, torch.ones(4096, dtype=torch.bfloat16), 1e-6)
    assert result.dtype == torch.bfloat16
    expected = x.float() / x.float().pow(2).mean(-1, keepdim=True).sqrt()
    torch.testing.assert_close(result.float(), expected, rtol=2**-8, atol=0)


def test_rotate_whole_heads() -> None:
    x = normal(7, 3, 16)
    angles = normal(7, 8, seed=1) * 10
    cos, sin = torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()
    expected, _ = apply_rotary_pos_emb(x[None], x[None], cos[None], sin[None], unsqueeze_dim=2)
    torch.testing.assert_close(reference.rotate(x, angles.cos(), angles.sin()), expected[0])


def test_rotate_leading_dimensions() -> None:
    """Pair (i, i + 3) of the first 6 dimensions is a complex number turned by its angle."""
    x = normal(7, 3, 16)
    angles = normal(7, 3, seed=1).numpy().astype(np.float64)
    pairs = x.numpy()[..., :3] + 1j * x.numpy()[..., 3:6]
    turned = pairs * np.exp(1j * angles)[:, None]
    result = reference.rotate(
        x, torch.from_numpy(np.cos(angles)).float(), torch.from_numpy(np.sin(angles)).float()
    )
    np.testing.assert_allclose(result[..., :3].numpy(), turned.real, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(result[..., 3:6].numpy(), turned.imag, rtol=1e-5, atol=1e-6)
    assert torch.equal(result[..., 6:], x[..., 6:])


def test_silu_mul() -> None:
    gate, up = normal(5, 9) * 4, normal(5, 9, seed=1)
    expected = gate.numpy() / (1 + np.exp(-gate.numpy().astype(np.float64))) * up.numpy()
    np.testing.assert_allclose(reference.silu_mul(gate, up).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_kv_write_touches_its_slots_only() -> None:
    pages = torch.full((4, 3, 2, 5), 9.0)
    new = normal(3, 2, 5)
    rows = PagedRows(
        query_starts=[0, 3],
        context_lens=[3],
        page_table=torch.zeros((1, 1), dtype=torch.int64),
        slots=torch.tensor([7, 0, 11]),
    )
    other = normal(3, 2, 5, seed=1)
    cache = PagedCache(pages, pages.clone())
    reference.kv_write(new, other, cache, rows)
    for stored, source in ((cache.keys, new), (cache.values, other)):
        expected = np.full((12, 2, 5), 9.0, np.float32)
        expected[[7, 0, 11]] = source.numpy()
        np.testing.assert_array_equal(stored.numpy(), expected.reshape(4, 3, 2, 5))


class PagedProblem:
    """Random ragged rows over a cache whose unused slots hold NaN, and the dense answer."""

    def __init__(
        self,
        rows: list[tuple[int, int]],
        *,
        page_size: int = 4,
        heads: tuple[int, int] = (4, 2),
        head_dim: int = 8,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """rows: (new tokens, context) of each; heads: query heads, KV heads."""
        num_heads, kv_heads = heads
        widths = [-(-context // page_size) for _, context in rows]
        order = np.random.default_rng(0).permutation(sum(widths))
        self.key_pages = torch.full((sum(widths), page_size, kv_heads, head_dim), torch.nan, dtype=dtype)
        self.value_pages = self.key_pages.clone()
        self.query = normal(sum(count for count, _ in rows), num_heads, head_dim).to(dtype)
        self.keys = [normal(context, kv_heads, head_dim, seed=10 + r) for r, (_, context) in enumerate(rows)]
        self.values = [
            normal(context, kv_heads, head_dim, seed=99 + r) for r, (_, context) in enumerate(rows)
        ]
        table = np.zeros((len(rows), max(widths)), np.int64)
        taken = 0
        for row, width in enumerate(widths):
            table[row, :width] = order[taken : taken + width]
            taken += width
            for at in range(rows[row][1]):
                page = int(table[row, at // page_size])
                self.key_pages[page, at % page_size] = self.keys[row][at]
                self.value_pages[page, at % page_size] = self.values[row][at]
        self.cache = PagedCache(self.key_pages, self.value_pages)
        self.rows = PagedRows(
            query_starts=np.cumsum([0, *(count for count, _ in rows)]).tolist(),
            context_lens=[context for _, context in rows],
            page_table=torch.from_numpy(table),
            slots=torch.zeros(len(self.query), dtype=torch.int64),
        )

    def solve(self, window: int | None = None) -> Tensor:
        return reference.paged_attention(self.query, self.cache, self.rows, window)

    def expected(self, window: int | None = None) -> Float64:
        answers = []
        for row, context in enumerate(self.rows.context_lens):
            start, stop = self.rows.query_starts[row : row + 2]
            query = self.query[start:stop].double().numpy()
            keys, values = (
                each[row].to(self.key_pages.dtype).double().numpy() for each in (self.keys, self.values)
            )
            group = query.shape[1] // keys.shape[1]
            keys, values = keys.repeat(group, axis=1), values.repeat(group, axis=1)
            scores = np.einsum("qhd,khd->hqk", query, keys) / np.sqrt(query.shape[-1])
            distance = np.arange(context - len(query), context)[:, None] - np.arange(context)
            seen = (distance >= 0) & (distance < (window or context))
            scores = np.where(seen, scores, -np.inf)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            answers.append(np.einsum("hqk,khd->qhd", weights, values))
        return np.concatenate(answers)


MIXED = [(1, 30), (17, 17), (1, 1), (5, 40), (1, 8), (12, 13), (40, 80)]


@pytest.mark.parametrize("window", [None, 1, 5, 16, 1000])
@pytest.mark.parametrize("page_size", [1, 3, 16])
@pytest.mark.parametrize("heads", [(4, 2), (3, 3), (6, 1)])
@pytest.mark.parametrize("scores", [1 << 20, 64])
def test_attention_of_mixed_rows(
    monkeypatch: pytest.MonkeyPatch, window: int | None, page_size: int, heads: tuple[int, int], scores: int
) -> None:
    """Decode rows and prefill chunks together, in one block of keys or in many."""
    monkeypatch.setattr(reference, "_MAX_SCORES", scores)
    problem = PagedProblem(MIXED, page_size=page_size, heads=heads)
    np.testing.assert_allclose(problem.solve(window).numpy(), problem.expected(window), atol=1e-5)


@given(
    rows=st.lists(
        st.tuples(st.integers(1, 20), st.integers(0, 60)).map(lambda pair: (pair[0], sum(pair))),
        min_size=1,
        max_size=5,
    ),
    page_size=st.integers(1, 9),
    window=st.none() | st.integers(1, 30),
)
@settings(max_examples=60, deadline=None)
def test_attention_of_any_rows(rows: list[tuple[int, int]], page_size: int, window: int | None) -> None:
    problem = PagedProblem(rows, page_size=page_size)
    np.testing.assert_allclose(problem.solve(window).numpy(), problem.expected(window), atol=1e-5)


def test_attention_survives_scores_that_overflow_exp() -> None:
    problem = PagedProblem([(3, 50)])
    problem.query *= 1000
    np.testing.assert_allclose(problem.solve().numpy(), problem.expected(), atol=1e-4)


def test_attention_does_not_read_pages_before_the_window() -> None:
    problem = PagedProblem([(3, 50)], page_size=4)
    expected = problem.expected(window=7)
    before = problem.rows.page_table[0, : (50 - 3 + 1 - 7) // 4]
    assert len(before) == 10
    problem.key_pages[before] = problem.value_pages[before] = torch.nan
    np.testing.assert_allclose(problem.solve(window=7).numpy(), expected, atol=1e-5)


def test_attention_in_bfloat16() -> None:
    problem = PagedProblem(MIXED, dtype=torch.bfloat16)
    result = problem.solve()
    assert result.dtype == torch.bfloat16
    np.testing.assert_allclose(result.float().numpy(), problem.expected(), atol=2e-2)


def test_row_is_bitwise_the_same_whatever_shares_its_batch() -> None:
    problem = PagedProblem(MIXED)
    together = problem.solve()
    rows = problem.rows
    for row in range(len(MIXED)):
        start, stop = rows.query_starts[row : row + 2]
        alone = PagedRows(
            query_starts=[0, stop - start],
            context_lens=rows.context_lens[row : row + 1],
            page_table=rows.page_table[row : row + 1],
            slots=rows.slots[start:stop],
        )
        result = reference.paged_attention(problem.query[start:stop], problem.cache, alone, None)
        assert torch.equal(result, together[start:stop])


def test_attention_never_holds_all_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk of 64 over a context of 4000 has 4 * 64 * 4000 scores; a block of 2^14 at most is held."""
    monkeypatch.setattr(reference, "_MAX_SCORES", 1 << 14)
    problem = PagedProblem([(64, 4000)])
    with LargestTensor() as largest:
        result = problem.solve()
    assert largest.numel == 1 << 14
    np.testing.assert_allclose(result.numpy(), problem.expected(), atol=1e-5)


def test_dispatch_knows_its_devices() -> None:
    assert operations(torch.device("cpu")).paged_attention is reference.paged_attention
    with pytest.raises(ValueError, match="no kernels for device 'meta'"):
        operations(torch.device("meta"))
