"""Every parameter that people's clients know is known here too: honoured, or refused by its name."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
import pytest
from openai.resources.chat.completions import Completions as Chat
from openai.resources.completions import Completions
from openai.resources.embeddings import Embeddings
from openai.resources.responses import Responses
from openai.types.chat import ChatCompletionStreamOptionsParam

from app.embeddings import EmbeddingsRequest
from app.protocol import ChatRequest, CompletionRequest, SamplingFields, StreamOptions
from app.responses_wire import ResponsesRequest
from tests.app.harness import Served, error_of

OF_THE_TRANSPORT = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
OF_VLLM_AND_SGLANG = {
    *(
        "top_k",
        "min_p",
        "repetition_penalty",
        "min_tokens",
        "ignore_eos",
        "stop_token_ids",
        "prompt_logprobs",
    ),
    *(
        "include_stop_str_in_output",
        "skip_special_tokens",
        "logit_bias",
        "n",
        "seed",
        "priority",
        "cache_salt",
    ),
    *("allowed_token_ids", "bad_words", "truncate_prompt_tokens", "return_token_ids", "structured_outputs"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_decoding_backend"),
    *("spaces_between_special_tokens", "best_of", "use_beam_search", "length_penalty", "regex", "ebnf"),
    *("no_stop_trim", "stop_regex", "lora_path", "session_params", "custom_logit_processor"),
}
OF_THEIR_CHAT = {
    *(
        "continue_final_message",
        "add_generation_prompt",
        "chat_template_kwargs",
        "chat_template",
        "documents",
    ),
    *("add_special_tokens", "echo", "mm_processor_kwargs", "separate_reasoning", "stream_reasoning"),
}


@pytest.mark.parametrize(
    ("method", "type_"),
    [
        (Chat.create, ChatRequest),
        (Completions.create, CompletionRequest),
        (Responses.create, ResponsesRequest),
        (Embeddings.create, EmbeddingsRequest),
    ],
)
def test_every_parameter_of_openais_client_is_known(method: Any, type_: type[msgspec.Struct]) -> None:
    parameters = inspect.signature(method).parameters.keys() - OF_THE_TRANSPORT
    assert parameters <= set(type_.__struct_fields__)


def test_every_option_of_a_stream_is_known() -> None:
    options = ChatCompletionStreamOptionsParam.__annotations__.keys()
    assert options <= set(StreamOptions.__struct_fields__)


def test_the_extras_of_vllm_and_sglang_are_known() -> None:
    assert set(SamplingFields.__struct_fields__) >= OF_VLLM_AND_SGLANG
    assert set(ChatRequest.__struct_fields__) >= OF_THEIR_CHAT | {"max_completion_tokens", "top_logprobs"}
    assert set(CompletionRequest.__struct_fields__) >= {"echo", "suffix", "logprobs", "add_special_tokens"}


@pytest.mark.parametrize(
    ("name", "refused", "accepted"),
    [
        ("service_tier", "priority", "default"),
        ("prompt_cache_retention", "24h", "in_memory"),
        ("prompt_cache_options", {"mode": "explicit"}, {}),
        ("separate_reasoning", False, True),
        ("stream_reasoning", False, True),
        ("custom_logit_processor", "x", None),
        ("lora_path", "x", None),
        ("session_params", {}, None),
        ("no_stop_trim", True, False),
        ("stop_regex", "a", []),
        ("samplers", ["top_k"], None),
        ("n_probs", 5, 0),
        ("dynatemp_range", 0.5, 0),
        ("top_n_sigma", 2, -1),
        ("timings_per_token", True, False),
        ("media_io_kwargs", {"video": {}}, {}),
    ],
)
async def test_values_that_cannot_be_honoured(served: Served, name: str, refused: Any, accepted: Any) -> None:
    response = await served.chat(max_tokens=1, **{name: refused})
    assert (response.status_code, error_of(response)["param"]) == (400, name)
    assert error_of(response)["code"] == "unsupported_parameter"
    assert (await served.chat(max_tokens=1, **{name: accepted})).status_code == 200


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("service_tier", "flex"),
        ("prompt_cache_retention", "24h"),
        ("stream_options", {"include_obfuscation": True}),
        ("context_management", [{"type": "compaction"}]),
        ("background_options", {"x": 1}),
        ("access_programs", {}),
        ("moderation", {}),
        ("image", {}),
        ("conversation", "c"),
    ],
)
async def test_responses_refuse_by_name(served: Served, name: str, refused: Any) -> None:
    response = await served.post("responses", {"model": "fake", "input": "hi", name: refused})
    assert (response.status_code, error_of(response)["param"]) == (400, name)


async def test_a_stream_is_not_padded(served: Served) -> None:
    for wanted, status in ((True, 400), (False, 200)):
        options = {"include_obfuscation": wanted}
        response = await served.chat(max_tokens=1, stream=True, stream_options=options)
        assert response.status_code == status
        if status == 400:
            assert error_of(response)["param"] == "stream_options.include_obfuscation"


async def test_labels_say_nothing(served: Served) -> None:
    labels = {"user": "u", "safety_identifier": "s", "prompt_cache_key": "k", "metadata": {"a": "b"}}
    plain = (await served.chat(max_tokens=4)).json()["choices"]
    assert (await served.chat(max_tokens=4, **labels)).json()["choices"] == plain
    answer = await served.post("responses", {"model": "fake", "input": "hi", "store": False, **labels})
    assert (answer.status_code, answer.json()["metadata"]) == (200, {"a": "b"})
