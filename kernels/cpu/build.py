"""Builds the step runtime for an instruction set, once per version of its source.

The library is compiled on the machine that runs it, by whatever C++20 compiler it has, into the user's
cache directory. The name of the file is a digest of the sources and flags; flags name instruction sets
one by one (never "native"), so a cache shared by different machines stays right, and a library built
beforehand serves where there is no compiler.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Literal, get_args

from kernels.cpu.errors import NativeUnavailableError

Isa = Literal["avx512", "avx2", "portable"]
ISAS: Final[tuple[Isa, ...]] = get_args(Isa)
"""Best first."""

_SOURCES: Final = Path(__file__).with_name("src")
_COMMON: Final = (
    "-std=c++20", "-O3", "-fPIC", "-pthread", "-fvisibility=hidden",
    # A row's logits must not depend on its neighbours, so the compiler may not regroup or fuse sums.
    "-ffp-contract=off", "-fno-strict-aliasing",
)  # fmt: skip
_FLAGS: Final[dict[Isa, tuple[str, ...]]] = {
    "avx512": (
        "-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq",
        "-mavx512bf16", "-mavx512vnni",
    ),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "portable": (),
}  # fmt: skip
_NEEDS: Final[dict[Isa, frozenset[str]]] = {
    "avx512": frozenset(
        {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16", "avx512_vnni"}
    ),
    "avx2": frozenset({"avx2", "fma", "f16c"}),
    "portable": frozenset(),
}
_BUILD_TIMEOUT_S: Final = 300


def supported_isas() -> tuple[Isa, ...]:
    """Instruction sets this processor (and its operating system) can run, best first."""
    features = _cpu_features()
    return tuple(isa for isa in ISAS if _NEEDS[isa] <= features)


def library_path(isa: Isa) -> Path:
    """The shared library for an instruction set, built if it is not there yet.

    Raises:
        NativeUnavailableError: there is no compiler, it failed, or the cache cannot be written.
    """
    path = _place(isa)
    try:
        if not path.exists():
            _build(isa, path)
    except OSError as error:
        raise NativeUnavailableError(f"cannot build in {path.parent}: {error}") from error
    return path


def is_built(isa: Isa) -> bool:
    """Whether `library_path` has nothing to compile, which takes up to a minute.

    Raises:
        NativeUnavailableError: the user has no home.
    """
    return _place(isa).exists()


def cache_directory(kind: str) -> Path:
    """Where files of a kind are cached for this user.

    Raises:
        NativeUnavailableError: the user has no home.
    """
    root = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(root) if root else Path.home() / ".cache") / "radish" / kind
    except RuntimeError as error:
        raise NativeUnavailableError(f"{error} Set XDG_CACHE_HOME.") from error


def _place(isa: Isa) -> Path:
    return cache_directory("kernels") / f"step-{isa}-{_digest(isa)}.so"


def _cpu_features() -> frozenset[str]:
    if platform.machine() not in {"x86_64", "AMD64"}:
        return frozenset()
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def _digest(isa: Isa) -> str:
    digest = hashlib.sha256(repr((_COMMON, _FLAGS[isa], platform.machine())).encode())
    for path in sorted(_SOURCES.iterdir()):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:20]


def _compiler() -> str:
    candidates = (os.environ.get("CXX"), "g++", "clang++", "c++")
    for name in candidates:
        if name and (found := shutil.which(name)):
            return found
    raise NativeUnavailableError("there is no C++ compiler (g++ or clang++)")


def _run(compiler: str, *arguments: str | Path) -> None:
    try:
        done = subprocess.run(
            [compiler, *arguments], capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise NativeUnavailableError(f"{compiler} took more than {_BUILD_TIMEOUT_S} s") from error
    if done.returncode != 0:
        raise NativeUnavailableError(f"{compiler} failed: {done.stderr.strip()[:2000]}")


def _build(isa: Isa, path: Path) -> None:
    compiler = _compiler()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=path.parent) as work:
        command = (compiler, *_COMMON, *_FLAGS[isa])
        sources = sorted(_SOURCES.glob("*.cpp"))
        objects = [Path(work) / f"{source.stem}.o" for source in sources]
        with ThreadPoolExecutor(len(sources)) as pool:
            # Collected, so that the first failure is raised.
            list(
                pool.map(
                    lambda source, object_: _run(*command, "-c", source, "-o", object_), sources, objects
                )
            )
        built = Path(work) / path.name
        _run(*command, "-shared", *objects, "-o", built)
        # Another process may be doing the same; whoever is last replaces an equal file whole.
        built.replace(path)
