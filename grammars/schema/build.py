"""From a schema to rules: every place of it, each combination of schemas once."""

from __future__ import annotations

import math
from collections import deque
from fractions import Fraction
from typing import Any

from msgspec.structs import replace

from grammars.base import GrammarError
from grammars.regular.ast import Regex, alt, literal
from grammars.regular.questions import TooManyStatesError, shortest
from grammars.schema import applicators, containers, scalars, unevaluated
from grammars.schema.build_arrays import build_arrays
from grammars.schema.build_objects import build_objects
from grammars.schema.document import Document, Draft, Schema
from grammars.schema.errors import UnenforceableError
from grammars.schema.evaluate import Evaluator
from grammars.schema.finite import few_values
from grammars.schema.formula import Formula, Lit, of
from grammars.schema.keywords import says_nothing
from grammars.schema.meaning import Meaning
from grammars.schema.number_text import number_text, plain
from grammars.schema.numbers import Numbers
from grammars.schema.shapes import Multiples, Rule, Text
from grammars.spec import JsonOptions

MAX_RULES = 5000
MAX_STEP = 4000
MAX_STEP_DIGITS = 15
"""What the engine's own multiples can take."""

_HANDLERS = {**scalars.HANDLERS, **containers.HANDLERS, **applicators.HANDLERS, **unevaluated.HANDLERS}


def build(text: str, options: JsonOptions) -> Rule:
    """The rule of a schema's values; the sizes in it are not worked out yet.

    Raises:
        GrammarError: what of the schema cannot be enforced.
    """
    document = Document(text)
    if isinstance(document.root, Schema) and says_nothing(document.root.value):
        raise GrammarError("the schema has no keyword of JSON Schema, so it would allow anything")
    return _Builder(document, options).build(of(document.root))


class _Builder:
    def __init__(self, document: Document, options: JsonOptions) -> None:
        if isinstance(document.root, Schema) and document.root.resource.draft == Draft.DRAFT4:
            # There 5.0 is no integer.
            options = replace(options, decimal_integers=False)
        self._document = document
        self._options = options
        self._evaluator = Evaluator(document, options, _HANDLERS)
        self._rules: dict[Formula, Rule] = {}
        self._same: dict[Meaning, Rule] = {}
        self._pending: deque[tuple[Formula, Meaning, Rule]] = deque()

    def build(self, root: Formula) -> Rule:
        rule = self._rule(root)
        while self._pending:
            formula, meaning, pending = self._pending.popleft()
            try:
                self._fill(pending, meaning)
            except UnenforceableError as error:
                raise _refusal(formula, error) from error
        return rule

    def _rule(self, formula: Formula) -> Rule:
        rule = self._rules.get(formula)
        if rule is None:
            try:
                meaning = self._evaluator.meaning(formula)
            except UnenforceableError as error:
                raise _refusal(formula, error) from error
            # Schemas that differ in their descriptions only are one place.
            rule = self._same.get(meaning)
            if rule is None:
                rule = self._same[meaning] = Rule()
                self._pending.append((formula, meaning, rule))
            self._rules[formula] = rule
            if len(self._rules) > MAX_RULES:
                raise GrammarError("grammar too complex: too many different places in the schema")
        return rule

    def _fill(self, rule: Rule, meaning: Meaning) -> None:
        words = [literal("null")] if meaning.null else []
        words += [literal("true" if value else "false") for value in sorted(meaning.booleans, reverse=True)]
        for numbers in meaning.numbers:
            text = number_text(numbers, self._options)
            if text is not None:
                words.append(text)
            elif numbers.step is not None:
                rule.multiples += self._multiples(numbers, numbers.step)
        self._add_text(rule, alt(words), quoted=False)
        self._add_text(rule, meaning.strings.language, quoted=True)
        for arrays in meaning.arrays:
            rule.sequences += build_arrays(arrays, self._rule, self._values)
        for objects in meaning.objects:
            rule.sequences += build_objects(objects, self._rule, open_objects=self._options.open_objects)

    def _add_text(self, rule: Rule, regex: Regex, *, quoted: bool) -> None:
        try:
            word = shortest(regex)
        except TooManyStatesError:
            raise UnenforceableError(
                "the texts it allows cannot be told within the limits", "pattern"
            ) from None
        if word is not None:
            rule.texts.append(Text(regex, quoted, word))

    def _multiples(self, numbers: Numbers, step: Fraction) -> list[Multiples]:
        """Multiples of `step`, of which the one nearest to zero is the shortest."""
        if step.denominator != 1:
            # The engine has multiples of such numbers, but leaves some of them out.
            raise UnenforceableError(
                "the digits of a number do not tell whether it is a multiple", "multipleOf"
            )
        if step > MAX_STEP:
            raise UnenforceableError("the multiples of this number take too large an automaton", "multipleOf")
        digits = min(self._options.integer_digits, MAX_STEP_DIGITS)
        limit = Fraction(10**digits - 1)
        within = numbers.meet(Numbers(low=-limit, high=limit))
        if within is None or within.low is None or within.high is None:
            raise UnenforceableError(f"only numbers of up to {digits} digits can be told", "multipleOf")
        nearest = max(within.low, min(Fraction(0), within.high))
        index = math.floor(nearest / step)
        found = [value for offset in (0, 1, -1, 2) if (value := step * (index + offset)) in within]
        return [Multiples(within, step, plain(found[0]))] if found else []

    def _values(self, formula: Formula, limit: int) -> list[tuple[Any, Formula]] | None:
        values = few_values(self._evaluator.meaning(formula), limit)
        place = _place(formula)
        if values is None or place is None:
            return None
        return [(value, of(self._document.derived({"const": value}, place))) for value in values]


def _refusal(formula: Formula, error: UnenforceableError) -> GrammarError:
    """What is refused, for the keyword where a schema that the formula is about has it."""
    places = _places(formula)
    place = next((place for place in places if error.keyword in place.value), None)
    if place is None:
        return GrammarError(error.message, pointer=places[0].pointer if places else "")
    return GrammarError(error.message, pointer=f"{place.pointer}/{error.keyword}", keyword=error.keyword)


def _place(formula: Formula) -> Schema | None:
    """A schema that a formula is about."""
    return next(iter(_places(formula)), None)


def _places(formula: Formula) -> list[Schema]:
    """The schemas that a formula is about."""
    if isinstance(formula, Lit):
        return [formula.schema]
    parts = getattr(formula, "parts", None) or (getattr(formula, "inner", None),)
    return [place for part in parts if part is not None for place in _places(part)]
