"""Text to token ids and back, from whatever files a model brings."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import tokenizers

from engine.models.errors import ModelError
from engine.token_bytes import strips_leading_space, token_bytes
from engine.tokenizer_definition import TokenizerDefinition
from engine.tokenizer_directory import read_directory
from engine.tokenizer_gguf import read_gguf_tokenizer


class Tokenizer:
    """An immutable tokenizer, safe to use from many threads at once.

    The library's tokenizers count as changed when any of their settings is set, and refuse to be used
    meanwhile ("Already borrowed"); so both ways to treat special tokens are instances of their own,
    set once and never again.
    """

    def __init__(self, definition: TokenizerDefinition) -> None:
        added = definition.json["added_tokens"]
        self.token_bytes: list[bytes] = token_bytes(definition)
        """Id to the bytes it stands for in output text; b"" for special and unused ids."""
        self.vocab_size: int = len(self.token_bytes)
        self.special_tokens: dict[str, int] = {t["content"]: t["id"] for t in added if t["special"]}
        """Text to id."""
        self.special_pattern: re.Pattern[str] = _special_pattern(added)
        """Matches what `encode` parses as one special token, with the space that belongs to it."""
        self.special_ids: frozenset[int] = frozenset(self.special_tokens.values())
        self.named_tokens: dict[str, str] = definition.named_tokens
        """`bos_token`, `eos_token`, …: the texts chat templates refer to by role."""
        self.eos_ids: frozenset[int] = definition.eos_ids
        self.bos_id: int | None = self.special_tokens.get(self.named_tokens.get("bos_token", ""))
        self.chat_template: str | None = definition.chat_template
        self.strips_leading_space: bool = strips_leading_space(definition)
        """SentencePiece style: `decode` drops the first space of a text."""
        self._special_bytes = {token_id: text.encode() for text, token_id in self.special_tokens.items()}
        self._parsing, self._literal = _backends(definition)

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """The ids of `text`.

        Args:
            text: well-formed text (no lone surrogates).
            add_special: add the tokens the model wants around a text (BOS, seldom EOS).
            parse_special: text of special tokens becomes their ids; else it stays text.
        """
        backend = self._parsing if parse_special else self._literal
        # Unlike `encode`, this lets other threads run meanwhile, and spares computing offsets.
        (encoding,) = backend.encode_batch_fast([text], add_special_tokens=add_special)
        ids: list[int] = encoding.ids
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`; special tokens are skipped, invalid UTF-8 becomes U+FFFD."""
        text = b"".join(self.bytes_of(token_id) for token_id in ids).decode(errors="replace")
        return text.removeprefix(" ") if self.strips_leading_space else text

    def decode_by_library(self, batch: list[list[int]]) -> list[str]:
        """The texts of lists of ids, as the `tokenizers` library has them."""
        texts: list[str] = self._literal.decode_batch(batch, skip_special_tokens=True)
        return texts

    def bytes_of(self, token_id: int, *, skip_special: bool = True) -> bytes:
        """The bytes `token_id` adds to a text; b"" beyond the vocabulary (logits may be wider)."""
        if not skip_special and token_id in self._special_bytes:
            return self._special_bytes[token_id]
        return self.token_bytes[token_id] if token_id < self.vocab_size else b""


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a model: a directory as `transformers` saves one, or a GGUF file.

    Raises:
        ModelError: what is missing, damaged or not supported, by file and field.
    """
    definition = read_directory(path) if path.is_dir() else read_gguf_tokenizer(path)
    return Tokenizer(definition)


def _special_pattern(added: list[dict[str, Any]]) -> re.Pattern[str]:
    """The longest token wins where several begin; some take the space before or after them along."""
    tokens = sorted((t for t in added if t["special"]), key=lambda token: -len(token["content"]))
    texts = [
        (r"\s*" if token["lstrip"] else "")
        + re.escape(token["content"])
        + (r"\s*" if token["rstrip"] else "")
        for token in tokens
    ]
    return re.compile("|".join(texts) or "(?!)")


def _backends(definition: TokenizerDefinition) -> tuple[tokenizers.Tokenizer, tokenizers.Tokenizer]:
    """One tokenizer that parses the text of special tokens, and one that takes it literally."""
    whole = {"version": "1.0", **definition.json, "truncation": None, "padding": None}
    try:
        text = msgspec.json.encode(whole).decode()
        parsing = tokenizers.Tokenizer.from_str(text)
        literal = tokenizers.Tokenizer.from_str(text)
    except Exception as error:
        raise ModelError(f"{definition.source}: {error}") from error
    literal.encode_special_tokens = True
    return parsing, literal
