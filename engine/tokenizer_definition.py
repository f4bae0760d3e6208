"""What a tokenizer is made of, whatever file it came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class TokenizerDefinition:
    """Everything a `Tokenizer` is built from."""

    source: str
    """The file, for error messages."""
    json: dict[str, Any]
    """In the format of `tokenizer.json` of the `tokenizers` library."""
    eos_ids: frozenset[int]
    named_tokens: dict[str, str] = field(default_factory=dict)
    """Role to text, as chat templates know them: `bos_token`, `eos_token`, `unk_token`, `pad_token`."""
    chat_template: str | None = None


def added_token(token_id: int, text: str, *, special: bool) -> dict[str, Any]:
    """An entry of `added_tokens`: text matched before the model sees it."""
    return {
        "id": token_id,
        "content": text,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }


def bpe_model(vocab: Mapping[str, int], merges: Iterable[tuple[str, str]], **options: Any) -> dict[str, Any]:
    """A `model` of type BPE."""
    return {"type": "BPE", "vocab": dict(vocab), "merges": [list(pair) for pair in merges], **options}


def boundary_tokens(bos: tuple[str, int] | None, eos: tuple[str, int] | None) -> dict[str, Any]:
    """A `post_processor` that puts `bos` before and `eos` after a text; None leaves that side alone."""
    text = {"Sequence": {"id": "A", "type_id": 0}}
    single: list[dict[str, Any]] = [text]
    if bos is not None:
        single.insert(0, {"SpecialToken": {"id": bos[0], "type_id": 0}})
    if eos is not None:
        single.append({"SpecialToken": {"id": eos[0], "type_id": 0}})
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            name: {"id": name, "ids": [token_id], "tokens": [name]}
            for name, token_id in filter(None, (bos, eos))
        },
    }
