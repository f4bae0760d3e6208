"""GET /v1/requests/{id}: what happened to a request that runs or ended a short while ago."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from app.caller import current_caller
from app.errors import ApiError
from app.json_endpoint import json_response
from app.request_report import report
from app.state import AppState


async def get_request(request: Request) -> Response:
    """By the id of the answer; for others than its key's holder it does not exist."""
    state: AppState = request.app.state.radish
    id_ = request.path_params["id"]
    found = report(id_, state.engine.views(current_caller.get().tenant))
    if found is None:
        raise ApiError(404, f"Nothing is known of a request {id_!r}.", param="id", code="request_not_found")
    return json_response(found)
