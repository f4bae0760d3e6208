"""Sets of arrays, by what their items must satisfy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from grammars.schema.errors import UnenforceableError
from grammars.schema.formula import FALSE, TRUE, Formula, conj, neg


@dataclass(frozen=True, slots=True)
class Items:
    """What one schema says: the items of `prefix` by position, the others by `rest`."""

    prefix: tuple[Formula, ...] = ()
    rest: Formula = TRUE

    def at(self, index: int) -> Formula:
        """What the item at `index` must satisfy."""
        return self.prefix[index] if index < len(self.prefix) else self.rest


@dataclass(frozen=True, slots=True)
class Contains:
    """Between `low` and `high` (None: any number) items from index `start` on satisfy `item`."""

    item: Formula
    low: int = 1
    high: int | None = None
    start: int = 0


@dataclass(frozen=True, slots=True)
class Arrays:
    """Arrays of `low` to `high` items (None: no bound) that satisfy every one of `items` and `contains`."""

    items: tuple[Items, ...] = ()
    low: int = 0
    high: int | None = None
    contains: tuple[Contains, ...] = ()
    unique: bool = False

    def meet(self, other: Arrays) -> Arrays | None:
        """The arrays in both; None when there are clearly none."""
        low = max(self.low, other.low)
        high = (
            self.high
            if other.high is None
            else other.high
            if self.high is None
            else min(self.high, other.high)
        )
        if high is not None and low > high:
            return None
        items = tuple(dict.fromkeys(self.items + other.items))
        contains = tuple(dict.fromkeys(self.contains + other.contains))
        return Arrays(items, low, high, contains, self.unique or other.unique)

    def outside(self) -> list[Arrays]:
        """Sets that together hold every other array.

        Raises:
            UnenforceableError: for `unique`.
        """
        return list(self._outside())

    def _outside(self) -> Iterator[Arrays]:
        if self.unique:
            raise UnenforceableError("uniqueItems cannot be negated", "uniqueItems")
        if self.low > 0:
            yield Arrays(high=self.low - 1)
        if self.high is not None:
            yield Arrays(low=self.high + 1)
        for items in self.items:
            yield from _violations(items)
        for contains in self.contains:
            if contains.low > 0:
                yield Arrays(contains=(replace(contains, low=0, high=contains.low - 1),))
            if contains.high is not None:
                yield Arrays(contains=(replace(contains, low=contains.high + 1, high=None),))

    def item(self, index: int) -> Formula:
        """What the item at `index` must satisfy, `contains` aside."""
        return conj(items.at(index) for items in self.items)

    def settled(self) -> list[Arrays]:
        """The same arrays with every `contains` that bounds single items only turned into that bound."""
        kept = []
        items = list(self.items)
        for contains in self.contains:
            if contains.item == FALSE or contains.high == 0:
                if contains.low > 0:
                    return []
                if contains.item != FALSE:
                    items.append(Items((TRUE,) * contains.start, neg(contains.item)))
            elif contains.low > 0 or contains.high is not None:
                kept.append(contains)
        return [replace(self, items=tuple(items), contains=tuple(kept))]


def _violations(items: Items) -> Iterator[Arrays]:
    """The arrays of which `items` is not true."""
    for index, item in enumerate(items.prefix):
        if item != TRUE:
            yield Arrays((Items((TRUE,) * index + (neg(item),)),), low=index + 1)
    if items.rest != TRUE:
        yield Arrays(contains=(Contains(neg(items.rest), start=len(items.prefix)),))
