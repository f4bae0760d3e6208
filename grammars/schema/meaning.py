"""What a schema allows, type by type: unions of simple sets, closed under and, or, not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol, Self, TypeVar

from grammars.schema import strings
from grammars.schema.arrays import Arrays
from grammars.schema.errors import UnenforceableError
from grammars.schema.numbers import Numbers
from grammars.schema.objects import Objects
from grammars.schema.strings import Strings

MAX_ALTERNATIVES = 512


class _Set(Protocol):
    def meet(self, other: Self) -> Self | None: ...

    def outside(self) -> list[Self]: ...


S = TypeVar("S", bound=_Set)


@dataclass(frozen=True, slots=True)
class Meaning:
    """The values that are allowed.

    Attributes:
        null: whether null is.
        booleans: which of true and false are.
        numbers, arrays, objects: sets whose union is.
        strings: the strings that are.
        more_arrays: there may be other arrays too, left out for want of an automaton; so which are outside
            is not known.
        wider: what is allowed by readers that pass over a keyword, as it is none of the schema's version of
            JSON Schema; what is outside is outside for them too. None: the same.
    """

    null: bool = False
    booleans: frozenset[bool] = frozenset()
    numbers: tuple[Numbers, ...] = ()
    strings: Strings = strings.NONE
    arrays: tuple[Arrays, ...] = ()
    objects: tuple[Objects, ...] = ()
    more_arrays: bool = False
    wider: Meaning | None = None

    @property
    def outer(self) -> Meaning:
        """All that some reader allows."""
        return self if self.wider is None else self.wider

    @property
    def inner(self) -> Meaning:
        """The same without a word about other readers."""
        return replace(self, wider=None)

    def __and__(self, other: Meaning) -> Meaning:
        return Meaning(
            self.null and other.null,
            self.booleans & other.booleans,
            _meet(self.numbers, other.numbers),
            self.strings.meet(other.strings),
            _meet(self.arrays, other.arrays),
            _meet(self.objects, other.objects),
            bool(
                (self.more_arrays and (other.arrays or other.more_arrays))
                or (other.more_arrays and self.arrays)
            ),
            None if self.wider is other.wider is None else self.outer & other.outer,
        )

    def __or__(self, other: Meaning) -> Meaning:
        return Meaning(
            self.null or other.null,
            self.booleans | other.booleans,
            _join(self.numbers, other.numbers),
            self.strings.join(other.strings),
            _join(self.arrays, other.arrays),
            _join(self.objects, other.objects),
            self.more_arrays or other.more_arrays,
            None if self.wider is other.wider is None else self.outer | other.outer,
        )

    def __invert__(self) -> Meaning:
        if self.wider is not None:
            return replace(~self.wider, wider=~self.inner)
        if self.more_arrays:
            raise UnenforceableError("uniqueItems cannot be negated", "uniqueItems")
        return Meaning(
            not self.null,
            frozenset((False, True)) - self.booleans,
            _outside(self.numbers, Numbers()),
            self.strings.outside(),
            _outside(self.arrays, Arrays()),
            _outside(self.objects, Objects()),
        )

    def outside_without_repeats(self) -> Meaning:
        """What is outside, but not the arrays that only are because an item comes twice."""
        arrays = tuple(dict.fromkeys(replace(one, unique=False) for one in self.arrays))
        return replace(~replace(self, arrays=arrays), more_arrays=True)


ANYTHING = Meaning(
    null=True,
    booleans=frozenset((False, True)),
    numbers=(Numbers(),),
    strings=strings.ALL,
    arrays=(Arrays(),),
    objects=(Objects(),),
)
NOTHING = Meaning()


def _meet(mine: tuple[S, ...], theirs: tuple[S, ...]) -> tuple[S, ...]:
    met = dict.fromkeys(both for a in mine for b in theirs if (both := a.meet(b)) is not None)
    return _checked(met)


def _join(mine: tuple[S, ...], theirs: tuple[S, ...]) -> tuple[S, ...]:
    joined = tuple(dict.fromkeys(mine + theirs))
    everything = next((one for one in joined if one == type(one)()), None)
    return joined if everything is None else (everything,)


def _outside(sets: tuple[S, ...], everything: S) -> tuple[S, ...]:
    rest: tuple[S, ...] = (everything,)
    for one in sets:
        rest = _meet(rest, tuple(one.outside()))
    return rest


def _checked(sets: Iterable[S]) -> tuple[S, ...]:
    result = tuple(sets)
    if len(result) > MAX_ALTERNATIVES:
        raise UnenforceableError(f"more than {MAX_ALTERNATIVES} combinations of alternatives", "anyOf")
    return result
