"""Builds the step runtime for an instruction set, once per version of its source.

The library is compiled on the machine that runs it, by whatever C++20 compiler it has, into the user's
cache directory. The name of the file is a digest of the sources and flags; flags name instruction sets
one by one (never "native"), so a cache shared by different machines stays right, and a library built
beforehand serves where there is no compiler. A library may be built for fewer formats than there are,
which takes a fraction of the time.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from kernels.cpu.abi import Format
from kernels.cpu.errors import NativeUnavailableError

Isa = Literal["amx", "avx512", "avx2", "portable", "amx-emulated"]
ISAS: Final[tuple[Isa, ...]] = ("amx", "avx512", "avx2", "portable")
"""Best first. "amx-emulated" is amx with plain C++ for its tiles, for tests: nothing else asks for it."""


@dataclass(frozen=True, slots=True)
class Formats:
    """What a library computes with."""

    weights: frozenset[Format]
    pages: frozenset[Format]


ALL_FORMATS: Final = Formats(frozenset(Format), frozenset(Format) - {Format.Q4})

_SOURCES: Final = Path(__file__).with_name("src")
_COMMON: Final = (
    "-std=c++20", "-fPIC", "-pthread", "-fvisibility=hidden",
    # A row's logits must not depend on its neighbours, so the compiler may not regroup or fuse sums.
    "-ffp-contract=off", "-fno-strict-aliasing",
)  # fmt: skip
_OF_WEIGHTS: Final = "linear.cpp"
"""Compiled once for each format of weights, as is..."""
_OF_PAGES: Final = "attend.cpp"
"""...this for each format of pages."""
_OPTIMIZED: Final = {_OF_WEIGHTS: "-O3"}
"""-O2 makes prefill with 8-bit weights a quarter slower..."""
_QUICK: Final = "-O2"
"""...and everything else as fast as -O3, in two thirds of the time to compile."""
_LONGEST: Final = ("program.cpp", _OF_PAGES, _OF_WEIGHTS)
"""What takes the compiler longest. It begins with that, so that the cores finish together."""
_AVX512_FLAGS: Final = (
    "-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq",
    "-mavx512bf16", "-mavx512vnni",
)  # fmt: skip
_FLAGS: Final[dict[Isa, tuple[str, ...]]] = {
    "amx": (*_AVX512_FLAGS, "-mamx-tile", "-mamx-int8", "-mamx-bf16"),
    "avx512": _AVX512_FLAGS,
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "portable": (),
    "amx-emulated": (*_AVX512_FLAGS, "-DRADISH_AMX_EMULATED"),
}
_AVX2_NEEDS: Final = frozenset({"avx2", "fma", "f16c"})
_AVX512_NEEDS: Final = _AVX2_NEEDS | {
    "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16", "avx512_vnni"
}  # fmt: skip
_NEEDS: Final[dict[Isa, frozenset[str]]] = {
    "amx": _AVX512_NEEDS | {"amx_tile", "amx_int8", "amx_bf16"},
    "avx512": _AVX512_NEEDS,
    "avx2": _AVX2_NEEDS,
    "portable": frozenset(),
    "amx-emulated": _AVX512_NEEDS,
}
_BUILD_TIMEOUT_S: Final = 300


def supported_isas() -> tuple[Isa, ...]:
    """Instruction sets this processor (and its operating system) can run, best first."""
    return tuple(isa for isa in ISAS if is_supported(isa))


def is_supported(isa: Isa) -> bool:
    """Whether this processor (and its operating system) can run an instruction set."""
    return _NEEDS[isa] <= _cpu_features()


def library_path(isa: Isa, formats: Formats = ALL_FORMATS) -> Path:
    """The shared library for an instruction set, built if it is not there yet.

    One caller builds at a time, in all processes: those who want the same library wait for it.

    Raises:
        NativeUnavailableError: there is no compiler, it failed, or the cache cannot be written.
    """
    path = _place(isa, formats)
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with _locked(path.parent):
                if not path.exists():
                    _build(isa, formats, path)
    except OSError as error:
        raise NativeUnavailableError(f"cannot build in {path.parent}: {error}") from error
    return path


def is_built(isa: Isa, formats: Formats = ALL_FORMATS) -> bool:
    """Whether `library_path` has nothing to compile, which takes up to a minute.

    Raises:
        NativeUnavailableError: the user has no home.
    """
    return _place(isa, formats).exists()


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


def _place(isa: Isa, formats: Formats) -> Path:
    return cache_directory("kernels") / f"step-{isa}-{_digest(isa, formats)}.so"


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


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


def _digest(isa: Isa, formats: Formats) -> str:
    flags = (
        _COMMON,
        _OPTIMIZED,
        _QUICK,
        _FLAGS[isa],
        _bits(formats.weights),
        _bits(formats.pages),
        platform.machine(),
    )
    digest = hashlib.sha256(repr(flags).encode())
    for path in sorted(_SOURCES.iterdir()):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:20]


def _bits(formats: Iterable[Format]) -> int:
    return sum(1 << format_ for format_ in formats)


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


def _units(formats: Formats) -> list[tuple[Path, tuple[str, ...]]]:
    """Each source with what is defined when it is compiled, once for every format it is compiled for."""
    each = {_OF_WEIGHTS: formats.weights, _OF_PAGES: formats.pages}
    present = (f"-DRADISH_WEIGHTS={_bits(formats.weights)}", f"-DRADISH_PAGES={_bits(formats.pages)}")
    units: list[tuple[Path, tuple[str, ...]]] = []
    places = {name: place for place, name in enumerate(_LONGEST)}
    for source in sorted(_SOURCES.glob("*.cpp"), key=lambda path: places.get(path.name, len(places))):
        if source.name in each:
            one = [(f"-DRADISH_FORMAT=k{format_.name}",) for format_ in sorted(each[source.name])]
            units += [(source, defined) for defined in one]
        else:
            units.append((source, present))
    return [(source, (_OPTIMIZED.get(source.name, _QUICK), *defined)) for source, defined in units]


def _build(isa: Isa, formats: Formats, path: Path) -> None:
    compiler = _compiler()
    with tempfile.TemporaryDirectory(dir=path.parent) as work:
        command = (compiler, *_COMMON, *_FLAGS[isa])
        units = _units(formats)
        objects = [Path(work) / f"{index}.o" for index in range(len(units))]

        def compile_(source: Path, defined: tuple[str, ...], target: Path) -> None:
            _run(*command, *defined, "-c", source, "-o", target)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            # Collected, so that the first failure is raised.
            list(pool.map(compile_, *zip(*units, strict=True), objects))
        built = Path(work) / path.name
        _run(*command, "-shared", *objects, "-o", built)
        built.replace(path)  # a whole file, or none
