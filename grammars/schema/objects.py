"""Sets of objects, by what their properties must satisfy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from grammars.regular.ast import ANYTHING, Regex, complement, intersect, literal
from grammars.regular.derivative import matches
from grammars.schema.formula import FALSE, TRUE, Formula, conj, neg
from grammars.schema.strings import Strings


@dataclass(frozen=True, slots=True)
class Properties:
    """What one schema says: about properties by name, by pattern, and about all others.

    Attributes:
        named: names and what their values must satisfy, in order.
        patterns: the same for names that belong to a language.
        others: what the values of other properties must satisfy; None: nothing is said, so anything.
    """

    named: tuple[tuple[str, Formula], ...] = ()
    patterns: tuple[tuple[Regex, Formula], ...] = ()
    others: Formula | None = None

    def of(self, name: str) -> Formula:
        """What the value of a property must satisfy."""
        said = [formula for known, formula in self.named if known == name]
        said += [formula for regex, formula in self.patterns if matches(regex, name)]
        return conj(said) if said else self.rest

    @property
    def rest(self) -> Formula:
        """What the value of a property that is neither named nor matched must satisfy."""
        return TRUE if self.others is None else self.others


@dataclass(frozen=True, slots=True)
class Some:
    """At least one property whose name belongs to `names` has a value that satisfies `value`."""

    names: Regex
    value: Formula


@dataclass(frozen=True, slots=True)
class Objects:
    """Objects of `low` to `high` properties (None: no bound) that satisfy all that is listed.

    Attributes:
        properties: what schemas say about properties.
        required: names that must be there, in order.
        banned: names that must not be.
        names: sets that every name belongs to.
        some: what at least one property satisfies.
    """

    properties: tuple[Properties, ...] = ()
    required: tuple[str, ...] = ()
    banned: tuple[str, ...] = ()
    low: int = 0
    high: int | None = None
    names: tuple[Strings, ...] = ()
    some: tuple[Some, ...] = ()

    def meet(self, other: Objects) -> Objects | None:
        """The objects in both; None when there are clearly none."""
        low = max(self.low, other.low)
        high = (
            self.high
            if other.high is None
            else other.high
            if self.high is None
            else min(self.high, other.high)
        )
        required = tuple(dict.fromkeys(self.required + other.required))
        banned = tuple(dict.fromkeys(self.banned + other.banned))
        if (high is not None and max(low, len(required)) > high) or set(required) & set(banned):
            return None
        return Objects(
            tuple(dict.fromkeys(self.properties + other.properties)),
            required,
            banned,
            low,
            high,
            tuple(dict.fromkeys(self.names + other.names)),
            tuple(dict.fromkeys(self.some + other.some)),
        )

    def outside(self) -> list[Objects]:
        """Sets that together hold every other object."""
        return list(self._outside())

    def _outside(self) -> Iterator[Objects]:
        yield from (Objects(banned=(name,)) for name in self.required)
        yield from (Objects(required=(name,)) for name in self.banned)
        if self.low > 0:
            yield Objects(high=self.low - 1)
        if self.high is not None:
            yield Objects(low=self.high + 1)
        yield from (Objects(some=(Some(names.outside().language, TRUE),)) for names in self.names)
        for said in self.properties:
            yield from _violations(said)
        for some in self.some:
            yield Objects((Properties(patterns=((some.names, neg(some.value)),)),))

    def value(self, name: str) -> Formula:
        """What the value of a property must satisfy, FALSE when there cannot be one."""
        if name in self.banned or any(name not in names for names in self.names):
            return FALSE
        return conj(said.of(name) for said in self.properties)


def _violations(said: Properties) -> Iterator[Objects]:
    """The objects of which `said` is not true."""
    for name, formula in said.named:
        if formula != TRUE:
            yield Objects((Properties(named=((name, neg(formula)),)),), required=(name,))
    for regex, formula in said.patterns:
        if formula != TRUE:
            yield Objects(some=(Some(regex, neg(formula)),))
    if said.rest != TRUE:
        yield Objects(some=(Some(unmentioned(said), neg(said.rest)),))


def unmentioned(said: Properties) -> Regex:
    """The names about which `said` only says what it says about all others."""
    mentioned = [complement(literal(name)) for name, _ in said.named]
    mentioned += [complement(regex) for regex, _ in said.patterns]
    return intersect((ANYTHING, *mentioned))
