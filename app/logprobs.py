"""Log-probabilities on the wire: OpenAI's chat form and its completions form.

Prompts have thousands: they are written in slices.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from app.errors import bad_request
from app.slices import JsonList, in_slices, json_list
from engine.stream import TokenLogprob
from engine.tokenizer import Tokenizer

_FLOOR = -9999.0
"""Stands for minus infinity, which JSON cannot say."""
MOST_LOGPROBS = 1 << 20
"""Of all prompts of one answer: about 80 MB of JSON. Those of its output are made no faster than that is."""


def check_amount(number: int, field: str) -> None:
    """Raises ApiError 400 where an answer would have more than `MOST_LOGPROBS`."""
    if number > MOST_LOGPROBS:
        message = f"The answer would have {number} log-probabilities; at most {MOST_LOGPROBS} are possible."
        raise bad_request(message, field)


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


class PromptLogprob(msgspec.Struct):
    logprob: float
    rank: int | None
    """1 for the likeliest; null where it is not among those asked for."""
    decoded_token: str


PromptLogprobs = list[dict[int, PromptLogprob] | None]
"""vLLM's: of each token of the prompt but the first, its id and the likeliest ids."""


async def prompt_logprobs(
    tokenizer: Tokenizer, entries: Sequence[TokenLogprob], num_top: int
) -> PromptLogprobs:
    def written() -> Iterator[dict[int, PromptLogprob] | None]:
        yield None
        for entry in entries:
            yield _prompt_logprob(tokenizer, entry, num_top)

    return await json_list(written())


def _prompt_logprob(tokenizer: Tokenizer, entry: TokenLogprob, num_top: int) -> dict[int, PromptLogprob]:
    top = [(rank, *pair) for rank, pair in enumerate(entry.top[:num_top], 1)]
    known = {id_: PromptLogprob(_finite(value), rank, _spell(tokenizer, id_)) for rank, id_, value in top}
    own = PromptLogprob(_finite(entry.logprob), None, _spell(tokenizer, entry.token_id))
    return {entry.token_id: own} | known


def _spell(tokenizer: Tokenizer, token_id: int) -> str:
    return _text(tokenizer.bytes_of(token_id, skip_special=False))


def chat_logprob(tokenizer: Tokenizer, entry: TokenLogprob) -> ChatLogprob:
    """Of a sampled token; the one that ended the choice has one too."""
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
        self._tokens = JsonList[str]()
        self._logprobs = JsonList[float | None]()
        self._tops = JsonList[dict[str, float] | None]()
        self._offsets = JsonList[int]()

    async def write_prompt(
        self, ids: Sequence[int], text: str, entries: Sequence[TokenLogprob], num_top: int
    ) -> None:
        """The tokens of an echoed prompt, `text`; `entries` are of all but the first."""
        utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        async for token_id, entry in in_slices(zip(ids, (None, *entries), strict=True)):
            self._write(token_id, entry if entry is None else replace(entry, top=entry.top[:num_top]))
            self._offset += _shown(utf8.decode(self._bytes(token_id)), text, self._offset)
        self._offset = len(text)

    async def write(self, entries: Sequence[TokenLogprob]) -> None:
        """The next tokens of the choice."""
        async for entry in in_slices(entries):
            self._write(entry.token_id, entry)
            shown = self._tokenizer.bytes_of(entry.token_id, skip_special=self._skip_special)
            self._offset += len(self._utf8.decode(shown))

    def taken(self) -> CompletionLogprobs | None:
        """What was written since it was called last, if anything."""
        if not self._tokens:
            return None
        return CompletionLogprobs(
            self._tokens.taken(), self._logprobs.taken(), self._tops.taken(), self._offsets.taken()
        )

    def _write(self, token_id: int, entry: TokenLogprob | None) -> None:
        self._tokens.append(self._token(token_id))
        self._logprobs.append(None if entry is None else _finite(entry.logprob))
        self._tops.append(None if entry is None else self._top(entry))
        self._offsets.append(self._offset)

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
