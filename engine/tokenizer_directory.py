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
    `tokenizer.json` does not say so, and `add_bos_token`/`add_eos_token` replace its post-processor.

    Raises:
        ModelError: a file is missing or damaged.
    """
    config = _read_json(path / "tokenizer_config.json", optional=True)
    source, definition = _read_vocabulary(path)
    named = {role: text for role in _ROLES if (text := _token_text(config.get(role)))}
    _mark_special(definition, {*named.values(), *_extra_tokens(config)})
    ids = {token["content"]: token["id"] for token in definition["added_tokens"]}
    if "add_bos_token" in config or "add_eos_token" in config:
        bos, eos = (
            (text, ids[text]) if (text := named.get(role, "")) in ids and config.get(f"add_{role}") else None
            for role in ("bos_token", "eos_token")
        )
        definition["post_processor"] = boundary_tokens(bos, eos)
    eos_ids = {ids[named["eos_token"]]} if named.get("eos_token") in ids else set()
    for name in ("generation_config.json", "config.json"):
        eos_ids.update(_eos_ids(path / name))
    return TokenizerDefinition(
        source=str(source),
        json=definition,
        eos_ids=frozenset(eos_ids),
        named_tokens=named,
        chat_template=_chat_template(path, config),
    )


def _read_vocabulary(path: Path) -> tuple[Path, dict[str, Any]]:
    source = path / "tokenizer.json"
    if not source.exists():
        source = path / "tokenizer.model"
        if not source.exists():
            raise ModelError(f"{path}: neither tokenizer.json nor tokenizer.model is there")
        return source, read_sentencepiece(source)
    definition = _read_json(source)
    model = definition.get("model")
    if not isinstance(model, dict) or "vocab" not in model:
        raise ModelError(f"{source}: field 'model.vocab' is missing")
    definition.setdefault("added_tokens", [])
    return source, definition


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


def _eos_ids(path: Path) -> list[int]:
    ids = _read_json(path, optional=True).get("eos_token_id")
    if ids is None:
        return []
    ids = ids if isinstance(ids, list) else [ids]
    if not all(isinstance(token_id, int) for token_id in ids):
        raise ModelError(f"{path}: field 'eos_token_id' is neither an id nor a list of ids")
    return ids


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
