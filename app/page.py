"""GET /: the page to try the model on and to watch the engine with. Static files, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from app.errors import ApiError
from app.state import AppState
from app.structured import FieldConstraint
from grammars.spec import Constraint

_FOLDER = Path(__file__).with_name("static")

_HEADERS: Mapping[str, str] = {
    # Nothing is loaded from or sent to another server, and nobody can frame the page.
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    # A newer server has a newer page; unchanged files cost a 304.
    "Cache-Control": "no-cache",
}


class SchemaCheck(msgspec.Struct):
    """Body of POST /page/schema."""

    schema: dict[str, object] | bool


class SchemaVerdict(msgspec.Struct):
    """`refusal` is what a chat request with the schema would be told; null: it would be taken."""

    refusal: str | None


def page_routes() -> list[BaseRoute]:
    """The page, its files, and the check behind the light of its schema editor."""
    return [
        Route("/", _page),
        Route("/page/schema", _check_schema, methods=["POST"]),
        Mount("/static", _Files(directory=_FOLDER)),
    ]


async def _page(request: Request) -> Response:
    return FileResponse(_FOLDER / "index.html", headers=_HEADERS)


async def _check_schema(request: Request) -> Response:
    state: AppState = request.app.state.radish
    state.check_ready()
    body = await state.decode(await state.read_body(request), SchemaCheck)
    verdict = SchemaVerdict(None)
    try:
        await state.compile(FieldConstraint("schema", Constraint.json_schema(body.schema)))
    except ApiError as error:
        verdict.refusal = error.detail.message
    return Response(msgspec.json.encode(verdict), media_type="application/json")


class _Files(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(_HEADERS)
        return response
