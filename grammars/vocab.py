"""A model's vocabulary as the grammar engine sees it: bytes, never strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from llguidance import LLTokenizer, TokenizerWrapper


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """What a token id stands for in output text.

    Attributes:
        token_bytes: id -> bytes; b"" for special, control and unused ids. Halves of characters and
            duplicate pieces are kept as they are.
        eos_ids: every id that ends a sequence; legal exactly when the text is complete.
        special_ids: ids that are never text, so never legal inside a constrained region.
        width: columns of the logits; at least len(token_bytes), the rest is never legal.
        encode: text -> ids without special tokens, as the model's own tokenizer splits it. Gives
            the canonical spelling of text that a grammar forces.
    """

    token_bytes: Sequence[bytes]
    eos_ids: frozenset[int]
    special_ids: frozenset[int]
    width: int
    encode: Callable[[str], list[int]]

    def __post_init__(self) -> None:
        if self.width < len(self.token_bytes):
            raise ValueError(
                f"width {self.width} is below the {len(self.token_bytes)} tokens of the vocabulary"
            )
        if not self.eos_ids:
            raise ValueError("a vocabulary needs an end-of-sequence id")

    @property
    def row_words(self) -> int:
        """int32 words of one mask row."""
        return -(-self.width // 32)

    @cached_property
    def tokenizer(self) -> LLTokenizer:
        """The engine's own tokenizer object; built once (about 0.1 s for 50,000 tokens)."""
        return LLTokenizer(TokenizerWrapper(_Pieces(self)), eos_token=sorted(self.eos_ids))


class _Pieces:
    """The attributes that llguidance reads from a Python tokenizer."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        barred = vocabulary.special_ids | vocabulary.eos_ids
        texts = [b"" if i in barred else text for i, text in enumerate(vocabulary.token_bytes)]
        self.tokens = texts + [b""] * (vocabulary.width - len(texts))
        self.special_token_ids = sorted(barred)
        self.eos_token_id = min(vocabulary.eos_ids)
        self._encode = vocabulary.encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)
