"""POST /tokenize and /detokenize, GET /tokenizer_info and /version, in vLLM's forms."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from app.errors import bad_request
from app.json_endpoint import json_response
from app.messages import Messages
from app.protocol import ChatRequest, Tool
from app.sampling import check_ids
from app.state import AppState
from app.tools import plan_answer
from engine.tokenizer import Tokenizer


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """Body of POST /tokenize: a text, or a conversation as the chat template writes it."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    """Of a text: add what the model wants around it; true if absent."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Tool] | None = None
    return_token_strs: bool | None = None


class Tokens(msgspec.Struct, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """Body of POST /detokenize."""

    tokens: list[Annotated[int, msgspec.Meta(ge=0)]]
    model: str | None = None


class Detokenized(msgspec.Struct):
    prompt: str


class TokenizerInfo(msgspec.Struct, kw_only=True):
    tokenizer_class: str = "Tokenizer"
    vocab_size: int
    max_model_len: int
    bos_token: str | None
    eos_token: str | None
    unk_token: str | None
    pad_token: str | None
    bos_token_id: int | None
    eos_token_ids: list[int]
    special_tokens: dict[str, int]
    chat_template: str | None


class Version(msgspec.Struct):
    version: str


async def tokenize(state: AppState, body: bytes) -> Tokens:
    """The ids a prompt has when it is sent to be completed."""
    request = await state.decode(body, TokenizeRequest)
    if request.model is not None:
        state.check_model(request.model)
    if (request.prompt is None) == (request.messages is None):
        raise bad_request("Either prompt or messages is needed.", "prompt")
    ids = await _ids(state, request)
    return Tokens(
        count=len(ids),
        max_model_len=state.engine.max_context,
        tokens=ids,
        token_strs=await state.in_thread(_texts, state.engine.tokenizer, ids)
        if request.return_token_strs
        else UNSET,
    )


async def _ids(state: AppState, request: TokenizeRequest) -> list[int]:
    if request.messages is None:
        return await state.encode_text(
            request.prompt or "", add_special=request.add_special_tokens is not False
        )
    chat = ChatRequest(
        model=state.model_name,
        messages=request.messages,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        chat_template_kwargs=request.chat_template_kwargs,
        tools=request.tools,
    )
    return await state.encode_chat(chat, plan_answer(chat).tools)


async def detokenize(state: AppState, body: bytes) -> Detokenized:
    """The text of ids, special tokens among it."""
    request = await state.decode(body, DetokenizeRequest)
    if request.model is not None:
        state.check_model(request.model)
    tokenizer = state.engine.tokenizer
    return Detokenized(await state.in_thread(_text, tokenizer, request.tokens, state.engine.vocab_size))


async def tokenizer_info(request: Request) -> Response:
    state: AppState = request.app.state.radish
    tokenizer = state.engine.tokenizer
    return json_response(
        TokenizerInfo(
            vocab_size=tokenizer.vocab_size,
            max_model_len=state.engine.max_context,
            bos_token=tokenizer.named_tokens.get("bos_token"),
            eos_token=tokenizer.named_tokens.get("eos_token"),
            unk_token=tokenizer.named_tokens.get("unk_token"),
            pad_token=tokenizer.named_tokens.get("pad_token"),
            bos_token_id=tokenizer.bos_id,
            eos_token_ids=sorted(tokenizer.eos_ids),
            special_tokens=tokenizer.special_tokens,
            chat_template=tokenizer.chat_template,
        )
    )


async def show_version(request: Request) -> Response:
    return json_response(Version(version("radish-serve")))


def _text(tokenizer: Tokenizer, ids: list[int], vocab_size: int) -> str:
    check_ids("tokens", ids, vocab_size)
    data = b"".join(tokenizer.bytes_of(token_id, skip_special=False) for token_id in ids)
    text = data.decode("utf-8", "replace")
    return text.removeprefix(" ") if tokenizer.strips_leading_space else text


def _texts(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """Of each id by itself."""
    spelled = (tokenizer.bytes_of(token_id, skip_special=False) for token_id in ids)
    return [data.decode("utf-8", "backslashreplace") for data in spelled]
