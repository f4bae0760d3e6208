"""Instances with their properties in the order in which schemas declare them."""

from __future__ import annotations

from typing import Any

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_KEPT_APART = ("$defs", "definitions")


def as_declared(instance: Any, schema: Any) -> Any:
    """`instance` with every object's properties in the order their names first appear in `schema`.

    What is referred to appears where the reference stands.
    """
    order = _Order(schema)
    return _sorted(instance, order.names)


class _Order:
    def __init__(self, schema: Any) -> None:
        self.names: dict[str, int] = {}
        self._named: dict[str, Any] = {}
        self._root = schema
        self._done: set[int] = set()
        self._find_named(schema)
        self._collect(schema)
        self._collect_apart(schema)

    def _find_named(self, schema: Any) -> None:
        for part in (
            schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
        ):
            self._find_named(part)
        if isinstance(schema, dict):
            for keyword in ("$id", "$anchor", "$dynamicAnchor"):
                if isinstance(schema.get(keyword), str):
                    self._named[schema[keyword]] = schema

    def _collect(self, schema: Any) -> None:
        if id(schema) in self._done:
            return
        self._done.add(id(schema))
        if isinstance(schema, list):
            for part in schema:
                self._collect(part)
        elif isinstance(schema, dict):
            for keyword, value in schema.items():
                self._note(keyword, value)
                if keyword in _REFERENCES and isinstance(value, str):
                    self._collect(self._target(value))
                elif keyword not in _KEPT_APART:
                    self._collect(value)

    def _note(self, keyword: str, value: Any) -> None:
        listed = value if keyword in ("properties", "const", "required") else ()
        for name in listed if isinstance(listed, dict | list) else ():
            if isinstance(name, str):
                self.names.setdefault(name, len(self.names))
        for one in value if keyword == "enum" and isinstance(value, list) else ():
            for name in one if isinstance(one, dict) else ():
                self.names.setdefault(name, len(self.names))

    def _collect_apart(self, schema: Any) -> None:
        """What was not referred to, or not in a way that is understood here."""
        for part in (
            schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
        ):
            self._collect(part)
            self._collect_apart(part)

    def _target(self, reference: str) -> Any:
        if reference.startswith("#/"):
            value = self._root
            for key in reference[2:].split("/"):
                name = key.replace("~1", "/").replace("~0", "~")
                value = value.get(name) if isinstance(value, dict) else None
            return value
        return self._named.get(reference.removeprefix("#"))


def _sorted(instance: Any, names: dict[str, int]) -> Any:
    if isinstance(instance, list):
        return [_sorted(item, names) for item in instance]
    if isinstance(instance, dict):
        ordered = sorted(instance.items(), key=lambda pair: names.get(pair[0], len(names)))
        return {name: _sorted(value, names) for name, value in ordered}
    return instance
