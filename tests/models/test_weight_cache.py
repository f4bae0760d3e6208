"""Laid-down models kept from one start to the next."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.models import native_load, weight_cache
from engine.models.native import NativeDecoder
from engine.models.native_load import NativeModel, load_native
from engine.models.native_plan import Quantize
from kernels.cpu.build import cache_directory
from kernels.cpu.errors import NativeUnavailableError
from kernels.cpu.image import PARTIAL
from kernels.cpu.runtime import Runtime
from tests.models import tiny
from tests.models.paged_sequences import PagedSequences

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of weights; libraries are taken from where they are."""
    monkeypatch.setattr(weight_cache, "cache_directory", lambda kind: tmp_path / "cache" / kind)
    return tmp_path / "cache" / "weights"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny.save(tiny.make("qwen3-biases-tied"), tmp_path / "model")


def load(path: Path, *, quantize: Quantize | None = None, dtype: torch.dtype = torch.float32) -> NativeModel:
    """Load, and wait until the cache is written."""
    loaded = load_native(
        path, dtype=dtype, quantize=quantize, runtime=Runtime(1), progress=lambda _label, _fraction: None
    )
    for thread in threading.enumerate():
        if thread.name == "radish-weights":
            thread.join()
    return loaded


def load_from_cache(
    path: Path, monkeypatch: pytest.MonkeyPatch, quantize: Quantize | None = None
) -> NativeModel:
    """Load without a way to read the model's own files."""
    with monkeypatch.context() as patch:
        patch.delattr(native_load, "load_matrices")
        return load(path, quantize=quantize)


def logits(path: Path, model: NativeModel) -> Tensor:
    """float32 [tokens, vocab]"""
    sequences = PagedSequences(tiny.load(path), num_pages=1, page_size=8)
    sequences.decoder = NativeDecoder(model, num_pages=1, page_size=8)
    return sequences.step({0: TOKENS}, logits_of="every")


@pytest.mark.parametrize("quantize", [None, "int8"])
def test_second_start_computes_the_same_without_the_model(
    quantize: Quantize | None, directory: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load(model, quantize=quantize)
    second = load_from_cache(model, monkeypatch, quantize=quantize)
    assert second.spec == first.spec
    assert second.kv_format == first.kv_format
    assert torch.equal(logits(model, second), logits(model, first))


def test_formats_lie_side_by_side(directory: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(model)
    load(model, quantize="int8")
    load(model, dtype=torch.bfloat16)
    assert len(list(directory.iterdir())) == 3
    load_from_cache(model, monkeypatch)
    load_from_cache(model, monkeypatch, quantize="int8")


def test_changed_model_is_read_again(directory: Path, model: Path) -> None:
    load(model)
    (before,) = directory.iterdir()
    old = before.read_bytes()
    changed = tiny.make("qwen3-biases-tied")
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.mul_(0.5)
    tiny.save(changed, model)
    load(model)
    (after,) = {*directory.iterdir()} - {before}
    assert after.read_bytes() != old
    expected = tiny.oracle_logits(changed, TOKENS)
    torch.testing.assert_close(logits(model, load(model)), expected, atol=1e-4, rtol=0)


def test_two_versions_of_the_code_lie_side_by_side(
    directory: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a third comes, the one that was not used last goes; another form of the model stays."""

    def written_by(version: str) -> Path:
        known = set(directory.iterdir())
        monkeypatch.setattr(weight_cache, "_code_digest", lambda: version)
        load(model)
        (file,) = set(directory.iterdir()) - known
        return file

    load(model, quantize="int8")
    (other_form,) = directory.iterdir()
    first, second = written_by("1"), written_by("2")
    for file in (first, second):
        os.utime(file, (1000, 1000))
    monkeypatch.setattr(weight_cache, "_code_digest", lambda: "1")
    load_from_cache(model, monkeypatch)
    third = written_by("3")
    assert {*directory.iterdir()} == {other_form, first, third}


def _cut(raw: bytes) -> bytes:
    return raw[:-1]


def _lengthened(raw: bytes) -> bytes:
    return raw + b"\0"


def _header_only(raw: bytes) -> bytes:
    return raw[:100]


def _foreign(raw: bytes) -> bytes:
    return b"GGUF" + raw[4:]


def _empty(_raw: bytes) -> bytes:
    return b""


def _flipped(raw: bytes) -> bytes:
    return raw[:60] + bytes([raw[60] ^ 1]) + raw[61:]


def _endless_header(raw: bytes) -> bytes:
    return raw[:8] + b"\xff" * 8 + raw[16:]


@pytest.mark.parametrize(
    "spoil", [_cut, _lengthened, _header_only, _foreign, _empty, _flipped, _endless_header]
)
def test_damaged_file_is_noticed_and_replaced(
    spoil: object, directory: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(spoil)
    expected = logits(model, load(model))
    (file,) = directory.iterdir()
    whole = file.read_bytes()
    file.write_bytes(spoil(whole))
    assert torch.equal(logits(model, load(model)), expected)
    assert file.read_bytes() == whole
    assert torch.equal(logits(model, load_from_cache(model, monkeypatch)), expected)


def test_process_killed_while_writing_leaves_no_file(directory: Path, model: Path) -> None:
    """It ends between the last byte and the rename; what it left is removed by a later start."""
    script = f"""
import os, pathlib, torch
from engine.models import weight_cache
from engine.models.native_load import load_native
from kernels.cpu.runtime import Runtime
weight_cache.cache_directory = lambda kind: pathlib.Path({str(directory.parent)!r}) / kind
weight_cache.WeightCache.write_in_background = weight_cache.WeightCache.write
os.fsync = lambda _file: os._exit(9)
load_native(pathlib.Path({str(model)!r}), dtype=torch.float32, quantize=None, runtime=Runtime(1),
            progress=lambda *_: None)
"""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", script], check=False, env=environment)
    assert done.returncode == 9
    (left,) = directory.iterdir()
    assert left.name.endswith(PARTIAL)
    os.utime(left, (0, 0))
    load(model)
    (file,) = directory.iterdir()
    assert not file.name.endswith(PARTIAL)


def test_full_disk_is_a_warning(
    directory: Path, model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_file: int, _start: int, _size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with caplog.at_level(logging.WARNING):
        computed = logits(model, load(model))
    torch.testing.assert_close(
        computed, tiny.oracle_logits(tiny.make("qwen3-biases-tied"), TOKENS), atol=1e-4, rtol=0
    )
    assert "weights are not cached: [Errno 28] No space left on device" in caplog.text
    assert list(directory.iterdir()) == []


def test_no_place_for_a_cache_is_a_warning(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def homeless(_kind: str) -> Path:
        raise NativeUnavailableError("no home")

    monkeypatch.setattr(weight_cache, "cache_directory", homeless)
    with caplog.at_level(logging.WARNING):
        load(model)
    assert "weights are not cached: no home" in caplog.text


def test_only_the_files_used_last_are_kept(directory: Path, model: Path) -> None:
    directory.mkdir(parents=True)
    for age in range(12):
        file = directory / f"{age:02}.weights"
        file.touch()
        os.utime(file, (1000 - age, 1000 - age))
    load(model)
    names = {file.name for file in directory.iterdir()}
    assert len(names) == 8
    assert {f"{age:02}.weights" for age in range(7)} < names


def test_cache_is_in_the_users_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory("weights") == tmp_path / "radish" / "weights"
