"""The tokenizer in a GGUF file's metadata (`tokenizer.ggml.*`).

The file holds vocabulary and merges, but only the name of the pre-tokenizer, the rule that cuts text
into words. A wrong rule gives wrong ids without any error, so a name not in the table is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.models.errors import ModelError
from engine.models.gguf_file import read_gguf
from engine.tokenizer_definition import TokenizerDefinition, added_token, boundary_tokens, bpe_model
from engine.tokenizer_spm import Piece, PieceType, added_tokens, sentencepiece_definition

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_PUNCTUATION_AND_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_PUNCTUATION_AND_SPACE}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_PUNCTUATION_AND_SPACE}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, kw_only=True)
class _PreTokenizer:
    """How one family cuts text into words, and what else its name implies."""

    pattern: str | None = None
    """None: the pattern of GPT-2."""
    single_digits: bool = False
    whole_words: bool = False
    """A word that is in the vocabulary is taken whole, merges or not."""
    compose: bool = False
    """Unicode NFC first."""
    add_bos: bool = False
    """Unless the file says otherwise."""


_GPT2 = _PreTokenizer()
_DIGITS = _PreTokenizer(single_digits=True)
_LLAMA_BPE = _PreTokenizer(pattern=_LLAMA3, whole_words=True, add_bos=True)
_PRE_TOKENIZERS = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "olmo": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "llama3": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "llama-bpe": _LLAMA_BPE,
    "dbrx": _PreTokenizer(pattern=_LLAMA3),
    "smaug-bpe": _PreTokenizer(pattern=_LLAMA3),
    "qwen2": _PreTokenizer(pattern=_QWEN2, compose=True),
    "deepseek-r1-qwen": _PreTokenizer(pattern=_QWEN2),
    "tekken": _PreTokenizer(pattern=_TEKKEN, whole_words=True, add_bos=True),
}

_ROLES = {
    "bos": "bos",
    "eos": "eos",
    "eot": None,
    "eom": None,
    "unknown": "unk",
    "padding": "pad",
}
"""Roles of the file's `…_token_id` fields, and what chat templates call them."""
_END_ROLES = ("eos", "eot", "eom")
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>")
"""Tokens that end a turn where the chat template writes them, whatever the file calls end of sequence."""


def read_gguf_tokenizer(path: Path) -> TokenizerDefinition:
    """Build the tokenizer of a GGUF file.

    Raises:
        ModelError: the file is damaged, a field is missing, or its kind of tokenizer is not supported.
    """
    fields = _Fields(path, read_gguf(path).metadata)
    tokens = fields.require("ggml.tokens", list)
    model = fields.require("ggml.model", str)
    if model == "gpt2":
        pre = _pre_tokenizer(fields)
        json, add_bos = _byte_level(fields, tokens, pre), pre.add_bos
    elif model == "llama":
        json, add_bos = _sentencepiece(fields, tokens), True
    else:
        raise ModelError(f"{path}: field 'tokenizer.ggml.model' is {model!r}; supported are gpt2 and llama")
    ids = {role: fields.token_id(role, tokens) for role in _ROLES}
    _mark_special(json, {token_id: tokens[token_id] for token_id in ids.values() if token_id is not None})
    json["post_processor"] = boundary_tokens(
        _boundary(tokens, ids["bos"], wanted=fields.get("ggml.add_bos_token", bool, add_bos)),
        _boundary(tokens, ids["eos"], wanted=fields.get("ggml.add_eos_token", bool, False)),
    )
    template = fields.get("chat_template", str, None)
    ends = {ids[role] for role in _END_ROLES} | _turn_ends(json, template or "")
    return TokenizerDefinition(
        source=str(path),
        json=json,
        eos_ids=frozenset(token_id for token_id in ends if token_id is not None),
        named_tokens={
            f"{name}_token": tokens[token_id]
            for role, name in _ROLES.items()
            if (token_id := ids[role]) is not None and name is not None
        },
        chat_template=template,
    )


class _Fields:
    """The `tokenizer.` fields of a file, checked as they are taken."""

    def __init__(self, path: Path, metadata: dict[str, Any]) -> None:
        self.path = path
        self._metadata = metadata

    def get(self, name: str, kind: type[Any], default: Any) -> Any:
        value = self._metadata.get(f"tokenizer.{name}", default)
        if value is not default and not isinstance(value, kind):
            raise ModelError(f"{self.path}: field 'tokenizer.{name}' is not of type {kind.__name__}")
        return value

    def require(self, name: str, kind: type[Any]) -> Any:
        value = self.get(name, kind, None)
        if value is None:
            raise ModelError(f"{self.path}: field 'tokenizer.{name}' is missing")
        return value

    def column(self, name: str, length: int) -> list[Any]:
        """An array with one entry a token."""
        values = self.require(name, list)
        if len(values) != length:
            raise ModelError(
                f"{self.path}: field 'tokenizer.{name}' has {len(values)} entries for {length} tokens"
            )
        return list(values)

    def token_id(self, role: str, tokens: list[str]) -> int | None:
        name = f"ggml.{role}_token_id"
        token_id: int | None = self.get(name, int, None)
        if token_id is not None and not 0 <= token_id < len(tokens):
            raise ModelError(f"{self.path}: field 'tokenizer.{name}' is {token_id}, not a token's id")
        return token_id


def _pre_tokenizer(fields: _Fields) -> _PreTokenizer:
    name = fields.get("ggml.pre", str, "default")
    if name not in _PRE_TOKENIZERS:
        raise ModelError(
            f"{fields.path}: field 'tokenizer.ggml.pre' is {name!r}; "
            f"supported are {', '.join(_PRE_TOKENIZERS)}"
        )
    return _PRE_TOKENIZERS[name]


def _byte_level(fields: _Fields, tokens: list[str], pre: _PreTokenizer) -> dict[str, Any]:
    """The `tokenizer.json` of a byte-level BPE."""
    types = fields.column("ggml.token_type", len(tokens))
    merges = [tuple(merge.split(" ", 1)) for merge in fields.require("ggml.merges", list)]
    if any(len(pair) != 2 for pair in merges):
        raise ModelError(f"{fields.path}: field 'tokenizer.ggml.merges' has an entry that is not a pair")
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": pre.pattern is None,
    }
    cuts: list[dict[str, Any]] = []
    if pre.single_digits:
        cuts.append({"type": "Digits", "individual_digits": True})
    if pre.pattern is not None:
        pattern = {"Regex": pre.pattern}
        cuts.append({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False})
    return {
        "added_tokens": added_tokens(tokens, types),
        "normalizer": {"type": "NFC"} if pre.compose else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*cuts, byte_level]},
        "decoder": byte_level,
        "model": bpe_model(
            {text: i for i, text in enumerate(tokens) if types[i] != PieceType.UNUSED},
            merges,
            ignore_merges=pre.whole_words,
        ),
    }


def _sentencepiece(fields: _Fields, tokens: list[str]) -> dict[str, Any]:
    scores = fields.column("ggml.scores", len(tokens))
    types = fields.column("ggml.token_type", len(tokens))
    pieces = [Piece(*piece) for piece in zip(tokens, scores, types, strict=True)]
    return sentencepiece_definition(pieces, add_space_prefix=fields.get("ggml.add_space_prefix", bool, True))


def _boundary(tokens: list[str], token_id: int | None, *, wanted: bool) -> tuple[str, int] | None:
    return (tokens[token_id], token_id) if wanted and token_id is not None else None


def _mark_special(json: dict[str, Any], texts: dict[int, str]) -> None:
    """Make the tokens with a role special, whatever type the file gives them."""
    known = {token["id"]: token for token in json["added_tokens"]}
    for token_id, text in texts.items():
        if token_id in known:
            known[token_id]["special"] = True
        else:
            json["added_tokens"].append(added_token(token_id, text, special=True))


def _turn_ends(json: dict[str, Any], template: str) -> set[int | None]:
    return {
        token["id"]
        for token in json["added_tokens"]
        if token["special"] and token["content"] in _TURN_ENDS and token["content"] in template
    }
