"""Native products with packed weights, on every instruction set, against numpy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from kernels.cpu.abi import Encoding, Epilogue, Format, Geometry, Kind, Op, Rows, Step
from kernels.cpu.blocks import Blocks, Matrix
from kernels.cpu.build import Isa
from kernels.cpu.runtime import BLOCK, GROUP, WIDE, Part, Runtime, padded
from tests.kernels.isas import EMULATED, TESTED

Floats = npt.NDArray[np.floating[Any]]

SHAPES = [(64, 64), (333, 160), (96, 1536), (70, 32)]
"""(outputs, inputs): tails of panels and of padding."""
ROWS = [1, 2, 5, 6, 7, 12, 13, 17, 33, 40]
"""Either side of every height at which tiles are cut."""
BLOCKS = ["Q8_0", "Q4_0", "Q4_1"]


class Target(NamedTuple):
    """How a weight is packed."""

    format: Format
    group: int = BLOCK


TARGETS = {
    "Q8_0": Target(Format.Q8),
    "Q4_0": Target(Format.Q4),
    "Q4_1": Target(Format.Q4),
    "wide": Target(Format.Q8, WIDE),
    "bfloat16": Target(Format.BF16),
}
CODES = [*BLOCKS, "wide"]
"""Whose activations are codes as well."""


@pytest.fixture(params=TESTED)
def runtime(request: pytest.FixtureRequest) -> Runtime:
    isa: Isa = request.param
    return Runtime(2, isa)


def numbers(rows: int, columns: int, seed: int) -> Floats:
    """Like activations: mostly small, some large."""
    rng = np.random.default_rng(seed)
    spread = rng.choice([0.1, 1, 8], (1, columns))
    result: Floats = (rng.standard_normal((rows, columns)) * spread).astype(np.float32)
    return result


def blocks(weight: Floats, kind: str) -> tuple[Blocks, Floats]:
    """Encoded by the `gguf` package, and what that means."""
    encoding = GGMLQuantizationType[kind]
    rows = quantize(weight, encoding)
    return Blocks(rows, Encoding[kind], weight.shape[1]), dequantize(rows, encoding)


def product(
    runtime: Runtime, x: Floats, weight: Matrix, target: Target, samples: int | None = None
) -> Floats:
    """[rows, outputs] of a program that takes `x` for embeddings and `weight` for the head; NaN after
    `samples` rows."""
    rows, (outputs, inputs) = len(x), weight.shape
    width = padded(inputs, GROUP)
    table = runtime.pack([Part(weight=torch.from_numpy(x))], rows=rows, columns=inputs, target=Format.F32)
    head = runtime.pack(
        [Part(weight=weight)], rows=outputs, columns=inputs, target=target.format, group=target.group
    )
    ones = runtime.store(torch.ones(width))
    ops = [Op(kind=Kind.EMBED, dst=0, src_format=Format.F32, k=table.k, weight=table.memory.address)]
    if target.format in {Format.Q8, Format.Q4}:
        ops.append(Op(kind=Kind.QUANTIZE, src=0, dst=1, n=width, group=head.group))
    elif target.format == Format.BF16:
        # The norm of a row that is one of a great many small numbers divides by 1.
        ops.append(
            Op(
                kind=Kind.NORM, src=0, dst=1, dst_format=Format.BF16, n=width, columns=2**31 - 1, eps=1,
                weight=ones.address,
            )
        )  # fmt: skip
    ops.append(
        Op(
            kind=Kind.LINEAR,
            rows=Rows.SAMPLING,
            src=len(ops) - 1,
            src_format=head.format,
            epilogue=Epilogue.LOGITS,
            n=head.n,
            k=head.k,
            group=head.group,
            columns=outputs,
            weight=head.memory.address,
        )
    )
    geometry = Geometry(
        heads=1, kv_heads=1, head_dim=16, true_head_dim=16, rotary_half=8, page_size=64, vocab=rows,
        kv_format=Format.BF16, kv=ones.address, num_pages=1,
    )  # fmt: skip
    program = runtime.program(geometry, ops, [4 * width, 2 * width])
    places = np.arange(rows)
    logits: Floats = np.full((rows, outputs), np.nan, np.float32)
    arrays: dict[str, npt.NDArray[Any]] = {
        "token_ids": places,
        "positions": places,
        "kv_slots": places,
        "logit_rows": places,
        "query_starts": np.array([0, rows], np.int32),
        "context_lens": np.array([rows], np.int32),
        "page_table": np.zeros((1, 1), np.int32),
        "rope": np.zeros((64, 2, 8), np.float32),
        "logits": logits,
    }
    step = Step(
        tokens=rows, rows=1, samples=rows if samples is None else samples, table_width=1, rope_rows=64,
        **{name: array.ctypes.data for name, array in arrays.items()},
    )  # fmt: skip
    program.run(step)
    return logits


def rounded(x: Floats, scale_type: type[np.floating[Any]] = np.float32, group: int = BLOCK) -> Floats:
    """`x` in int8 with a scale for each `group` neighbours, exactly what the codes mean."""
    whole = np.pad(x, ((0, 0), (0, -x.shape[1] % group))).reshape(len(x), -1, group)
    scale = (np.abs(whole).max(-1, keepdims=True) / np.float32(127)).astype(scale_type).astype(np.float32)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    codes = np.rint(whole * inverse).clip(-127, 127)
    meaning: Floats = (codes.astype(np.float64) * scale).reshape(len(x), -1)[:, : x.shape[1]]
    return meaning


def in_bfloat16(x: Floats) -> Floats:
    """Rounded, and small enough for `product`."""
    result: Floats = torch.from_numpy(x / 64).bfloat16().float().numpy()
    return result


def check(result: Floats, x: Floats, weight: Floats) -> None:
    """Within float32's rounding of the exact sum."""
    wide, columns = x.astype(np.float64), weight.astype(np.float64).T
    expected, size = wide @ columns, np.abs(wide) @ np.abs(columns)
    assert (np.abs(result - expected) <= 1e-5 * size).all()


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_as_they_are(runtime: Runtime, kind: str, outputs: int, inputs: int) -> None:
    """Exact for the file's weights; the only rounding is that of activations to int8."""
    weight, meaning = blocks(numbers(outputs, inputs, seed=1), kind)
    x = numbers(max(ROWS), inputs, seed=2)
    check(product(runtime, x, weight, TARGETS[kind]), rounded(x), meaning)


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_bfloat16(runtime: Runtime, outputs: int, inputs: int) -> None:
    """Of numbers that are rounded already; sums are float32."""
    x, weight = (in_bfloat16(numbers(rows, inputs, seed=rows)) for rows in (max(ROWS), outputs))
    check(product(runtime, x, torch.from_numpy(weight), TARGETS["bfloat16"]), x, weight)


@pytest.mark.parametrize("source", ["float32", "bfloat16", *BLOCKS])
def test_quantised_to_8_bits(runtime: Runtime, source: str) -> None:
    """From any source, with float16 scales; what is Q8_0 already is not quantised again."""
    weight = numbers(100, 160, seed=3)
    matrix: Matrix
    if source in BLOCKS:
        matrix, weight = blocks(weight, source)
    else:
        matrix = torch.from_numpy(weight).to(getattr(torch, source))
        weight = matrix.float().numpy()
    x = numbers(9, 160, seed=4)
    meaning = weight if source == "Q8_0" else rounded(weight, np.float16)
    check(product(runtime, x, matrix, TARGETS["Q8_0"]), rounded(x), meaning)


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("source", ["float32", "Q8_0"])
def test_quantised_to_8_bits_of_which_64_share_a_scale(
    runtime: Runtime, source: str, outputs: int, inputs: int
) -> None:
    """Blocks of 32 as well: they are quantised again."""
    weight = numbers(outputs, inputs, seed=12)
    matrix: Matrix = torch.from_numpy(weight)
    if source in BLOCKS:
        matrix, weight = blocks(weight, source)
    x = numbers(max(ROWS), inputs, seed=13)
    meaning = rounded(weight, np.float16, WIDE)
    check(product(runtime, x, matrix, TARGETS["wide"]), rounded(x, group=WIDE), meaning)


@pytest.mark.parametrize("source", ["float32", "bfloat16", *BLOCKS])
def test_plain(runtime: Runtime, source: str) -> None:
    """Blocks decode to the numbers they mean."""
    weight = numbers(70, 96, seed=5)
    matrix: Matrix
    if source in BLOCKS:
        matrix, weight = blocks(weight, source)
    else:
        matrix = torch.from_numpy(weight).to(getattr(torch, source))
        weight = matrix.float().numpy()
    x = numbers(14, 96, seed=6)
    check(product(runtime, x, matrix, Target(Format.F32)), x, weight)


def weight_of(kind: str, outputs: int, inputs: int) -> Matrix:
    weight = numbers(outputs, inputs, seed=7)
    return blocks(weight, kind)[0] if kind in BLOCKS else torch.from_numpy(weight)


@pytest.mark.parametrize("kind", TARGETS)
def test_row_does_not_depend_on_the_others(runtime: Runtime, kind: str) -> None:
    weight = weight_of(kind, 160, 320)
    x = in_bfloat16(numbers(max(ROWS), 320, seed=8))
    together = product(runtime, x, weight, TARGETS[kind])
    for rows in ROWS:
        assert np.array_equal(product(runtime, x[:rows], weight, TARGETS[kind]), together[:rows])
        assert np.array_equal(product(runtime, x[-rows:], weight, TARGETS[kind]), together[-rows:])


@pytest.mark.parametrize("kind", TARGETS)
def test_a_step_may_sample_nothing(runtime: Runtime, kind: str) -> None:
    x = in_bfloat16(numbers(3, 64, seed=11))
    assert np.isnan(product(runtime, x, weight_of(kind, 64, 64), TARGETS[kind], samples=0)).all()


@pytest.mark.parametrize("emulated", EMULATED)
@pytest.mark.parametrize("kind", CODES)
def test_tiles_of_codes_have_the_bits_of_vectors(kind: str, emulated: Isa) -> None:
    weight = weight_of(kind, 333, 160)
    tiles, vectors = Runtime(2, emulated), Runtime(1, "avx512")
    for rows in ROWS:
        x = numbers(rows, 160, seed=rows)
        expected = product(vectors, x, weight, TARGETS[kind])
        assert np.array_equal(product(tiles, x, weight, TARGETS[kind]), expected)


@pytest.mark.parametrize("kind", BLOCKS)
def test_extreme_blocks(runtime: Runtime, kind: str) -> None:
    """Codes at both ends, scales of zero and below float16's normal range."""
    rng = np.random.default_rng(9)
    size = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20}[kind]
    raw = rng.integers(0, 256, (64, 4, size), dtype=np.uint8)
    raw[0, :, -16:] = 0
    raw[1, :, -16:] = 255
    raw[2, :, -16:] = 0x80
    scales = rng.choice(np.array([0, 1e-7, 6e-5, -0.01, 0.5], np.float16), (64, 4))
    raw[..., :2] = scales.view(np.uint8).reshape(64, 4, 2)
    if kind == "Q4_1":
        raw[..., 2:4] = (
            rng.choice(np.array([0, -3e-6, 2], np.float16), (64, 4)).view(np.uint8).reshape(64, 4, 2)
        )
    rows = raw.reshape(64, -1)
    meaning = dequantize(rows, GGMLQuantizationType[kind])
    x = numbers(3, 128, seed=10)
    check(product(runtime, x, Blocks(rows, Encoding[kind], 128), TARGETS[kind]), rounded(x), meaning)
