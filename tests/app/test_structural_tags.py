"""Structural tags over HTTP: free text with constrained regions, in every spelling."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from engine.batch import SampleRow
from tests.app.harness import Served, error_of, events
from tests.fakes import IM_END, say

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}},
    "required": ["city"],
    "additionalProperties": False,
}
SUM = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
LEGACY: dict[str, Any] = {
    "structures": [
        {"begin": "<call=weather>", "schema": WEATHER, "end": "</call>"},
        {"begin": "<call=sum>", "schema": SUM, "end": "</call>"},
    ],
    "triggers": ["<call="],
}
TREE: dict[str, Any] = {
    "format": {
        "type": "triggered_tags",
        "triggers": ["<call="],
        "tags": [
            {
                "type": "tag",
                "begin": one["begin"],
                "content": {"type": "json_schema", "json_schema": one["schema"]},
                "end": one["end"],
            }
            for one in LEGACY["structures"]
        ],
    }
}
SPELLINGS: list[dict[str, Any]] = [
    {"response_format": {"type": "structural_tag", **LEGACY}},
    {"response_format": {"type": "structural_tag", **TREE}},
    {"structured_outputs": {"structural_tag": json.dumps({"type": "structural_tag", **LEGACY})}},
    {"structured_outputs": {"structural_tag": {"type": "structural_tag", **TREE}}},
    {"structural_tag": json.dumps({"type": "structural_tag", **LEGACY})},
    {"structural_tag": json.dumps(TREE)},
    {"structural_tag": LEGACY},
]


def regions(text: str) -> list[tuple[str, Any]]:
    """Names and contents of the tags in a text; fails on one that is not whole."""
    found = []
    for part in text.split("<call=")[1:]:
        name, _, rest = part.partition(">")
        content, end, _ = rest.partition("</call>")
        assert end, f"not whole: {part!r}"
        found.append((name, json.loads(content)))
    return found


def check(text: str) -> list[str]:
    """Validate every region; their names."""
    found = regions(text)
    for name, value in found:
        jsonschema.validate(value, {"weather": WEATHER, "sum": SUM}[name])
    return [name for name, _ in found]


@pytest.mark.parametrize("fields", SPELLINGS)
async def test_text_is_free_and_regions_fit(served: Served, fields: dict[str, Any]) -> None:
    served.runner.script = _follow
    answer = (await served.chat(**fields, max_tokens=300)).json()["choices"][0]
    text = answer["message"]["content"]
    assert answer["finish_reason"] == "stop"
    assert text.startswith("It is <b>mild</b>. <call=weather>{")
    assert text.endswith("</call> bye")
    assert check(text) == ["weather", "sum"]
    completion = (await served.complete(**fields, max_tokens=300)).json()["choices"][0]
    assert completion["finish_reason"] == "stop"
    assert completion["text"].startswith("It is <b>mild</b>. <call=weather>{")
    assert check(completion["text"]) == ["weather", "sum"]
    chunks = events((await served.chat(**fields, max_tokens=300, stream=True)).text)
    streamed = [choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"]]
    assert "".join(streamed) == text


def _follow(row: SampleRow) -> int:
    """Say what is around the regions, and inside of them wish for quotation marks."""
    parts = ("It is <b>mild</b>. <call=weather>", " And <call=sum>", " bye")
    *ended, tail = bytes(row.tokens[row.num_prompt :]).decode("latin-1").split("</call>")
    part = parts[len(ended)]
    if len(tail) < len(part):
        return ord(part[len(tail)])
    return IM_END if len(ended) == 2 else ord('"')


async def test_text_without_a_trigger_is_the_models_own(served: Served) -> None:
    text = "Nothing <begins here, call=weather> neither."
    served.runner.script = say(text)
    answer = (await served.chat(**SPELLINGS[0])).json()["choices"][0]
    assert (answer["message"]["content"], answer["finish_reason"]) == (text, "stop")


@pytest.mark.parametrize("max_tokens", range(16, 60, 3))
async def test_a_region_is_ended_within_the_budget(served: Served, max_tokens: int) -> None:
    served.runner.script = say("<call=weather>" + '{"city":"' + "x" * 50)
    answer = await served.chat(**SPELLINGS[0], max_tokens=max_tokens)
    body = answer.json()
    assert body["usage"]["completion_tokens"] <= max_tokens
    check(body["choices"][0]["message"]["content"])


def _legacy(**fields: Any) -> dict[str, Any]:
    return {"response_format": {"type": "structural_tag", **LEGACY, **fields}}


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        (_legacy(triggers=None), "response_format", "either a format, or structures and triggers"),
        (_legacy(triggers=["<nothing"]), "response_format", "no trigger starts '<call=weather>'"),
        (_legacy(structures=[{"begin": "<call=a>", "end": ""}]), "response_format", "`schema`"),
        (_legacy(structures="x"), "response_format.structures", "array"),
        (_legacy(triggers=[1]), "response_format.triggers[0]", "str"),
        (
            _legacy(structures=[{"begin": "<call=a>", "schema": {"type": "nonsense"}, "end": ""}]),
            "response_format",
            "(at /structures/0/schema/type)",
        ),
        (
            {"response_format": {"type": "structural_tag", "format": {"type": "magic"}}},
            "response_format",
            "magic",
        ),
        ({"structural_tag": "{"}, "structural_tag", "the structural tag is malformed"),
        ({"structural_tag": "x", "regex": "x"}, "structural_tag", "Only one"),
        ({"structured_outputs": {"structural_tag": 5}}, "structured_outputs.structural_tag", "str"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_wrong_is_named(
    served: Served, fields: dict[str, Any], param: str, message: str, *, stream: bool
) -> None:
    response = await served.chat(**fields, stream=stream)
    assert response.status_code == 400
    error = error_of(response)
    assert error["param"] == param
    assert message in error["message"]


async def test_the_description_of_the_api_has_them(served: Served) -> None:
    document = (await served.http.get("/openapi.json")).json()
    schemas = document["components"]["schemas"]
    assert "structural_tag" in schemas["ResponseFormat"]["properties"]["type"]["enum"]
    assert {"structures", "triggers", "format"} <= schemas["ResponseFormat"]["properties"].keys()
    assert "structural_tag" in schemas["ChatRequest"]["properties"]
