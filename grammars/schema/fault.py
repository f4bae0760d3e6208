"""Which part of a schema it is refused for, where what is wrong is seen of the whole only.

That nothing satisfies a schema, or that its grammar is too large for the engine, has no place in it. But
there may be a part that is refused for the same by itself, or without which the schema is taken. It is found
by trying one after the other, and of many alike by halves (as delta debugging does; Zeller, 1999). So it is
with the schemas in structural tags.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import unquote

from grammars.json_pointer import escape
from grammars.schema.document import subschemas
from grammars.schema.trials import DEFINITIONS, Change, Trials

_INSTEAD: dict[str, Any] = {
    "schema": {"const": 0},
    "json_schema": {"const": 0},
    "pattern": "x",
    "grammar": 'root ::= "x"',
    "value": "x",
}
"""What is tried in place of what a structural tag asks for."""


def fault_in_schema(trials: Trials, root: str = "") -> str | None:
    """The pointer to the smallest part found that a schema is refused for.

    None where no part is found, or not in time.

    Args:
        root: the pointer to the schema, in what is tried.
    """
    fault, pointer = None, root
    seen = set[str]()
    while pointer not in seen:
        seen.add(pointer)
        schema = trials.at(pointer)
        part = _faulty_part(schema, root, pointer, trials) if isinstance(schema, dict) else None
        if part is None:
            break
        fault = pointer = part
        reference = trials.at(pointer) if pointer.endswith("/$ref") else None
        if isinstance(reference, str) and reference.startswith("#/"):
            # What it points to is still to blame.
            pointer = root + unquote(reference[1:])
    return fault


def repeated_in(trials: Trials) -> str | None:
    """The pointer to what makes items distinct that it takes too long to find; of several one without which
    it does not."""
    places = []
    pending = [("", trials.at(""))]
    while pending:
        pointer, schema = pending.pop()
        if isinstance(schema, dict):
            if schema.get("uniqueItems") is True:
                places.append(f"{pointer}/uniqueItems")
            pending += [(at, child) for child, at in subschemas(schema, pointer)]
    return places[0] if len(places) == 1 else trials.cure_among([(place, None) for place in places])


def fault_in_tags(trials: Trials) -> str | None:
    """As `fault_in_schema`, of a structural tag."""
    fault = trials.cure_among([(place, _INSTEAD[keyword]) for place, keyword in _contents(trials.at(""), "")])
    if fault is not None and fault.endswith("schema"):
        return fault_in_schema(trials, fault) or fault
    return fault


def _faulty_part(schema: dict[str, Any], root: str, pointer: str, trials: Trials) -> str | None:
    """A schema in a schema, or else a keyword, that is to blame."""
    bounds = []
    for keyword, value in schema.items():
        here = f"{pointer}/{escape(keyword)}"
        if keyword in DEFINITIONS:
            continue
        if keyword == "$ref":
            children = [here]
        else:
            children = [child for _, child in subschemas({keyword: value}, pointer)]
        if not children:
            bounds.append(here)
            continue
        child = trials.refused_among(root, children)
        # What nothing satisfies may be no harm, if it may be left out.
        if child is not None and (not trials.is_unsatisfiable or trials.is_cure(_without(child))):
            return child
        is_cure = trials.is_cure((here, None))
        # Without all of them there may be other faults than without one.
        child = trials.cure_among(list(map(_without, children)))
        if child is not None:
            return child
        if is_cure:
            return here
    return next((bound for bound in reversed(bounds) if trials.is_cure((bound, None))), None)


def _without(part: str) -> Change:
    return part, None if part.endswith("/$ref") else True


def _contents(value: Any, pointer: str) -> Iterator[tuple[str, str]]:
    """What a structural tag asks for: the pointers to its schemas and texts, and their keywords."""
    members: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, list):
        members = enumerate(value)
    elif isinstance(value, dict):
        members = value.items()
    for key, member in members:
        here = f"{pointer}/{escape(str(key))}"
        if isinstance(key, str) and key in _INSTEAD:
            yield here, key
        else:
            yield from _contents(member, here)
