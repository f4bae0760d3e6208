"""Triton's interpreter made fit for tests: right bfloat16, bounds of memory, refusals instead of guesses.

The interpreter keeps bfloat16 as 16-bit integers and computes on the bit patterns, without a word. Kernels
of this project only load, store, cast and multiply matrices of bfloat16, so these are made right here and
every other operation on it is refused. Every live lane of every load and store must lie in a tensor passed
to the launch. `tl.device_assert` and the check for 32-bit overflow, off in the interpreter, are on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import GridExecutor, InterpretedFunction, InterpreterBuilder, TensorHandle

Array = npt.NDArray[Any]


def install() -> None:
    """Change the interpreter of this process, for good."""
    _bfloat16()
    _bounds()
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, debug=True)
    InterpretedFunction.__call__ = _call


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a device function. The interpreter would patch the language again at each call, which is most of
    what a call costs; once a launch for each module the functions are in is enough."""
    module = self.fn.__module__
    if module not in InterpreterBuilder.patched:
        InterpreterBuilder.patched.add(module)
        interpreter._patch_lang(self.fn)
    return self.rewrite()(*args, **kwargs)


def _widened(handle: Any) -> Any:
    """A 16-bit float handle in float32, which NumPy also multiplies faster; any other as it is."""
    if handle.dtype.scalar == tl.float16:
        return TensorHandle(handle.data.astype(np.float32), tl.float32)
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    bits = np.asarray(handle.data).astype(np.uint32) << np.uint32(16)
    return TensorHandle(bits.view(np.float32), tl.float32)


def _narrowed(values: Array) -> Any:
    """float32 rounded to the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return TensorHandle(np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16), tl.bfloat16)


def _bfloat16() -> None:
    cast, dot = InterpreterBuilder.cast_impl, InterpreterBuilder.create_dot

    def cast_impl(self: Any, source: Any, to: Any) -> Any:
        if source.dtype.scalar == to.scalar:
            return source
        wide = _widened(source)
        if to.scalar == tl.bfloat16:
            return _narrowed(wide.data.astype(np.float32))
        return wide if to.scalar == wide.dtype.scalar else cast(self, wide, to)

    def create_fp_to_fp(self: Any, source: Any, to: Any, _rounding: Any) -> Any:
        if min(source.dtype.scalar.primitive_bitwidth, to.scalar.primitive_bitwidth) < 16:
            raise TypeError("the interpreter rounds 8-bit floats wrongly: use the integer codec")
        return cast_impl(self, source, to)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(self, _widened(a), _widened(b), *rest)

    InterpreterBuilder.cast_impl = cast_impl
    InterpreterBuilder.create_fp_to_fp = create_fp_to_fp
    InterpreterBuilder.create_dot = create_dot
    for name in ("binary_op", "unary_op", "create_fma", "create_fabs"):
        setattr(InterpreterBuilder, name, _refusing(getattr(InterpreterBuilder, name)))
    interpreter.ReduceOps.apply_impl = _refusing_reduction(interpreter.ReduceOps.apply_impl)


def _refusing(operation: Callable[..., Any]) -> Callable[..., Any]:
    def checked(self: Any, *args: Any) -> Any:
        if any(isinstance(arg, TensorHandle) and arg.dtype.scalar == tl.bfloat16 for arg in args):
            raise TypeError("bfloat16 arithmetic: cast to float32 first")
        return operation(self, *args)

    return checked


def _refusing_reduction(reduction: Callable[..., Any]) -> Callable[..., Any]:
    def checked(self: Any, inputs: Any) -> Any:
        if any(tensor.dtype == tl.bfloat16 for tensor in inputs):
            raise TypeError("bfloat16 reduction: cast to float32 first")
        return reduction(self, inputs)

    return checked


class _Memory:
    """The address ranges a launch may touch."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        ranges = {}
        for name, value in arguments.items():
            if isinstance(value, torch.Tensor) and value.untyped_storage().nbytes():
                low = value.untyped_storage().data_ptr()
                ranges[low] = (low + value.untyped_storage().nbytes(), name)
        self._lows = np.array(sorted(ranges), np.uint64)
        self._highs = np.array([ranges[low][0] for low in sorted(ranges)], np.uint64)
        self._names = [ranges[low][1] for low in sorted(ranges)]

    def check(self, pointers: Any, mask: Any, access: str, program: Any) -> None:
        """Raise IndexError if a live lane is outside."""
        addresses, live = np.broadcast_arrays(pointers.data, mask.data)
        addresses = addresses[live.astype(bool)].astype(np.uint64)
        if not addresses.size:
            return
        width = np.uint64(max(1, pointers.get_element_ty().primitive_bitwidth // 8))
        place = np.searchsorted(self._lows, addresses, side="right").astype(np.int64) - 1
        inside = (place >= 0) & (addresses + width <= self._highs[np.maximum(place, 0)])
        if not inside.all():
            worst = int(np.argmin(inside))
            nearest = max(0, int(place[worst]))
            offset = int(addresses[worst]) - int(self._lows[nearest])
            raise IndexError(
                f"{access} out of bounds in program {program}: {int((~inside).sum())} live lanes, the first"
                f" at byte {offset} of {self._names[nearest]!r}, which has"
                f" {int(self._highs[nearest] - self._lows[nearest])}"
            )


def _bounds() -> None:
    """Check every load and store against the tensors of the launch."""
    launch = GridExecutor.__call__
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def checked_launch(self: Any, *args: Any, **kwargs: Any) -> Any:
        InterpreterBuilder.patched = set()
        InterpreterBuilder.memory = _Memory({**dict(zip(self.arg_names, args, strict=False)), **kwargs})
        return launch(self, *args, **kwargs)

    def checked_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        self.memory.check(pointers, mask, "load", self.grid_idx)
        return load(self, pointers, mask, *rest)

    def checked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        self.memory.check(pointers, mask, "store", self.grid_idx)
        return store(self, pointers, value, mask, *rest)

    GridExecutor.__call__ = checked_launch
    InterpreterBuilder.create_masked_load = checked_load
    InterpreterBuilder.create_masked_store = checked_store
