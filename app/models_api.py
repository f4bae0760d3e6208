"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from app.json_endpoint import json_response
from app.state import AppState


class Model(msgspec.Struct, tag_field="object", tag="model", kw_only=True):
    id: str
    created: int
    owned_by: str = "radish"
    root: str
    max_model_len: int
    """vLLM's: longest prompt plus output (tokens)."""


class ModelList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Model]


async def list_models(request: Request) -> Response:
    return json_response(ModelList(data=[_model(request.app.state.radish)]))


async def get_model(request: Request) -> Response:
    state: AppState = request.app.state.radish
    state.check_model(request.path_params["model"])
    return json_response(_model(state))


def _model(state: AppState) -> Model:
    return Model(
        id=state.model_name,
        created=state.started_at,
        root=state.engine.model_name,
        max_model_len=state.engine.max_context,
    )
