"""POST /v1/embeddings: the served model's hidden state at each input's last token.

The last token's, after the final norm: it is the only one that has seen the whole input, and what is
before it may come from the prefix cache. Vectors have length 1, shortened ones too.
"""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

import msgspec

from app.errors import bad_request
from app.generation import Generation, Usage, check_room
from app.prompts import Given, encoded, listed
from app.protocol import Tokens, Unsupported, neutral, refuse_unsupported
from app.replies import Identity, Reading
from app.slices import json_list
from app.state import AppState
from engine.batch import Float32
from engine.embedding import unit_vector
from engine.params import SamplingParams
from engine.request import GenerateRequest, Request


class EmbeddingsRequest(msgspec.Struct, kw_only=True):
    """Body of POST /v1/embeddings."""

    model: str
    input: Given
    """A text, texts, token ids or lists of them."""
    encoding_format: Literal["float", "base64"] | None = None
    """base64: little-endian float32; float if absent."""
    dimensions: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Keep the first so many numbers of each vector, and make its length 1 again."""
    user: str | None = None
    truncate_prompt_tokens: Tokens | None = None
    """Keep that many of an input's last tokens."""
    add_special_tokens: bool | None = None
    """Add what the model wants around a text, such as BOS; true if absent."""
    cache_salt: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    priority: Annotated[int, msgspec.Meta(ge=-1000, le=1000)] | None = None

    messages: Unsupported = None
    input_type: Unsupported = None
    embed_dtype: Annotated[Any, neutral('"float32"')] = None
    normalize: Annotated[Any, neutral("true")] = None


class Embedding(msgspec.Struct, tag_field="object", tag="embedding", kw_only=True):
    index: int
    embedding: list[float] | str


class Embeddings(msgspec.Struct, tag_field="object", tag="list", kw_only=True):
    id: str
    created: int
    model: str
    data: list[Embedding]
    usage: Usage


async def create_embeddings(state: AppState, body: bytes) -> Reading:
    """Check, prepare and submit all inputs of one request.

    Raises:
        ApiError: it is refused; nothing of it is left in the engine.
    """
    request = await state.decode(body, EmbeddingsRequest)
    state.check_model(request.model)
    refuse_unsupported(request)
    check_room(state.engine, priority=request.priority or 0)
    width = state.engine.hidden_size
    if request.dimensions is not None and request.dimensions > width:
        raise bad_request(f"The model has {width} dimensions.", "dimensions")
    prompts = [
        await encoded(
            state,
            given,
            field="input",
            add_special=request.add_special_tokens,
            keep=request.truncate_prompt_tokens,
        )
        for given in listed(state, request.input, field="input", most=state.config.max_waiting)
    ]
    requests = [
        GenerateRequest(
            prompt=prompt,
            params=SamplingParams(max_tokens=0),
            purpose="embed",
            namespace=request.cache_salt or "",
            priority=request.priority or 0,
        )
        for prompt in prompts
    ]
    identity = Identity.new("embd-", state.model_name)
    generation = await Generation.submitted(
        state.engine, requests, request_id=identity.id, prompt_field="input"
    )

    async def answer() -> Embeddings:
        return Embeddings(
            id=identity.id,
            created=identity.created,
            model=identity.model,
            data=await json_list(
                Embedding(index=index, embedding=_written(request, _vector(handle, request.dimensions)))
                for index, handle in enumerate(generation.requests)
            ),
            usage=generation.usage(),
        )

    return Reading(generation, answer)


def _vector(handle: Request, dimensions: int | None) -> Float32:
    assert handle.embedding is not None
    return unit_vector(handle.embedding, dimensions)


def _written(request: EmbeddingsRequest, vector: Float32) -> list[float] | str:
    if request.encoding_format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    numbers: list[float] = vector.tolist()
    return numbers
