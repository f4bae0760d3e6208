"""Random schemas over few names and values, and random instances for them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import permutations, product
from typing import Any

NAMES = ["a", "b", "c"]
SCALARS: list[Any] = [None, True, False, 0, 1, 2, 3, -1, 1.5, 0.5, 10, "", "a", "ab", "abc", "b1"]


class Schemas:
    """Draws schemas and instances from one source of randomness."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self._keywords: list[Callable[[int], dict[str, Any]]] = [
            self._type,
            self._values,
            self._numbers,
            self._strings,
            self._arrays,
            self._counted_arrays,
            self._properties,
            self._properties,
            self._other_properties,
            self._counted_properties,
            self._dependent,
            self._logic,
            self._logic,
            self._conditional,
            self._reference,
            self._unevaluated,
        ]

    def document(self) -> dict[str, Any]:
        """A whole schema, with two definitions, of which one recurs."""
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **self.schema(3)}
        recurring = {"a": {"$ref": "#/$defs/Y"}, "b": self.schema(1)}
        needed = {"required": ["b"]} if self.rng.random() < 0.5 else {}
        schema["$defs"] = {"X": {"maxLength": 2}, "Y": {"type": "object", "properties": recurring, **needed}}
        return schema

    def schema(self, depth: int) -> dict[str, Any]:
        if depth == 0 or self.rng.random() < 0.05:
            types = ["integer", "string", "null", "boolean", "number"]
            return self.rng.choice([{}, {"type": self.rng.choice(types)}, {"const": self.scalar()}])
        schema: dict[str, Any] = {}
        for _ in range(self.rng.choice([1, 1, 2, 2, 3])):
            schema.update(self.rng.choice(self._keywords)(depth - 1))
        return schema

    def scalar(self) -> Any:
        return self.rng.choice(SCALARS)

    def instance(self, depth: int = 2) -> Any:
        kind = self.rng.random()
        if depth == 0 or kind < 0.45:
            return self.scalar()
        if kind < 0.7:
            return [self.instance(depth - 1) for _ in range(self.rng.randrange(4))]
        names = self.rng.sample([*NAMES, "x_d"], self.rng.randrange(4))
        return {name: self.instance(depth - 1) for name in names}

    def _type(self, depth: int) -> dict[str, Any]:
        types = ["integer", "number", "string", "array", "object", "boolean", ["object", "array"]]
        return {"type": self.rng.choice([*types, ["string", "null"]])}

    def _values(self, depth: int) -> dict[str, Any]:
        if self.rng.random() < 0.5:
            return {"const": self.instance(1)}
        return {"enum": [self.instance(1) for _ in range(self.rng.randint(1, 3))]}

    def _numbers(self, depth: int) -> dict[str, Any]:
        keyword = self.rng.choice(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])
        return {keyword: self.rng.choice([0, 1, 2, 1.5, -1])}

    def _strings(self, depth: int) -> dict[str, Any]:
        if self.rng.random() < 0.5:
            return {self.rng.choice(["minLength", "maxLength"]): self.rng.randrange(4)}
        return {"pattern": self.rng.choice(["^a", "b", "^[a-z]+$", "^$|c$", "[0-9]"])}

    def _arrays(self, depth: int) -> dict[str, Any]:
        if self.rng.random() < 0.5:
            return {"items": self.schema(depth)}
        return {"prefixItems": [self.schema(depth) for _ in range(self.rng.randint(1, 2))]}

    def _counted_arrays(self, depth: int) -> dict[str, Any]:
        if self.rng.random() < 0.4:
            return {self.rng.choice(["minItems", "maxItems"]): self.rng.randrange(4)}
        if self.rng.random() < 0.3:
            return {"uniqueItems": True, "items": {"type": ["integer", "string", "null"]}}
        bounds = {self.rng.choice(["minContains", "maxContains"]): self.rng.randrange(3)}
        return {"contains": self.schema(depth), **(bounds if self.rng.random() < 0.4 else {})}

    def _properties(self, depth: int) -> dict[str, Any]:
        names = self.rng.sample(NAMES, self.rng.randint(1, 3))
        required = self.rng.sample(NAMES, self.rng.randint(0, 2))
        return {"properties": {name: self.schema(depth) for name in names}, "required": required}

    def _other_properties(self, depth: int) -> dict[str, Any]:
        if self.rng.random() < 0.5:
            return {"additionalProperties": self.rng.choice([False, self.schema(depth)])}
        return {"patternProperties": {self.rng.choice(["^a", "^x_", "b|c"]): self.schema(depth)}}

    def _counted_properties(self, depth: int) -> dict[str, Any]:
        if self.rng.random() < 0.5:
            return {self.rng.choice(["minProperties", "maxProperties"]): self.rng.randrange(4)}
        names = [{"pattern": "^[a-c]$"}, {"enum": ["a", "b"]}, {"maxLength": 2}, {"not": {"const": "a"}}]
        return {"propertyNames": self.rng.choice(names)}

    def _dependent(self, depth: int) -> dict[str, Any]:
        name = self.rng.choice(NAMES)
        if self.rng.random() < 0.5:
            return {"dependentRequired": {name: self.rng.sample(NAMES, self.rng.randint(1, 2))}}
        return {"dependentSchemas": {name: self.schema(depth)}}

    def _logic(self, depth: int) -> dict[str, Any]:
        keyword = self.rng.choice(["allOf", "anyOf", "oneOf", "not"])
        if keyword == "not":
            return {"not": self.schema(depth)}
        return {keyword: [self.schema(depth) for _ in range(self.rng.randint(1, 3))]}

    def _conditional(self, depth: int) -> dict[str, Any]:
        branches = [keyword for keyword in ("then", "else") if self.rng.random() < 0.7]
        return {"if": self.schema(depth), **{keyword: self.schema(depth) for keyword in branches}}

    def _reference(self, depth: int) -> dict[str, Any]:
        return {"$ref": self.rng.choice(["#/$defs/X", "#/$defs/Y"])}

    def _unevaluated(self, depth: int) -> dict[str, Any]:
        keyword = self.rng.choice(["unevaluatedProperties", "unevaluatedItems"])
        return {keyword: self.rng.choice([False, {"type": "integer"}])}


def orders(instance: Any) -> Iterator[Any]:
    """The instance with its properties in every order."""
    if isinstance(instance, dict):
        for pairs in permutations(instance.items()):
            for values in product(*(list(orders(value)) for _, value in pairs)):
                yield dict(zip((name for name, _ in pairs), values, strict=True))
    elif isinstance(instance, list):
        yield from map(list, product(*(list(orders(item)) for item in instance)))
    else:
        yield instance
