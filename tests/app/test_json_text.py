"""Structure and error places of JSON documents, against the standard library's decoder."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.json_text import MAX_DEPTH, check_structure, error_path

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def reference_depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(reference_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(reference_depth, value), default=0)
    return 0


@given(JSON_VALUES, st.sampled_from([None, 2]), st.booleans())
def test_ordinary_documents_pass(value: Any, indent: int | None, ascii_only: bool) -> None:
    assert reference_depth(value) <= MAX_DEPTH
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert check_structure(text.encode("utf-8", "surrogatepass")) is None


@pytest.mark.parametrize(("depth", "passes"), [(MAX_DEPTH, True), (MAX_DEPTH + 1, False), (1_000_000, False)])
@pytest.mark.parametrize("brackets", ["[]", '{"a":'])
def test_depth_is_bounded(brackets: str, depth: int, passes: bool) -> None:
    opening, closing = ("[", "]") if brackets == "[]" else ('{"a":', "}")
    inner = "" if brackets == "[]" else "1"
    body = (opening * depth + inner + closing * depth).encode()
    assert (check_structure(body) is None) is passes


@pytest.mark.parametrize(
    ("body", "key"),
    [
        ('{"a":1,"a":2}', "a"),
        ('{"x":{"a":1, "b":[{"a":1}], "a" : 3}}', "a"),
        ('[{"a":1},{"a":1},{"b\\"":1,"b\\"":2}]', 'b\\"'),
        ('{"model":1,"m\\u006fdel":2}', "model"),
        ('{"\\u00e9/":1,"é\\/":2}', "é/"),
    ],
)
def test_a_key_given_twice_is_found(body: str, key: str) -> None:
    fault = check_structure(body.encode())
    assert fault is not None
    assert f'"{key}"' in fault


@pytest.mark.parametrize(
    "body", ['{"a":"a","b":"a"}', '{"a":{"a":{"a":1}}}', '["a","a"]', '{"a":"\\"a\\":"}']
)
def test_equal_values_are_no_equal_keys(body: str) -> None:
    assert check_structure(body.encode()) is None


@pytest.mark.parametrize("body", [b'"' + b'\\"' * 500_000, b'{"a":"' + b"x\\", b"}" * 1000, b'"\\'])
def test_broken_documents_get_no_verdict(body: bytes) -> None:
    assert check_structure(body) is None


class Document(msgspec.Struct):
    messages: list[dict[str, Any]] | None = None
    n: int = 0
    model: str = msgspec.field(default="")


class Strict(msgspec.Struct):
    inner: Document
    model: str


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b'{"n":"x"}', "n"),
        (b'{"n":NaN}', "n"),
        (b'{"n":-Infinity}', "n"),
        (b'{"n":1e999}', "n"),
        (b'{"messages":[{"a":1},{"b":[1,"\\udfff"]}]}', "messages[1].b[1]"),
        (b'{"model":"\xff"}', "model"),
        (b'{"messages":[{"content":"ok \\ud83d\\ude00"},{"content":"\\ud800 x"}]}', "messages[1].content"),
        (b'{"messages":[{},7]}', "messages[1]"),
        (b'{"messages":[{"a":[[],[NaN]]}]}', "messages[0].a[1][0]"),
        (b"[1]", None),
        (b'{"n":1', None),
        (b'{"n":1}}', None),
    ],
)
def test_the_field_at_fault_is_named(body: bytes, path: str | None) -> None:
    with pytest.raises(msgspec.DecodeError) as caught:
        msgspec.json.decode(body, type=Document)
    assert error_path(body, caught.value) == path


def test_a_missing_field_is_named() -> None:
    body = b'{"model":"m","inner":{}}'
    assert msgspec.json.decode(body, type=Strict).inner == Document()
    for body, path in ((b'{"inner":{}}', "model"), (b'{"model":"m"}', "inner")):
        with pytest.raises(msgspec.ValidationError) as caught:
            msgspec.json.decode(body, type=Strict)
        assert error_path(body, caught.value) == path
