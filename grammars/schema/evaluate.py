"""From schemas to what they mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from grammars.base import GrammarError
from grammars.regular.pattern_syntax import PatternError
from grammars.regular.questions import TooManyStatesError
from grammars.schema import meaning as m
from grammars.schema.document import Document, Schema
from grammars.schema.errors import UnenforceableError
from grammars.schema.formula import Conj, Disj, Formula, Lit, Neg, Wide, of
from grammars.schema.meaning import Meaning
from grammars.schema.versions import may_be_passed_over
from grammars.schema.widened import widened
from grammars.spec import JsonOptions

MAX_MEANINGS = 20_000

Handler = Callable[["Evaluator", Schema], Meaning]


class CircularError(GrammarError):
    """A schema that is asked for its meaning while that is being worked out."""


class Evaluator:
    """Meanings of the formulas over one document, each worked out once.

    Args:
        document: the schemas.
        options: how JSON is spelled, and what `oneOf` and `nullable` mean.
        handlers: for each keyword the function that says what it means in a schema. Keywords that share
            a function are read together, where the first of them stands.
    """

    def __init__(self, document: Document, options: JsonOptions, handlers: dict[str, Handler]) -> None:
        self.document = document
        self.options = options
        self._handlers = handlers
        self._known: dict[Formula, Meaning] = {}
        self._open: set[Schema] = set()
        # Of the schema that is being evaluated, what else its value satisfies for certain.
        self._around = m.ANYTHING

    def meaning(self, formula: Formula) -> Meaning:
        """What a formula allows.

        Raises:
            GrammarError: a keyword that cannot be enforced, or a schema that refers to itself with nothing
                between, which has no meaning.
        """
        known = self._known.get(formula)
        if known is None:
            # What is remembered must hold wherever the formula stands.
            around, self._around = self._around, m.ANYTHING
            try:
                known = self._known[formula] = self._evaluate(formula)
            finally:
                self._around = around
            if len(self._known) > MAX_MEANINGS:
                raise GrammarError("grammar too complex: too many different combinations of schemas")
        return known

    def of(self, schema: Schema | bool) -> Meaning:
        """What a schema allows."""
        return self.meaning(of(schema))

    def _evaluate(self, formula: Formula) -> Meaning:
        match formula:
            case Lit(schema=schema):
                return self._schema(schema)
            case Neg(inner=inner):
                return ~self.meaning(inner)
            case Conj(parts=parts):
                result = m.ANYTHING
                for part in parts:
                    result &= self.meaning(part)
                return result
            case Disj(parts=parts):
                result = m.NOTHING
                for part in parts:
                    result |= self.meaning(part)
                return result
            case Wide(inner=inner):
                return widened(self.meaning(inner))

    def beside(self, schema: Schema, keyword: str) -> Meaning:
        """What the other keywords of a schema allow; anything where that cannot be told (yet)."""
        try:
            return self._fold(schema, without=keyword) & self._around
        except GrammarError:
            return self._around

    def within(self, formula: Formula, around: Callable[[], Meaning]) -> Meaning:
        """What a formula allows; if that cannot be told in general, then right only within `around`."""
        try:
            return self.meaning(formula)
        except CircularError:
            raise
        except GrammarError:
            if not isinstance(formula, Lit):
                raise
        before, self._around = self._around, around()
        try:
            return self._schema(formula.schema)
        finally:
            self._around = before

    def _schema(self, schema: Schema) -> Meaning:
        if schema in self._open:
            raise CircularError("$ref leads back to itself", pointer=schema.pointer)
        self._open.add(schema)
        try:
            return self._fold(schema)
        finally:
            self._open.remove(schema)

    def _fold(self, schema: Schema, *, without: str = "") -> Meaning:
        result = m.ANYTHING
        done: set[Handler] = set()
        for keyword in _relevant(schema):
            handler = self._handlers.get(keyword)
            if handler is None or handler in done or keyword == without:
                continue
            done.add(handler)
            try:
                meant = handler(self, schema)
                if any(
                    may_be_passed_over(schema, key)
                    for key in schema.value
                    if self._handlers.get(key) is handler
                ):
                    meant = replace(meant, wider=m.ANYTHING)
                result &= meant
            except (UnenforceableError, PatternError, TooManyStatesError) as error:
                message = str(error) or "it leads to an automaton with too many states"
                pointer = f"{schema.pointer}/{keyword}"
                raise GrammarError(message, pointer=pointer, keyword=keyword) from error
        return result


def _relevant(schema: Schema) -> list[str]:
    """The keywords that mean something in a schema, in its order; what looks at others' work comes last."""
    if schema.resource.ref_stands_alone and "$ref" in schema.value:
        return ["$ref"]
    return sorted(schema.value, key=lambda keyword: keyword.startswith("unevaluated"))
