"""What the text of an answer is constrained to, in every spelling clients use.

OpenAI's `response_format`, and structural tags in it; vLLM's `structured_outputs` and its older `guided_*`;
SGLang's `regex`, `ebnf`, `json_schema` and `structural_tag`; llama.cpp's `grammar` and `json_schema`. One
constraint a request at most.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple

import msgspec

from app.errors import ApiError, bad_request, from_grammar
from app.protocol import ChatRequest, Choices, CompletionRequest, DrawingFields, ResponseFormat
from grammars.base import GrammarError
from grammars.spec import Constraint

_LIKE_A_CONSTRAINT = re.compile(
    "(guided|structured|structural|grammar|regex|ebnf|gbnf|lark|json_schema|response_(format|schema))(_|$)|format$"
)
_ALIKE = 0.85
_BLANKS_OPTION = "whitespace_pattern"


class FieldConstraint(NamedTuple):
    """A constraint and the request field it came in."""

    field: str
    constraint: Constraint
    part: Callable[[str], tuple[str, str] | None] | None = None
    """Where the constraint is made of several fields: from a JSON pointer into it to one of them and the
    pointer into that; None: to none of them."""

    def refusal(self, error: GrammarError) -> ApiError:
        """A 400 that names the field that the constraint is refused for, the keyword, and where it stands."""
        field = self.field
        if self.part is not None:
            field, pointer = self.part(error.pointer) or (field, "")
            keyword = error.keyword if pointer else None
            error = GrammarError(error.message, pointer=pointer, keyword=keyword)
        if error.keyword == _BLANKS_OPTION:
            field = f"guided_{_BLANKS_OPTION}" if field == "guided_json" else f"{field}.{_BLANKS_OPTION}"
        return from_grammar(error, field)


def text_constraint(request: ChatRequest | CompletionRequest) -> FieldConstraint | None:
    """The constraint on the answer's text; None for free text.

    Raises:
        ApiError: 400; a constraint is malformed, or there are several.
    """
    found = list(_constraints(request))
    if request.guided_whitespace_pattern and request.guided_json is None:
        name = "guided_whitespace_pattern"
        raise bad_request(f"{name} says nothing without guided_json.", name)
    if len(found) > 1:
        fields = " and ".join(one.field for one in found)
        raise bad_request(f"Only one constraint is possible, not {fields}.", found[1].field)
    return found[0] if found else None


_MOST_UNKNOWN = 256
"""Fields that are compared with the names of constraints."""


def refuse_unknown_constraints(body: bytes, request: DrawingFields) -> None:
    """Refuse fields that only look like constraints: who sends one must not get free text.

    Args:
        body: the JSON object that `request` was read from.

    Raises:
        ApiError: 400 naming the field.
    """
    known = request.__struct_fields__
    given = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    unknown = given.keys() - set(known)
    if len(unknown) > _MOST_UNKNOWN:
        raise bad_request(f"The request has more than {_MOST_UNKNOWN} fields that are not known.")
    for name in unknown:
        if bytes(given[name]) == b"null":
            continue
        alike = difflib.get_close_matches(name[:64], _READERS, 1, _ALIKE)
        if alike or _LIKE_A_CONSTRAINT.match(name):
            instead = f" Is it {alike[0]!r}?" if alike else ""
            message = f"The parameter {name!r} is not supported.{instead}"
            raise bad_request(message, name, "unsupported_parameter")


def _constraints(request: ChatRequest | CompletionRequest) -> Iterator[FieldConstraint]:
    for field, read in _READERS.items():
        value = getattr(request, field)
        constraint = None if value is None else read(value)
        if constraint is not None and field == "guided_json" and request.guided_whitespace_pattern:
            blanks = _blanks(request.guided_whitespace_pattern, "guided_whitespace_pattern")
            constraint = _spelled(constraint, blanks)
        if constraint is not None:
            yield FieldConstraint(field, constraint)


def _response_format(value: ResponseFormat) -> Constraint | None:
    match value.type:
        case "text":
            return None
        case "json_object":
            return Constraint(kind="json_object")
        case "json_schema":
            if value.json_schema is None:
                raise bad_request("response_format of type json_schema needs json_schema.", "response_format")
            return Constraint.json_schema(value.json_schema.schema)
        case "structural_tag":
            parts = {"structures": value.structures, "triggers": value.triggers, "format": value.format}
            return _structural_tag({name: part for name, part in parts.items() if part is not None})


def _structured_outputs(value: dict[str, Any]) -> Constraint:
    field = "structured_outputs"
    given = {key: item for key, item in value.items() if item is not None}
    spelling: dict[str, Any] = {}
    if given.pop("disable_any_whitespace", True) is False:
        spelling["whitespace"] = "flexible"
    if "whitespace_pattern" in given:
        name = f"{field}.whitespace_pattern"
        if value.get("disable_any_whitespace"):
            raise bad_request(f"{name} says nothing beside disable_any_whitespace.", name)
        spelling |= _blanks(given.pop("whitespace_pattern"), name)
    for name in _DIGITS & given.keys():
        spelling[name] = _converted(given.pop(name), _Digits, f"{field}.{name}")
    kinds = [key for key in given if key in _STRUCTURED_OUTPUTS]
    for key in given.keys() - _STRUCTURED_OUTPUTS.keys():
        raise bad_request(f"{field}.{key} is not supported.", f"{field}.{key}", "unsupported_parameter")
    if len(kinds) != 1:
        raise bad_request(f"{field} needs exactly one of {', '.join(_STRUCTURED_OUTPUTS)}.", field)
    (kind,) = kinds
    type_, read = _STRUCTURED_OUTPUTS[kind]
    constraint: Constraint = _converted(given[kind], type_, f"{field}.{kind}", read)
    return _spelled(constraint, spelling)


def _blanks(pattern: Any, name: str) -> dict[str, Any]:
    """The options of JSON whose blanks follow a pattern."""
    return {"whitespace": "flexible", "whitespace_pattern": _converted(pattern, _Blanks, name)}


def _spelled(constraint: Constraint, spelling: dict[str, Any]) -> Constraint:
    return msgspec.structs.replace(constraint, json=msgspec.structs.replace(constraint.json, **spelling))


def _converted(value: Any, type_: Any, name: str, read: Callable[[Any], Any] = lambda value: value) -> Any:
    try:
        return read(msgspec.convert(value, type_))
    except msgspec.ValidationError as error:
        raise bad_request(f"{name}: {error}", name) from None


def _json_object(wanted: bool) -> Constraint:
    if not wanted:
        raise msgspec.ValidationError("must be true")
    return Constraint(kind="json_object")


def _regex(pattern: str) -> Constraint:
    return Constraint(kind="regex", spec=pattern)


def _grammar(text: str) -> Constraint:
    """As vLLM tells them apart: `::=` is GBNF, anything else is Lark."""
    return Constraint(kind="gbnf" if "::=" in text else "lark", spec=text)


def _structural_tag(tag: str | dict[str, Any]) -> Constraint:
    """As text, or as the object it parses to (the order of keys in its schemas is kept)."""
    text = tag if isinstance(tag, str) else msgspec.json.encode(tag).decode()
    return Constraint(kind="structural_tag", spec=text)


_DIGITS = frozenset({"integer_digits", "fraction_digits"})
_Digits = Annotated[int, msgspec.Meta(ge=1, le=100)]
"""Most digits of a number before and after its point."""

_Blanks = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
"""A regular expression of what may stand between the tokens of JSON."""

_Schema = str | bool | dict[str, Any]
_STRUCTURED_OUTPUTS: dict[str, tuple[Any, Callable[[Any], Constraint]]] = {
    "json": (_Schema, Constraint.json_schema),
    "regex": (str, _regex),
    "choice": (Choices, Constraint.choice),
    "grammar": (str, _grammar),
    "json_object": (bool, _json_object),
    "structural_tag": (str | dict[str, Any], _structural_tag),
}

_READERS: dict[str, Callable[[Any], Constraint | None]] = {
    "response_format": _response_format,
    "structured_outputs": _structured_outputs,
    "guided_json": Constraint.json_schema,
    "guided_regex": _regex,
    "guided_choice": Constraint.choice,
    "guided_grammar": _grammar,
    "json_schema": Constraint.json_schema,
    "regex": _regex,
    "ebnf": _grammar,
    "grammar": _grammar,
    "structural_tag": _structural_tag,
}
