"""What some reader of a schema may allow: more, where formats are read loosely or keywords passed over."""

from __future__ import annotations

from dataclasses import replace

from grammars.schema.arrays import Arrays, Items
from grammars.schema.formula import wide
from grammars.schema.meaning import Meaning
from grammars.schema.objects import Objects, Properties
from grammars.schema.strings import Strings


def widened(meaning: Meaning) -> Meaning:
    """All that any reader allows, and maybe more."""
    outer = meaning.outer
    return replace(
        outer,
        strings=_strings(outer.strings),
        arrays=tuple(map(_arrays, outer.arrays)),
        objects=tuple(map(_objects, outer.objects)),
    )


def _strings(strings: Strings) -> Strings:
    return strings if strings.wider is None else Strings(regex=strings.wider)


def _arrays(arrays: Arrays) -> Arrays:
    # Of what is to be counted a reader may find more, or fewer.
    items = (Items(tuple(map(wide, items.prefix)), wide(items.rest)) for items in arrays.items)
    return Arrays(tuple(items), arrays.low, arrays.high)


def _objects(objects: Objects) -> Objects:
    return replace(
        objects,
        properties=tuple(map(_properties, objects.properties)),
        names=tuple(map(_strings, objects.names)),
        some=(),
    )


def _properties(said: Properties) -> Properties:
    return Properties(
        tuple((name, wide(formula)) for name, formula in said.named),
        tuple((regex, wide(formula)) for regex, formula in said.patterns),
        None if said.others is None else wide(said.others),
    )
