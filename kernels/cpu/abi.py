"""The structs of src/abi.h, field by field; their meaning is told there."""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_float, c_int32, c_int64, c_void_p
from enum import IntEnum
from typing import Final


class Format(IntEnum):
    """How weights, activations or pages are stored."""

    F32 = 0
    BF16 = 1
    Q8 = 2
    Q4 = 3


class Encoding(IntEnum):
    """What a weight is packed from: plain numbers, or blocks of a GGUF file."""

    F32 = 0
    BF16 = 1
    Q8_0 = 2
    Q4_0 = 3
    Q4_1 = 4


class Kind(IntEnum):
    """What an operation does."""

    EMBED = 0
    NORM = 1
    LINEAR = 2
    ROTATE = 3
    ATTEND = 4
    QUANTIZE = 5
    HIDDEN = 6
    KEEP = 7


class Epilogue(IntEnum):
    """What follows a linear in registers."""

    STORE = 0
    ADD = 1
    GATED = 2
    LOGITS = 3


class Rows(IntEnum):
    """Which rows an operation works on."""

    ALL_TOKENS = 0
    SAMPLING = 1


class Op(ctypes.Structure):
    """One operation of a program."""

    _fields_ = (
        ("kind", c_int32),
        ("rows", c_int32),
        ("gather", c_int32),
        ("src", c_int32),
        ("dst", c_int32),
        ("src_format", c_int32),
        ("dst_format", c_int32),
        ("epilogue", c_int32),
        ("n", c_int32),
        ("k", c_int32),
        ("group", c_int32),
        ("columns", c_int32),
        ("layer", c_int32),
        ("window", c_int32),
        ("eps", c_float),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
    )


class Wanted(IntEnum):
    """Of a row of logits: what a step is to give."""

    ONLY_LOGITS = 0
    ONLY_LIKELIEST = 1
    BOTH = 2


class Geometry(ctypes.Structure):
    """Sizes of heads and pages."""

    _fields_ = (
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("true_head_dim", c_int32),
        ("rotary_half", c_int32),
        ("page_size", c_int32),
        ("kv_format", c_int32),
        ("vocab", c_int32),
        ("query_scale", c_float),
        ("kv", c_void_p),
        ("num_pages", c_int64),
        ("backing", c_void_p),
    )


class Step(ctypes.Structure):
    """One step's arrays."""

    _fields_ = (
        ("tokens", c_int32),
        ("rows", c_int32),
        ("samples", c_int32),
        ("table_width", c_int32),
        ("embeds", c_int32),
        ("pending", c_int32),
        ("previous_count", c_int32),
        ("draw_count", c_int32),
        ("token_ids", c_void_p),
        ("pending_at", c_void_p),
        ("pending_from", c_void_p),
        ("previous", c_void_p),
        ("positions", c_void_p),
        ("kv_slots", c_void_p),
        ("logit_rows", c_void_p),
        ("embed_rows", c_void_p),
        ("query_starts", c_void_p),
        ("context_lens", c_void_p),
        ("page_table", c_void_p),
        ("rope", c_void_p),
        ("rope_rows", c_int64),
        ("logits", c_void_p),
        ("wanted", c_void_p),
        ("chosen", c_void_p),
        ("draws", c_void_p),
        ("hidden", c_void_p),
    )


class PackJob(ctypes.Structure):
    """Rows to be copied into a packed weight."""

    _fields_ = (
        ("source", c_void_p),
        ("source_format", c_int32),
        ("target_format", c_int32),
        ("rows", c_int64),
        ("columns", c_int64),
        ("n", c_int64),
        ("k", c_int64),
        ("group", c_int64),
        ("offset", c_int64),
        ("block", c_int64),
        ("stride", c_int64),
        ("target", c_void_p),
    )


class Draw(ctypes.Structure):
    """How one row of logits is to be chosen from (src/sample.h); all zero: the likeliest of row 0."""

    _fields_ = (
        ("row", c_int64),
        ("mask", c_void_p),
        ("seen", c_void_p),
        ("counts", c_void_p),
        ("biased", c_void_p),
        ("biases", c_void_p),
        ("impossible", c_void_p),
        ("num_seen", c_int64),
        ("num_biased", c_int64),
        ("num_impossible", c_int64),
        ("mask_words", c_int64),
        ("top_p", c_double),
        ("noise", c_double),
        ("temperature", c_float),
        ("min_p", c_float),
        ("repetition", c_float),
        ("presence", c_float),
        ("frequency", c_float),
        ("top_k", c_int32),
    )


class SampleJob(ctypes.Structure):
    """Rows of logits to be chosen from (src/sample.h)."""

    _fields_ = (
        ("logits", c_void_p),
        ("draws", c_void_p),
        ("chosen", c_void_p),
        ("count", c_int64),
        ("vocab", c_int64),
    )


class LogprobJob(ctypes.Structure):
    """Rows of logits of which log-probabilities are wanted."""

    _fields_ = (
        ("logits", c_void_p),
        ("chosen", c_void_p),
        ("of_chosen", c_void_p),
        ("top", c_void_p),
        ("of_top", c_void_p),
        ("rows", c_int64),
        ("vocab", c_int64),
        ("count", c_int64),
    )


POINTERS: Final = ("weight", "bias", "q_norm", "k_norm")
"""Fields of `Op` that are addresses."""
STRUCTS: Final = (Op, Geometry, Step, PackJob, Draw, SampleJob, LogprobJob)
NO_MEMORY: Final = 1
REFUSED: Final = {
    2: "a token id is outside the vocabulary",
    3: "a position, slot, page or row is out of range",
}
