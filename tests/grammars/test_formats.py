"""Formats: what we write is valid to the letter, by the official suite and by other validators."""

from __future__ import annotations

import datetime
import ipaddress
import json
import random
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import idna
import jsonschema
import pydantic
import pytest

from grammars.regular.ast import Regex
from grammars.regular.derivative import classes, derive, matches
from grammars.regular.questions import is_empty
from grammars.schema.formats import format_language

CASES = Path(__file__).parents[1] / "cases"


def _groups() -> list[dict[str, Any]]:
    names = ("json-schema-test-suite-draft7", "json-schema-test-suite-draft2020-12")
    lines = [line for name in names for line in (CASES / f"{name}.jsonl").read_text().splitlines()]
    groups = [json.loads(line) for line in lines]
    return [group for group in groups if "/optional/format/" in group["id"]]


@pytest.mark.parametrize("group", _groups(), ids=lambda group: group["id"])
def test_the_suite(group: dict[str, Any]) -> None:
    known = format_language(group["schema"]["format"])
    if known is None:
        assert group["schema"]["format"] == "unknown"
        return
    exact, wider = known
    for test in group["tests"]:
        if isinstance(test["data"], str):
            assert test["valid"] or not matches(exact, test["data"]), test
            assert not test["valid"] or matches(wider, test["data"]), test


NAMES = [
    "date",
    "time",
    "date-time",
    "duration",
    "email",
    "hostname",
    "idn-email",
    "idn-hostname",
    "ipv4",
    "ipv6",
    "iri",
    "iri-reference",
    "uuid",
]
NAMES += ["json-pointer", "regex", "relative-json-pointer", "uri", "uri-reference", "uri-template"]
CHECKS: dict[str, Callable[[str], Any]] = {
    "date": datetime.date.fromisoformat,
    "time": lambda text: datetime.time.fromisoformat(text.upper()),
    "date-time": lambda text: datetime.datetime.fromisoformat(text.upper()),
    "hostname": lambda text: idna.encode(text, strict=True),
    "idn-hostname": lambda text: idna.encode(text, strict=True),
    "idn-email": lambda text: text.rpartition("@")[2].startswith("[") or idna.encode(text.rpartition("@")[2]),
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "uuid": uuid.UUID,
}


@pytest.mark.parametrize("name", NAMES)
def test_random_texts_of_a_format_pass_validators(name: str) -> None:
    known = format_language(name)
    assert known is not None
    rng = random.Random(name)
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    for _ in range(20):
        text = _random_text(known[0], rng)
        checker.check(_in_first_plane(text), name)
        CHECKS.get(name, str)(text)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("date", datetime.date),
        ("date-time", datetime.datetime),
        ("time", datetime.time),
        ("duration", datetime.timedelta),
        ("ipv4", ipaddress.IPv4Address),
        ("ipv6", ipaddress.IPv6Address),
        ("ipvanyaddress", pydantic.IPvAnyAddress),
        ("uuid", uuid.UUID),
        ("uuid1", pydantic.UUID1),
        ("uuid4", pydantic.UUID4),
        ("uuid7", pydantic.UUID7),
    ],
)
def test_pydantic_takes_what_is_written_for_its_types(name: str, kind: Any) -> None:
    adapter = pydantic.TypeAdapter(kind)
    assert adapter.json_schema()["format"] == name
    known = format_language(name)
    assert known is not None
    rng = random.Random(name)
    for _ in range(20):
        adapter.validate_python(_random_text(known[0], rng))
    with pytest.raises(pydantic.ValidationError):
        adapter.validate_python("word")


@pytest.mark.parametrize("text", ["P9999Y99999M99999999D", "P99999W", "PT99999H9999999M999999999S"])
def test_the_longest_durations_are_ones_that_pydantic_takes(text: str) -> None:
    known = format_language("duration")
    assert known is not None
    assert matches(known[0], text)
    pydantic.TypeAdapter(datetime.timedelta).validate_python(text)


def _in_first_plane(text: str) -> str:
    """With a character of the same kind for each of those that the validator does not know in IRIs."""
    return re.sub("[\U00010000-\U000effff]", "é", re.sub("[\U000f0000-\U0010ffff]", "\ue000", text))


def test_every_letter_of_a_host_name_is_one_that_idna_takes() -> None:
    known = format_language("idn-hostname")
    assert known is not None
    letters = [char for char in map(chr, range(0x80, 0xFFFF)) if matches(known[0], char)]
    assert len(letters) > 30_000
    assert {"é", "ж", "ώ", "の", "ラ", "語", "한"} < set(letters)
    for char in letters:
        idna.encode(char, strict=True)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("idn-email", "실례@실례.테스트"),
        ("idn-hostname", "www.пример.example"),
        ("iri", "https://example.com/сведения?q=тест"),
        ("uri", "http://[v1.fe]/"),
        ("uri", "mailto:a@b.c?d#e"),
        ("uri", "file:///a"),
        ("email", "te~st@example.com"),
        ("uri-template", "/ünïcode/{x%41*}"),
    ],
)
def test_texts_that_belong_to_a_format(name: str, text: str) -> None:
    known = format_language(name)
    assert known is not None
    assert matches(known[0], text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        # Right by the letter, but refused by ajv or jsonschema.
        ("email", "a@localhost"),
        ("email", "a@[127.0.0.1]"),
        ("idn-email", "ü@localhost"),
        ("uri", "tag:"),
        ("uri", "x:?y"),
        ("iri", "tag:#z"),
        ("uri-template", "{a.b}"),
        ("uri-template", "{a:1000}"),
    ],
)
def test_what_some_validator_refuses_is_neither_written_nor_outside(name: str, text: str) -> None:
    known = format_language(name)
    assert known is not None
    assert not matches(known[0], text)
    assert matches(known[1], text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("email", '"x y"@example.com'),
        ("email", "line\n@\u2028"),
        ("idn-email", "line\n@"),
        ("idn-email", "word"),
        ("iri", "word"),
        ("time", "23:59:60Z"),
        ("date-time", "2016-12-31T23:59:60Z"),
        ("regex", "(?<year>\u2028)"),
    ],
)
def test_texts_that_a_validator_may_take_are_not_outside_of_a_format(name: str, text: str) -> None:
    known = format_language(name)
    assert known is not None
    assert matches(known[1], text)


def _random_text(language: Regex, rng: random.Random) -> str:
    """A walk through the automaton that ends at a random place where it may."""
    text = ""
    while not (language.nullable and (rng.random() < 0.2 or len(text) > 60)):
        options = [(r, a) for r in classes(language) if not is_empty(a := derive(language, r[0][0]))]
        if not options:
            break
        ranges, language = rng.choice(options)
        text += chr(rng.randint(*rng.choice(ranges)))
    return text
