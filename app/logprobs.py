"""Log-probabilities on the wire: OpenAI's chat form and its completions form."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

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
    token_logprobs: list[float | None]
    """null for the first token of an echoed prompt, which nothing comes before."""
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]

    @classmethod
    def joined(cls, parts: Sequence[CompletionLogprobs]) -> CompletionLogprobs:
        whole = cls([], [], [], [])
        for part in parts:
            whole.tokens += part.tokens
            whole.token_logprobs += part.token_logprobs
            whole.top_logprobs += part.top_logprobs
            whole.text_offset += part.text_offset
        return whole


class PromptLogprob(msgspec.Struct):
    logprob: float
    rank: int | None
    """1 for the likeliest; null where it is not among those asked for."""
    decoded_token: str


PromptLogprobs = list[dict[int, PromptLogprob] | None]
"""vLLM's: of each token of the prompt but the first, its id and the likeliest ids."""


def prompt_logprobs(tokenizer: Tokenizer, entries: Sequence[TokenLogprob], num_top: int) -> PromptLogprobs:
    written: PromptLogprobs = [None]
    for entry in entries:
        top = [(rank, *pair) for rank, pair in enumerate(entry.top[:num_top], 1)]
        known = {id_: PromptLogprob(_finite(value), rank, _spell(tokenizer, id_)) for rank, id_, value in top}
        own = PromptLogprob(_finite(entry.logprob), None, _spell(tokenizer, entry.token_id))
        written.append({entry.token_id: own} | known)
    return written


def _spell(tokenizer: Tokenizer, token_id: int) -> str:
    return _text(tokenizer.bytes_of(token_id, skip_special=False))


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

    def write_prompt(
        self, ids: Sequence[int], text: str, entries: Sequence[TokenLogprob], num_top: int
    ) -> CompletionLogprobs:
        """The tokens of an echoed prompt, `text`; `entries` are of all but the first."""
        written = CompletionLogprobs([], [], [], [])
        utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for token_id, entry in zip(ids, (None, *entries), strict=True):
            written.tokens.append(self._token(token_id))
            written.token_logprobs.append(None if entry is None else _finite(entry.logprob))
            top = None if entry is None else self._top(replace(entry, top=entry.top[:num_top]))
            written.top_logprobs.append(top)
            written.text_offset.append(self._offset)
            self._offset += _shown(utf8.decode(self._bytes(token_id)), text, self._offset)
        self._offset = len(text)
        return written

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

    def _bytes(self, token_id: int) -> bytes:
        return self._tokenizer.bytes_of(token_id, skip_special=False)

    def _token(self, token_id: int) -> str:
        return _text(self._bytes(token_id))

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        """The likeliest tokens and the sampled one. Of tokens with the same text the likeliest stands."""
        top: dict[str, float] = {}
        for token_id, logprob in (*entry.top, (entry.token_id, entry.logprob)):
            top.setdefault(self._token(token_id), _finite(logprob))
        return top


def _shown(piece: str, text: str, offset: int) -> int:
    """Characters that a token takes in `text`: a token that was added to a text is none of it, nor is the
    space that some tokenizers put before it."""
    if text.startswith(piece, offset):
        return len(piece)
    rest = piece.removeprefix(" ")
    return len(rest) if text.startswith(rest, offset) else 0
