"""The one configuration of a server: frozen, documented field by field; the command line is made from it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

_Meta = msgspec.Meta

_Origin = Annotated[
    str,
    _Meta(
        pattern=r"^(\*|null|[a-z][a-z0-9+.-]*://[^/\sA-Z]+)$",
        extra={"form": "an origin as browsers send it, such as https://example.org"},
    ),
]
_Url = Annotated[
    str,
    _Meta(pattern=r"^https?://[^/\s]", extra={"form": "a URL that begins with http:// or https://"}),
]
_Seconds = Annotated[float, _Meta(le=1e8, extra={"unit": "s"})]
"""Up to three years: far beyond, timers overflow."""


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set. `Meta.extra["unit"]` names the unit a number is in."""

    model: Annotated[
        str | None,
        _Meta(description="Directory of safetensors, or a GGUF file. Without it: the embedded SmolLM2-135M."),
    ] = None
    served_model_name: Annotated[
        str | None, _Meta(description="Name clients use. Without it: the model's own name.")
    ] = None
    host: Annotated[str, _Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, _Meta(ge=0, le=65535, description="Port to listen on; 0 picks a free one.")] = 8000
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        _Meta(description="Type of weights and KV. auto: bfloat16 where the processor computes in it."),
    ] = "auto"
    quantize: Annotated[
        Literal["none", "int8", "fp8", "int4", "gguf"],
        _Meta(
            description="int8: weights and activations in 8 bits, 64 to a scale, on a GPU a row; fp8 (e4m3): "
            "likewise, on a GPU only; int4: weights alone, rounded to 16 steps in blocks of 32, on a GPU "
            "only; gguf: the blocks of a GGUF file as they are (Q4_0, Q4_1, on a CPU Q8_0 too; there "
            "others in 8 bits and activations in int8)."
        ),
    ] = "none"
    kv_dtype: Annotated[
        Literal["auto", "bfloat16", "int8", "fp8"],
        _Meta(description="Type of KV alone. int8, and on a GPU fp8 (e4m3): half the memory of bfloat16."),
    ] = "auto"
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        _Meta(description="Where it runs. auto: a GPU if there is one."),
    ] = "auto"
    threads: Annotated[
        int, _Meta(ge=0, le=1024, description="Threads of the forward pass on a CPU; 0 takes one a core.")
    ] = 0
    exact: Annotated[
        bool,
        _Meta(description="Refuse to start where answers may depend on batch, cache and chunks."),
    ] = False
    page_size: Annotated[int, _Meta(ge=1, description="Tokens of one KV page.", extra={"unit": "tokens"})] = (
        16
    )
    kv_memory: Annotated[
        int,
        _Meta(
            ge=0,
            description="Memory of the KV pool; 0 takes a quarter of what is free, at most 4096.",
            extra={"unit": "MiB"},
        ),
    ] = 0
    max_context: Annotated[
        int,
        _Meta(
            ge=0,
            description="Longest prompt plus output; 0 takes the model's own limit.",
            extra={"unit": "tokens"},
        ),
    ] = 0
    max_batch_tokens: Annotated[
        int, _Meta(ge=1, description="Token budget of one step.", extra={"unit": "tokens"})
    ] = 512
    step_aim: Annotated[
        float,
        _Meta(
            ge=0,
            description="Longest step wanted while answers are decoded, as a multiple of one without "
            "prompts; those of more than four whole steps are cut to fit. 0: any.",
        ),
    ] = 1.8
    draft_tokens: Annotated[
        Annotated[int, _Meta(ge=0, le=64)] | None,
        _Meta(
            description="Tokens that a step may try ahead, guessed from what a text said before, while few "
            "sequences run; texts stay the same. With the native step of a CPU only, and there 7 if nothing "
            "is said.",
            extra={"unit": "tokens"},
        ),
    ] = None
    max_running: Annotated[
        int, _Meta(ge=1, description="Sequences that run at the same time.", extra={"unit": "sequences"})
    ] = 64
    max_waiting: Annotated[
        int, _Meta(ge=1, description="Sequences that may wait; beyond it 429.", extra={"unit": "sequences"})
    ] = 1024
    max_waiting_tokens: Annotated[
        int,
        _Meta(ge=1, description="Prompt tokens that may wait; beyond it 429.", extra={"unit": "tokens"}),
    ] = 262144
    queue_timeout: Annotated[
        _Seconds,
        _Meta(ge=0, description="Longest wait for the first step; 0: any. A header may ask for less."),
    ] = 0.0
    request_timeout: Annotated[
        _Seconds,
        _Meta(ge=0, description="Longest time until an answer's end; 0: any. A header may ask for less."),
    ] = 0.0
    priority_aging: Annotated[
        _Seconds,
        _Meta(gt=0, description="Waiting that makes up for one step of priority."),
    ] = 10.0
    prefix_cache: Annotated[bool, _Meta(description="Share the KV of equal prompt prefixes.")] = True
    grammar_timeout: Annotated[_Seconds, _Meta(gt=0, description="Longest compilation of one grammar.")] = 5.0
    grammar_cache: Annotated[
        int, _Meta(ge=1, description="Memory of cached compiled grammars.", extra={"unit": "MiB"})
    ] = 256
    max_body: Annotated[int, _Meta(ge=1, description="Largest request body.", extra={"unit": "MiB"})] = 8
    heartbeat: Annotated[_Seconds, _Meta(gt=0, description="Silence before a stream sends a comment.")] = 15.0
    keep_alive: Annotated[
        _Seconds, _Meta(gt=0, description="Idle time before a kept connection is closed.")
    ] = 75.0
    receive_timeout: Annotated[
        _Seconds,
        _Meta(gt=0, description="Longest time for a request's headers, and for its body."),
    ] = 60.0
    write_timeout: Annotated[
        _Seconds,
        _Meta(gt=0, description="Time a client may not read before it is dropped."),
    ] = 60.0
    resume_timeout: Annotated[
        _Seconds,
        _Meta(gt=0, description="Time a resumable stream is kept that nobody reads."),
    ] = 60.0
    step_timeout: Annotated[
        _Seconds,
        _Meta(gt=0, description="A step that takes longer is stuck: no new requests."),
    ] = 120.0
    drain_timeout: Annotated[
        _Seconds,
        _Meta(ge=0, description="Time running streams get to finish after SIGTERM."),
    ] = 30.0
    api_key: Annotated[
        tuple[str, ...] | None,
        _Meta(description="Keys that clients have to send one of; other users of this machine may see them."),
    ] = None
    api_key_file: Annotated[
        str | None,
        _Meta(description="File of such keys, one a line, with limits; read again when it changes."),
    ] = None
    open_metrics: Annotated[bool, _Meta(description="Answer /metrics without a key.")] = False
    share_prefixes: Annotated[
        bool, _Meta(description="Share cached prefixes between keys: who knows a text can time it.")
    ] = False
    tool_call_format: Annotated[
        Literal["auto", "json", "hermes", "llama3", "mistral"],
        _Meta(
            description="How the model writes calls; json reads Hermes' and Llama's forms too. auto: "
            "mistral where the chat template has [TOOL_CALLS], else json."
        ),
    ] = "auto"
    cors_origins: Annotated[
        tuple[_Origin, ...] | None,
        _Meta(description="Origins whose pages may ask this server, separated by commas; * for all."),
    ] = None
    show_prompts: Annotated[
        bool,
        _Meta(description="Show how cached prompts begin to whoever opens the live page."),
    ] = False
    trace_endpoint: Annotated[
        _Url | None,
        _Meta(description="URL that takes OpenTelemetry traces, as http://127.0.0.1:4318/v1/traces."),
    ] = None
    log_format: Annotated[
        Literal["text", "json"], _Meta(description="json: one object a line, with request ids.")
    ] = "text"
    log_prompts: Annotated[bool, _Meta(description="Log the prompts of each request.")] = False
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], _Meta(description="Least severe message to log.")
    ] = "info"
