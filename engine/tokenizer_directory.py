"""The tokenizer of a directory as `transformers` saves one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.models.errors import ModelError
from engine.tokenizer_definition import TokenizerDefinition, added_token, boundary_tokens
from engine.tokenizer_spm import read_sentencepiece

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_EXTRA = ("additional_special_tokens", "extra_special_tokens")


def read_directory(path: Path) -> TokenizerDefinition:
    """Read `tokenizer.json` (or else `tokenizer.model`) and the configurations beside it.

    As in `transformers`: tokens that `tokenizer_config.json` names are special even if
    `tokenizer.json` does not say so; its `add_bos_token` and `add_eos_token` are for `tokenizer.model`
    only, since `tokenizer.json` has a post-processor of its own.

    Raises:
        ModelError: a file is missing or damaged.
    """
    config = _read_json(path / "tokenizer_config.json", optional=True)
    named = {role: text for role in _ROLES if (text := _token_text(config.get(role)))}
    source = path / "tokenizer.json"
    if source.exists():
        definition = _read_tokenizer_json(source)
        _mark_special(definition, {*named.values(), *_extra_tokens(config)})
    else:
        source = path / "tokenizer.model"
        if not source.exists():
            raise ModelError(f"{path}: neither tokenizer.json nor tokenizer.model is there")
        definition, names_of_model = read_sentencepiece(source)
        named = names_of_model | named
        _mark_special(definition, {*named.values(), *_extra_tokens(config)})
        definition["post_processor"] = boundary_tokens(
            _boundary(definition, named.get("bos_token"), wanted=config.get("add_bos_token", True)),
            _boundary(definition, named.get("eos_token"), wanted=config.get("add_eos_token", False)),
        )
    return TokenizerDefinition(
        source=str(source),
        json=definition,
        eos_ids=_eos_ids(path, definition, named.get("eos_token")),
        named_tokens=named,
        chat_template=_chat_template(path, config),
    )


def _read_tokenizer_json(path: Path) -> dict[str, Any]:
    definition = _read_json(path)
    model = definition.get("model")
    if not isinstance(model, dict) or "vocab" not in model:
        raise ModelError(f"{path}: field 'model.vocab' is missing")
    definition.setdefault("added_tokens", [])
    return definition


def _boundary(definition: dict[str, Any], text: str | None, *, wanted: bool) -> tuple[str, int] | None:
    token_id = _special_id(definition, text)
    return (text, token_id) if wanted and text is not None and token_id is not None else None


def _special_id(definition: dict[str, Any], text: str | None) -> int | None:
    return next((token["id"] for token in definition["added_tokens"] if token["content"] == text), None)


def _mark_special(definition: dict[str, Any], texts: set[str]) -> None:
    """Make added tokens of these texts special; add those that are only in the vocabulary."""
    for token in definition["added_tokens"]:
        token["special"] = token["special"] or token["content"] in texts
    vocab = definition["model"]["vocab"]
    ids = vocab if isinstance(vocab, dict) else {piece: i for i, (piece, _) in enumerate(vocab)}
    known = {token["content"] for token in definition["added_tokens"]}
    missing = sorted((ids[text], text) for text in texts - known if text in ids)
    definition["added_tokens"] += [added_token(i, text, special=True) for i, text in missing]


def _token_text(token: Any) -> str | None:
    """A token is written as its text, or as an object with its text and flags."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _extra_tokens(config: dict[str, Any]) -> set[str]:
    texts: set[str | None] = set()
    for key in _EXTRA:
        tokens = config.get(key) or []
        texts.update(map(_token_text, tokens.values() if isinstance(tokens, dict) else tokens))
    for token in config.get("added_tokens_decoder", {}).values():
        if token.get("special"):
            texts.add(_token_text(token))
    return {text for text in texts if text is not None}


def _eos_ids(path: Path, definition: dict[str, Any], eos_token: str | None) -> frozenset[int]:
    """What the tokenizer, the generation configuration and the model's configuration each call so."""
    token_id = _special_id(definition, eos_token)
    eos_ids = set() if token_id is None else {token_id}
    for file in (path / "generation_config.json", path / "config.json"):
        ids = _read_json(file, optional=True).get("eos_token_id")
        ids = ids if isinstance(ids, list) else [] if ids is None else [ids]
        if not all(isinstance(token_id, int) for token_id in ids):
            raise ModelError(f"{file}: field 'eos_token_id' is neither an id nor a list of ids")
        eos_ids.update(ids)
    return frozenset(eos_ids)


def _chat_template(path: Path, config: dict[str, Any]) -> str | None:
    """The file wins over the configuration; of several named templates the one called `default`."""
    file = path / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        template = {entry.get("name"): entry.get("template") for entry in template}.get("default")
    if template is not None and not isinstance(template, str):
        raise ModelError(f"{path / 'tokenizer_config.json'}: field 'chat_template' is not a text")
    return template


def _read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    if optional and not path.exists():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: not a JSON object")
    return value
