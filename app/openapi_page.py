"""GET /openapi.json, and GET /docs: the same as a page to read, without scripts."""

from __future__ import annotations

from functools import cache
from html import escape
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from app.openapi import document

_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}


async def openapi_json(request: Request) -> Response:
    return Response(_encoded(), media_type="application/json")


async def openapi_page(request: Request) -> Response:
    return HTMLResponse(_page(), headers=_HEADERS)


@cache
def _encoded() -> bytes:
    return msgspec.json.encode(document())


@cache
def _page() -> str:
    described = document()
    operations = "".join(
        _operation(path, method, op)
        for path, methods in described["paths"].items()
        for method, op in methods.items()
    )
    schemas = "".join(_schema(name, schema) for name, schema in described["components"]["schemas"].items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Radish API</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="/static/radish.svg" type="image/svg+xml">'
        '<link rel="stylesheet" href="/static/docs.css">'
        f"</head><body><main><h1>Radish API {escape(described['info']['version'])}</h1>"
        f'<p><a href="/openapi.json">openapi.json</a></p><h2>Operations</h2>{operations}'
        f"<h2>Types</h2>{schemas}</main></body></html>"
    )


def _operation(path: str, method: str, op: dict[str, Any]) -> str:
    rows = []
    if "requestBody" in op:
        rows.append(f"<dt>Body</dt><dd>{_contents(op['requestBody']['content'])}</dd>")
    headers = [parameter for parameter in op.get("parameters", ()) if parameter["in"] == "header"]
    rows += [f"<dt>{escape(h['name'])}</dt><dd>{escape(h['description'])}</dd>" for h in headers]
    for status, answer in op["responses"].items():
        told = _contents(answer["content"]) if "content" in answer else escape(answer["description"])
        rows.append(f"<dt>{escape(status)}</dt><dd>{told}</dd>")
    return (
        f"<section><h3><code>{method.upper()} {escape(path)}</code></h3>"
        f"<p>{escape(op['summary'])}</p><dl>{''.join(rows)}</dl></section>"
    )


def _contents(content: dict[str, Any]) -> str:
    return "<br>".join(
        f"{escape(kind)}: {_type(item.get('x-event-schema', item.get('schema', {})))}"
        for kind, item in content.items()
    )


def _schema(name: str, schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    rows = "".join(
        f"<dt><code>{escape(field)}</code>{' (required)' if field in required else ''}</dt>"
        f"<dd>{_type(member)} {escape(member.get('description', ''))}</dd>"
        for field, member in schema.get("properties", {}).items()
    )
    return (
        f'<section id="{escape(name)}"><h3>{escape(name)}</h3>'
        f"<p>{escape(schema.get('description', ''))}</p><dl>{rows}</dl></section>"
    )


def _type(schema: dict[str, Any]) -> str:
    """A schema in a few words, with links to the types it names."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(f"<code>{escape(msgspec.json.encode(v).decode())}</code>" for v in schema["enum"])
    if schema.get("type") == "array":
        return f"array of {_type(schema.get('items', {}))}"
    bounds = [
        f"{sign} {schema[key]}"
        for key, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"))
        if key in schema and abs(schema[key]) < 1 << 31
    ]
    return escape(" ".join([schema.get("type", "anything"), *bounds]))
