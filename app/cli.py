"""Command-line options made from the fields of a frozen msgspec Struct.

A field `kv_memory: Annotated[int, Meta(ge=0, description=..., extra={"unit": "MiB"})] = 0` becomes
`--kv-memory MiB` with that help, that default and that bound; a bool becomes `--x/--no-x`, a Literal a
list of choices, a tuple a comma-separated list. A text is never empty; where its field has a `pattern`,
`extra["form"]` says in words what matches it.
"""

from __future__ import annotations

import argparse
import math
import operator
import re
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import msgspec
from msgspec import inspect

_S = TypeVar("_S", bound=msgspec.Struct)


class CommandFailedError(Exception):
    """Ends a command; the message is all the user sees.

    Args:
        status: exit code; 2 where an option is wrong, as for what argparse refuses.
    """

    def __init__(self, message: str, *, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


class OneLineParser(argparse.ArgumentParser):
    """Tells what is wrong in one line: forty options make a usage that hides it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def add_options(parser: argparse.ArgumentParser, struct: type[msgspec.Struct]) -> None:
    """Add one option for each field of `struct`.

    Raises:
        TypeError: a field's type has no form on a command line.
    """
    for field in _fields(struct):
        kind, description, extra = _unwrap(field.type)
        flag = "--" + field.name.replace("_", "-")
        # Defaults stay out of the namespace, so that read_options() leaves them to the struct.
        common: dict[str, Any] = {
            "dest": field.name,
            "default": argparse.SUPPRESS,
            "help": _help(description, field.default),
        }
        if isinstance(kind, inspect.BoolType):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, **common)
        elif isinstance(kind, inspect.LiteralType):
            parser.add_argument(flag, choices=kind.values, **common)
        else:
            parse, metavar = _parser_of(kind, extra)
            parser.add_argument(flag, type=parse, metavar=extra.get("unit", metavar), **common)


def read_options(namespace: argparse.Namespace, struct: type[_S]) -> _S:
    """The struct that the options given on the command line make."""
    given = vars(namespace)
    return struct(**{field.name: given[field.name] for field in _fields(struct) if field.name in given})


def _fields(struct: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    return info.fields


def _unwrap(kind: inspect.Type) -> tuple[inspect.Type, str, dict[str, str]]:
    """The bare type, its description and `Meta.extra`; `X | None` counts as X."""
    if isinstance(kind, inspect.UnionType):
        (kind,) = (member for member in kind.types if not isinstance(member, inspect.NoneType))
    if isinstance(kind, inspect.Metadata):
        bare, description, extra = _unwrap(kind.type)
        description = (kind.extra_json_schema or {}).get("description", description)
        return bare, description, extra | (kind.extra or {})
    return kind, "", {}


def _help(description: str, default: object) -> str:
    if isinstance(default, bool):
        default = "on" if default else "off"
    elif isinstance(default, tuple):
        default = ",".join(map(str, default))
    shown = "" if default is None else f" (default: {default})"
    return f"{description}{shown}".replace("%", "%%")


def _parser_of(kind: inspect.Type, extra: dict[str, str]) -> tuple[Callable[[str], object], str]:
    """How a value of `kind` is read from text, and what stands for it in the help."""
    match kind:
        case inspect.StrType():
            return _text(kind.pattern, extra.get("form", "")), "TEXT"
        case inspect.IntType():
            return _number(int, "a whole number", kind), "N"
        case inspect.FloatType():
            return _number(float, "a number", kind), "X"
        case inspect.VarTupleType():
            item, _, extra = _unwrap(kind.item_type)
            parse, metavar = _parser_of(item, extra)
            return lambda text: tuple(parse(part.strip()) for part in text.split(",")), f"{metavar},{metavar}"
        case _:
            raise TypeError(f"no command-line form for {kind!r}")


def _text(pattern: str | None, form: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not text:
            raise argparse.ArgumentTypeError("must not be empty")
        if pattern is not None and not re.search(pattern, text):
            raise argparse.ArgumentTypeError(f"must be {form}, not {text!r}")
        return text

    return parse


def _number(
    read: Callable[[str], float], name: str, bounds: inspect.IntType | inspect.FloatType
) -> Callable[[str], float]:
    checks: list[tuple[float | None, str, Callable[[Any, Any], bool]]] = [
        (bounds.ge, "at least", operator.ge),
        (bounds.gt, "more than", operator.gt),
        (bounds.le, "at most", operator.le),
        (bounds.lt, "less than", operator.lt),
    ]

    def parse(text: str) -> float:
        try:
            value = read(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be {name}, not {text!r}") from None
        if math.isinf(value):
            raise argparse.ArgumentTypeError(f"must be finite, not {text}")
        for bound, words, holds in checks:
            if bound is not None and not holds(value, bound):
                raise argparse.ArgumentTypeError(f"must be {words} {bound}, not {text}")
        return value

    return parse
