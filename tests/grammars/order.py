"""Instances with their properties in the order in which schemas declare them."""

from __future__ import annotations

from typing import Any


def as_declared(instance: Any, schema: Any) -> Any:
    """`instance` with every object's properties in the order their names first appear in `schema`."""
    names: dict[str, int] = {}
    _collect(schema, names)
    return _sorted(instance, names)


def _collect(schema: Any, names: dict[str, int]) -> None:
    if isinstance(schema, list):
        for part in schema:
            _collect(part, names)
    elif isinstance(schema, dict):
        for keyword, value in schema.items():
            listed = value if keyword in ("properties", "const", "required") else ()
            for name in listed if isinstance(listed, dict | list) else ():
                if isinstance(name, str):
                    names.setdefault(name, len(names))
            for one in value if keyword == "enum" and isinstance(value, list) else ():
                for name in one if isinstance(one, dict) else ():
                    names.setdefault(name, len(names))
            _collect(value, names)


def _sorted(instance: Any, names: dict[str, int]) -> Any:
    if isinstance(instance, list):
        return [_sorted(item, names) for item in instance]
    if isinstance(instance, dict):
        ordered = sorted(instance.items(), key=lambda pair: names.get(pair[0], len(names)))
        return {name: _sorted(value, names) for name, value in ordered}
    return instance
