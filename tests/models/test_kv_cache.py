"""The arrays pages lie in."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.models.kv_cache import KVCache
from engine.models.spec import ModelSpec

CPU = torch.device("cpu")
SPEC = ModelSpec(
    architecture="llama",
    name="cache",
    num_layers=3,
    hidden_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    intermediate_size=8,
    vocab_size=8,
    max_position=64,
    rms_eps=1e-6,
    rope_theta=1e4,
    rotary_dim=32,
    tie_embeddings=True,
    sliding_window=(None,) * 3,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.uint8])
def test_shapes_and_size(dtype: torch.dtype) -> None:
    kv = KVCache.allocate(SPEC, 10, 16, dtype, CPU)
    arrays = [pages for layer in kv.layers for pages in (layer.keys, layer.values)]
    assert [tuple(each.shape) for each in arrays] == [(10, 16, 2, 32)] * 6
    assert {each.dtype for each in arrays} == {dtype}
    assert len({each.data_ptr() for each in arrays}) == 6
    scales = [
        each for layer in kv.layers for each in (layer.key_scales, layer.value_scales) if each is not None
    ]
    assert [tuple(each.shape) for each in scales] == [(10, 16, 2)] * (6 if dtype.itemsize == 1 else 0)
    assert sum(each.nbytes for each in (*arrays, *scales)) == 10 * KVCache.bytes_per_page(SPEC, 16, dtype)


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_untouched_pages_take_no_memory() -> None:
    """In a process of its own: one that has freed much memory would give that out again."""
    code = "from tests.models.test_kv_cache import grow; grow()"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    allocated, touched = map(int, output.split())
    assert allocated < 16 << 20
    assert touched > 64 << 20


def grow() -> None:
    """Tell how much memory 512 MiB of pages take, and how much once a sixth of them is written."""
    before = resident()
    num_pages = (512 << 20) // KVCache.bytes_per_page(SPEC, 16, torch.float32)
    kv = KVCache.allocate(SPEC, num_pages, 16, torch.float32, CPU)
    allocated = resident() - before
    kv.layers[0].keys.zero_()
    sys.stdout.write(f"{allocated} {resident() - before}")
