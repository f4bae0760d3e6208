"""What a place in a document must satisfy: schemas, combined with and, or, not.

Formulas are values in a mild normal form, so that the places of a recursive schema are finitely many.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from grammars.schema.document import Schema


@dataclass(frozen=True, slots=True)
class Lit:
    """One schema."""

    schema: Schema


@dataclass(frozen=True, slots=True)
class Neg:
    """Not that schema."""

    inner: Lit


@dataclass(frozen=True, slots=True)
class Conj:
    """All of `parts`; none: anything."""

    parts: tuple[Formula, ...]


@dataclass(frozen=True, slots=True)
class Disj:
    """At least one of `parts`; none: nothing."""

    parts: tuple[Formula, ...]


@dataclass(frozen=True, slots=True)
class Wide:
    """All that some reader takes for `inner`, and maybe more; asked for where two must not overlap."""

    inner: Formula


Formula = Lit | Neg | Conj | Disj | Wide

TRUE = Conj(())
FALSE = Disj(())


def of(schema: Schema | bool) -> Formula:
    """The formula of a schema."""
    if isinstance(schema, Schema):
        return Lit(schema) if schema.value else TRUE
    return TRUE if schema else FALSE


def conj(parts: Iterable[Formula]) -> Formula:
    """All of them, in order: the first decides the order of properties."""
    flat: dict[Formula, None] = {}
    for part in parts:
        for piece in part.parts if isinstance(part, Conj) else (part,):
            flat[piece] = None
    if FALSE in flat or any(isinstance(piece, Neg) and piece.inner in flat for piece in flat):
        return FALSE
    return next(iter(flat)) if len(flat) == 1 else Conj(tuple(flat))


def disj(parts: Iterable[Formula]) -> Formula:
    """At least one of them."""
    flat: dict[Formula, None] = {}
    for part in parts:
        for piece in part.parts if isinstance(part, Disj) else (part,):
            flat[piece] = None
    if TRUE in flat:
        return TRUE
    return next(iter(flat)) if len(flat) == 1 else Disj(tuple(flat))


def neg(formula: Formula) -> Formula:
    """Not it; pushed down to the schemas (De Morgan)."""
    match formula:
        case Neg(inner=inner):
            return inner
        case Conj(parts=parts):
            return disj(map(neg, parts))
        case Disj(parts=parts):
            return conj(map(neg, parts))
        case Lit():
            return Neg(formula)
        case Wide():
            raise TypeError("what is outside of all that may be meant is not known")


def wide(formula: Formula) -> Formula:
    """All that some reader takes for it."""
    return formula if formula in (TRUE, FALSE) or isinstance(formula, Wide) else Wide(formula)
