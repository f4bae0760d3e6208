"""Chat templates: a conversation to the prompt a model was trained on.

Templates are Jinja as `transformers` runs it (`apply_chat_template`): a sandbox without side effects,
trimmed blocks, and the same few functions.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from app.quoting import Quotes, SpecialTexts
from engine.models.errors import ModelError
from engine.tokenizer import Tokenizer

_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_NONE = "{{ raise_exception('this model has no chat template, so it can only complete text') }}"
_RESERVED = frozenset({"messages", "tools", "add_generation_prompt"})


class TemplateError(ValueError):
    """A conversation that the model's template refuses or cannot render."""


class TemplateArgumentError(TemplateError):
    """A variable that a client may not set, for the conversation itself sets it; `name` is the variable."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name!r} is a field of the request, so it cannot be one of chat_template_kwargs")
        self.name = name


class ChatTemplate:
    """The chat template of one model; immutable, safe from many threads at once.

    A model without a template gets ChatML if its tokenizer has ChatML's `<|im_start|>` and `<|im_end|>`;
    any other refuses every conversation.

    Where tools are given to a template that never mentions them, a system text lists them as JSON and
    says how to call them (appended to the conversation's own system message, if it has one); earlier
    calls are then written into the assistant's content in that form, unless the template reads them.

    Raises:
        ModelError: the template is not valid Jinja.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        source = tokenizer.chat_template
        if source is None:
            source = _CHATML if {"<|im_start|>", "<|im_end|>"} <= tokenizer.special_tokens.keys() else _NONE
        environment = _environment()
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(f"field 'chat_template', line {error.lineno}: {error.message}") from error
        self._tokenizer = tokenizer
        self._special = SpecialTexts(tokenizer)
        self._reads_tools = any(name.name == "tools" for name in tree.find_all(nodes.Name))
        self._reads_calls = _mentions(tree, "tool_calls")

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt as text.

        Args:
            messages: plain, `content` a string.
            tools: as in the OpenAI API; None and [] are the same.
            add_generation_prompt: end with what begins the assistant's answer.
            continue_final_message: end within the last message instead, for the model to go on with.
            kwargs: further variables of the template (`chat_template_kwargs`).

        Raises:
            TemplateArgumentError: a variable in `kwargs` that is the conversation's own.
            TemplateError: with the template's own message where it refuses the conversation.
        """
        quotes = Quotes(self._special)
        text = self._render(
            quotes,
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            kwargs=kwargs,
        )
        return quotes.unquote(text)

    def encode(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        kwargs: Mapping[str, Any] | None = None,
        check: Callable[[str], None] = lambda text: None,
    ) -> list[int]:
        """The prompt as token ids; arguments and errors as for `render`.

        `check` may refuse the text, by raising, before it is tokenised.

        Special tokens are those the template writes (the beginning of sequence too: none is added).
        The text of one within messages, tools or kwargs stays text: it cannot end a turn.
        """
        quotes = Quotes(self._special)
        text = self._render(
            quotes,
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            kwargs=kwargs,
        )
        check(text)
        return quotes.encode(text, self._tokenizer)

    def _render(
        self,
        quotes: Quotes,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        kwargs: Mapping[str, Any] | None,
    ) -> str:
        """The prompt with marks in it."""
        variables = quotes.quote(dict(kwargs or {}))
        if reserved := _RESERVED & variables.keys():
            raise TemplateArgumentError(min(reserved))
        messages, tools = quotes.quote(messages), quotes.quote(tools) or None
        if not self._reads_calls:
            messages = [_with_calls_as_text(message) for message in messages]
        if tools and not self._reads_tools:
            messages = _with_tools_as_text(messages, tools)
        cut = quotes.mark("")
        if continue_final_message:
            messages[-1] = _with_cut(messages[-1], cut)
        try:
            text = self._template.render(
                {
                    **self._tokenizer.named_tokens,
                    **variables,
                    "messages": messages,
                    "tools": tools,
                    "add_generation_prompt": add_generation_prompt and not continue_final_message,
                }
            )
        except Exception as error:
            raise TemplateError(quotes.unquote(str(error))) from error
        return _cut_off(text, cut) if continue_final_message else text


def _with_cut(message: dict[str, Any], cut: str) -> dict[str, Any]:
    """The message, its content followed by a mark and a space (so that trimming can be told)."""
    return {**message, "content": f"{message.get('content') or ''}{cut} "}


def _cut_off(text: str, cut: str) -> str:
    """What comes before the mark; trimmed where the template trims contents."""
    before, found, after = text.rpartition(cut)
    if not found:
        raise TemplateError("the chat template does not show the last message, so it cannot be continued")
    return before if after.startswith(" ") else before.rstrip()


def _with_calls_as_text(message: dict[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not calls:
        return message
    functions = [call["function"] for call in calls]
    text = _to_json([{"name": f["name"], "arguments": f["arguments"]} for f in functions])
    return {**message, "content": "\n".join(filter(None, (message.get("content"), text)))}


def _with_tools_as_text(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    text = (
        "You can call these functions, one described by each line of JSON:\n"
        + "\n".join(_to_json(tool.get("function", tool)) for tool in tools)
        + "\nTo call functions, answer with nothing but a JSON array that has one object for each call: "
        '[{"name": "<name of the function>", "arguments": {<its arguments>}}]'
    )
    if messages and messages[0].get("role") == "system":
        system = "\n\n".join(filter(None, (messages[0].get("content"), text)))
        return [{**messages[0], "content": system}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _mentions(tree: nodes.Template, name: str) -> bool:
    """Whether the template reads a field of this name, as an attribute or as a key."""
    return any(node.attr == name for node in tree.find_all(nodes.Getattr)) or any(
        node.value == name for node in tree.find_all(nodes.Const)
    )


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's text for training; here it is plain."""

    tags = {"generation"}  # noqa: RUF012 (declared so by jinja2)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
