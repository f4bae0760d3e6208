"""Log-probabilities on the wire: OpenAI's chat form and its completions form."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import msgspec

from engine.stream import TokenLogprob
from engine.tokenizer import Tokenizer

_FLOOR = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[ChatLogprob]


class CompletionLogprobs(msgspec.Struct):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


def chat_logprobs(tokenizer: Tokenizer, entries: Sequence[TokenLogprob]) -> ChatLogprobs:
    """One entry a sampled token, the one that ended the choice included."""
    return ChatLogprobs([_chat_logprob(tokenizer, entry) for entry in entries])


def _chat_logprob(tokenizer: Tokenizer, entry: TokenLogprob) -> ChatLogprob:
    top = [TopLogprob(*_describe(tokenizer, token_id, logprob)) for token_id, logprob in entry.top]
    return ChatLogprob(*_describe(tokenizer, entry.token_id, entry.logprob), top)


def _describe(tokenizer: Tokenizer, token_id: int, logprob: float) -> tuple[str, float, list[int]]:
    data = tokenizer.bytes_of(token_id, skip_special=False)
    return _text(data), _finite(logprob), list(data)


def _text(data: bytes) -> str:
    """A token's bytes as text; those that are no characters by themselves are written as escapes."""
    return data.decode("utf-8", "backslashreplace")


def _finite(logprob: float) -> float:
    return logprob if logprob > _FLOOR else _FLOOR  # NaN too


class CompletionLogprobsWriter:
    """Writes the completions form for one choice; offsets count the characters of its text."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0

    def write(self, entries: Sequence[TokenLogprob]) -> CompletionLogprobs:
        """The next tokens of the choice."""
        written = CompletionLogprobs([], [], [], [])
        for entry in entries:
            written.tokens.append(self._token(entry.token_id))
            written.token_logprobs.append(_finite(entry.logprob))
            written.top_logprobs.append(self._top(entry))
            written.text_offset.append(self._offset)
            shown = self._tokenizer.bytes_of(entry.token_id, skip_special=self._skip_special)
            self._offset += len(self._utf8.decode(shown))
        return written

    def _token(self, token_id: int) -> str:
        return _text(self._tokenizer.bytes_of(token_id, skip_special=False))

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        """The likeliest tokens and the sampled one. Of tokens with the same text the likeliest stands."""
        top: dict[str, float] = {}
        for token_id, logprob in (*entry.top, (entry.token_id, entry.logprob)):
            top.setdefault(self._token(token_id), _finite(logprob))
        return top
