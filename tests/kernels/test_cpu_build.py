"""Building, caching and loading the native runtime."""

from __future__ import annotations

import errno
import os
import re
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from kernels.cpu import build
from kernels.cpu.abi import Format
from kernels.cpu.build import Formats, Isa, library_path, supported_isas
from kernels.cpu.errors import NativeUnavailableError
from kernels.cpu.runtime import Runtime


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory, and no compiler but those a test provides."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CXX", raising=False)
    (tmp_path / "bin").mkdir()
    return tmp_path / "cache" / "radish" / "kernels"


def compiler(cache: Path, name: str, script: str) -> Path:
    """A program that stands in for a compiler; $out is the file it should write."""
    path = cache.parents[2] / "bin" / name
    path.write_text(f'#!/bin/sh\nfor out in "$@"; do :; done\n{script}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_without_a_compiler_it_says_so(cache: Path) -> None:
    with pytest.raises(NativeUnavailableError, match="no C\\+\\+ compiler"):
        library_path("portable")


def test_what_the_compiler_said_is_told(cache: Path) -> None:
    compiler(cache, "g++", "echo 'error: no such thing' >&2; exit 1")
    with pytest.raises(NativeUnavailableError, match="error: no such thing"):
        library_path("portable")
    assert list(cache.iterdir()) == []


def test_built_once_and_then_without_a_compiler(cache: Path) -> None:
    program = compiler(cache, "clang++", 'echo built > "$out"')
    path = library_path("portable")
    assert path.read_text() == "built\n"
    program.unlink()
    assert library_path("portable") == path
    assert list(cache.iterdir()) == [path]


def test_the_users_compiler_comes_first(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(cache, "g++", 'echo theirs > "$out"')
    monkeypatch.setenv("CXX", str(compiler(cache, "mine", 'echo mine > "$out"')))
    assert library_path("portable").read_text() == "mine\n"


def test_a_changed_source_is_another_library(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler(cache, "g++", 'echo built > "$out"')
    before = library_path("portable")
    changed = tmp_path / "src"
    changed.mkdir()
    (changed / "program.cpp").write_text("int changed;")
    monkeypatch.setattr(build, "_SOURCES", changed)
    assert library_path("portable") != before


def test_a_cache_that_cannot_be_written_is_told(cache: Path) -> None:
    compiler(cache, "g++", 'echo built > "$out"')
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where the directory should be")
    with pytest.raises(NativeUnavailableError, match="cannot build in"):
        library_path("portable")


@pytest.mark.parametrize("where", ["mkdtemp", "replace"])
def test_a_full_disk_is_told_and_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Before the compiler starts, and when its library is put in its place."""

    def full(*_args: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    compiler(cache, "g++", 'echo built > "$out"')
    with monkeypatch.context() as patch:
        patch.setattr(*{"mkdtemp": (tempfile, "mkdtemp"), "replace": (Path, "replace")}[where], full)
        with pytest.raises(NativeUnavailableError, match=r"cannot build in .*No space left on device"):
            library_path("portable")
    assert list(cache.iterdir()) == []
    assert library_path("portable").read_text() == "built\n"


def test_a_compiler_that_finds_the_disk_full_leaves_no_half_library(cache: Path) -> None:
    compiler(cache, "g++", 'echo half > "$out"; echo "No space left on device" >&2; exit 1')
    with pytest.raises(NativeUnavailableError, match="No space left on device"):
        library_path("portable")
    assert list(cache.iterdir()) == []


def test_a_damaged_library_is_told(cache: Path) -> None:
    compiler(cache, "g++", 'echo damaged > "$out"')
    with pytest.raises(NativeUnavailableError, match="cannot load"):
        Runtime(1, "portable")


def test_builds_at_the_same_time_leave_one_library(cache: Path) -> None:
    compiler(cache, "g++", 'echo built > "$out"')
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(library_path("portable"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(paths)) == 1
    assert list(cache.iterdir()) == [paths[0]]


def test_only_the_formats_that_are_served_are_compiled(cache: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    compiler(cache, "g++", f'echo "$@" >> {log}; echo built > "$out"')
    served = Formats(weights=frozenset({Format.Q8, Format.BF16}), pages=frozenset({Format.F32}))
    path = library_path("portable", served)
    assert path != build._place("portable", build.ALL_FORMATS)
    defined = re.findall(r"-DRADISH_FORMAT=k(\w+) -c \S+/(\w+)\.cpp", log.read_text())
    assert sorted(defined) == [("BF16", "linear"), ("F32", "attend"), ("Q8", "linear")]
    assert "-DRADISH_WEIGHTS=6 -DRADISH_PAGES=1 -c" in log.read_text()


@pytest.mark.parametrize("isa", build.ISAS)
def test_only_what_the_processor_runs(isa: Isa, monkeypatch: pytest.MonkeyPatch) -> None:
    assert supported_isas()[-1] == "portable"
    monkeypatch.setattr(build, "_cpu_features", lambda: frozenset({"avx2", "fma", "f16c"}))
    assert supported_isas() == ("avx2", "portable")
    if isa == "avx512":
        with pytest.raises(NativeUnavailableError, match="does not run avx512"):
            Runtime(1, isa)


def run_apart(script: str) -> None:
    """Run a script in a process that nothing else has touched."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)


def test_no_second_openmp_runtime() -> None:
    """torch brings libgomp; the step runtime has its own threads and must not bring another."""
    run_apart("""
import torch
from kernels.cpu.runtime import Runtime
Runtime(2)
files = {line.split()[-1] for line in open("/proc/self/maps")}
assert any("/step-" in name for name in files)
assert sum("libgomp" in name or "omp.so" in name or "omp5.so" in name for name in files) <= 1, files
""")


def test_idle_threads_sleep() -> None:
    """Workers are parked in the kernel between steps; one that spun or yielded would stay runnable."""
    run_apart("""
import os, time
from kernels.cpu.runtime import Runtime
known = set(os.listdir("/proc/self/task"))
runtime = Runtime(3)
workers = set(os.listdir("/proc/self/task")) - known
assert len(workers) == 2
def state(task):
    return open(f"/proc/self/task/{task}/stat").read().rpartition(")")[2].split()[0]
deadline = time.monotonic() + 30
while any(state(task) != "S" for task in workers):
    assert time.monotonic() < deadline
""")
