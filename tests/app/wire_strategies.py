"""Hypothesis strategies for the JSON of msgspec types: nearly right values, which is where faults are."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from msgspec import inspect

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
_SIMPLE: dict[type[inspect.Type], st.SearchStrategy[Any]] = {
    inspect.AnyType: JSON,
    inspect.NoneType: st.none(),
    inspect.BoolType: st.booleans(),
    inspect.StrType: st.sampled_from(["", "x", "fake", "a b", "<|im_end|>", "ß\u0000"])
    | st.text(max_size=12),
}


def bodies(struct: type) -> st.SearchStrategy[dict[str, Any]]:
    """Objects of a struct: some of its fields, and now and then a wrong value or an unknown field."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    right = _object(info, depth=0)
    names = st.sampled_from([field.encode_name for field in info.fields]) | st.text(max_size=4)
    return st.tuples(right, st.dictionaries(names, JSON, max_size=1)).map(lambda two: {**two[0], **two[1]})


def _object(info: inspect.StructType, depth: int) -> st.SearchStrategy[dict[str, Any]]:
    required = {f.encode_name: _value(f.type, depth + 1) for f in info.fields if f.required}
    optional = {f.encode_name: _value(f.type, depth + 1) for f in info.fields if not f.required}
    tag = {} if info.tag is None else {str(info.tag_field): st.just(info.tag)}
    names = st.lists(st.sampled_from(sorted(optional) or [""]), unique=True, max_size=4)
    return names.flatmap(
        lambda chosen: st.fixed_dictionaries(
            {**tag, **required, **{name: optional[name] for name in chosen if name in optional}}
        )
    )


def _value(kind: inspect.Type, depth: int) -> st.SearchStrategy[Any]:
    match kind:
        case inspect.Metadata():
            return _value(kind.type, depth)
        case inspect.UnionType():
            return st.one_of(*(_value(member, depth) for member in kind.types))
        case inspect.StructType():
            return _object(kind, depth) if depth < 6 else st.just({})
        case inspect.ListType():
            return st.lists(_value(kind.item_type, depth + 1), max_size=3)
        case inspect.DictType():
            keys = st.text(max_size=4) | st.integers(-1, 300).map(str)
            return st.dictionaries(keys, _value(kind.value_type, depth + 1), max_size=3)
        case _:
            return _leaf(kind)


def _leaf(kind: inspect.Type) -> st.SearchStrategy[Any]:
    match kind:
        case inspect.LiteralType():
            return st.sampled_from(kind.values)
        case inspect.IntType():
            low = kind.ge if kind.ge is not None else -3
            return st.integers(int(low) - 1, int(low) + 6) | st.sampled_from([0, 1, 2**63 - 1, 2**63])
        case inspect.FloatType():
            return st.floats(-3, 3) | st.sampled_from([0, 1e308, float("nan")])
        case _:
            return _SIMPLE[type(kind)]
