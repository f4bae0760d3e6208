"""Token ids to text, incrementally: whole characters only, and nothing that could become a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from engine.tokenizer import Tokenizer


class Detokenizer:
    """The output text of one sequence, given out as soon as it is certain.

    Works on bytes: each id stands for fixed bytes, a UTF-8 decoder keeps an unfinished character back
    until the token that completes it, and bytes that can never become a character turn into U+FFFD as
    in `Tokenizer.decode`. The deltas' join depends on the ids only, not on how they were split over
    calls of `add`.

    Stop strings are not empty. Of several, the one whose last character comes first wins; of those that
    end at the same character, the longest.
    """

    __slots__ = (
        "_drop_space",
        "_held",
        "_include_stop",
        "_matchers",
        "_prompt_tail",
        "_skip_special",
        "_tokenizer",
        "_unfinished",
        "stopped",
    )

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        prompt: Sequence[int],
        stop: tuple[str, ...],
        include_stop: bool,
        skip_special: bool,
    ) -> None:
        self._tokenizer = tokenizer
        self._include_stop = include_stop
        self._skip_special = skip_special
        self._unfinished = b""
        """Bytes of the output that begin a character."""
        self._prompt_tail = _unfinished_character(self._last_bytes(prompt))
        self._drop_space = tokenizer.strips_leading_space and not any(map(self._bytes, prompt))
        self._matchers = [_StopMatcher(text) for text in stop]
        self._held = ""
        self.stopped: str | None = None
        """The stop string that matched, once one did."""

    def add(self, ids: Sequence[int], *, may_stop: bool = True) -> str:
        """Take new ids; return the text that is now certain ("" after a stop string matched).

        Stop strings count from the first text that `may_stop`; until then nothing is held back.
        """
        if self.stopped is not None:
            return ""
        text = self._decode(b"".join(map(self._bytes, ids)))
        return self._scan(text) if self._matchers and may_stop else text

    def finish(self) -> str:
        """The text still held back; bytes of an unfinished character are dropped."""
        rest, self._held = self._held, ""
        return rest

    def _bytes(self, token_id: int) -> bytes:
        return self._tokenizer.bytes_of(token_id, skip_special=self._skip_special)

    def _last_bytes(self, prompt: Sequence[int]) -> bytes:
        """The prompt's last bytes, at least three where it has them."""
        tail = b""
        for token_id in reversed(prompt):
            tail = self._bytes(token_id) + tail
            if len(tail) >= 3:
                break
        return tail

    def _decode(self, data: bytes) -> str:
        if not data:
            return ""
        if self._prompt_tail:
            # A character begun in the prompt belongs to the output if the output goes on with it.
            tail, self._prompt_tail = self._prompt_tail, b""
            if _goes_on(tail, data):
                data = tail + data
        if self._unfinished:
            data = self._unfinished + data
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._unfinished = data[used:]
        if text and self._drop_space:
            self._drop_space = False
            text = text.removeprefix(" ")
        return text

    def _scan(self, text: str) -> str:
        """Run `text` through the stop matchers; return what no stop string can claim any more."""
        text, fresh = self._held + text, len(self._held)
        for end in range(fresh + 1, len(text) + 1):
            character = text[end - 1]
            matched = [matcher.text for matcher in self._matchers if matcher.advance(character)]
            if matched:
                self.stopped = max(matched, key=len)
                self._held = ""
                return text[: end if self._include_stop else end - len(self.stopped)]
        certain = len(text) - max(matcher.matched for matcher in self._matchers)
        self._held = text[certain:]
        return text[:certain]


class _StopMatcher:
    """Knuth–Morris–Pratt over one stop string (SIAM J. Comput. 6, 1977): constant work a character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        """Length of the longest suffix of the text so far that begins the stop string."""
        self._fallback = [0]
        """Of each proper prefix, as far as any was matched: its longest border."""

    def advance(self, character: str) -> bool:
        """Take one character; whether the stop string is now complete."""
        while self.matched and character != self.text[self.matched]:
            self.matched = self._fallback[self.matched - 1]
        self.matched += character == self.text[self.matched]
        if self.matched > len(self._fallback):
            self._extend()
        return self.matched == len(self.text)

    def _extend(self) -> None:
        """Find the border of one more prefix. To find all at the start would hold up the event loop where
        many sequences of a request have many long stop strings."""
        end, border = len(self._fallback), self._fallback[-1]
        while border and self.text[end] != self.text[border]:
            border = self._fallback[border - 1]
        self._fallback.append(border + (self.text[end] == self.text[border]))


def _unfinished_character(data: bytes) -> bytes:
    """The suffix of `data` that begins a UTF-8 character without completing it."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    decoder.decode(data)
    pending, _ = decoder.getstate()
    return pending


def _goes_on(unfinished: bytes, data: bytes) -> bool:
    """Whether the first byte of `data` continues an unfinished character."""
    try:
        codecs.getincrementaldecoder("utf-8")("strict").decode(unfinished + data[:1])
    except UnicodeDecodeError:
        return False
    return True
