"""API keys: who may ask, and how much. From the command line and from a file, which may change meanwhile.

A line of the file is a key, then its limits as `name=value`, separated by blanks; `#` begins a comment:

    radish-example-1
    radish-example-2 concurrency=4 requests_per_minute=60 tokens_per_minute=20000 priority=0
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from app.key_limits import Account, Limits
from engine.config import Config
from engine.errors import ConfigError

_log = logging.getLogger("radish.app")

_Version = tuple[int, int, int]
_MISSING: _Version = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class Key:
    """A key without its text: what it is compared by, and what it may do."""

    digest: bytes
    limits: Limits

    @property
    def id(self) -> str:
        """Names the key in namespaces; tells nothing of its text."""
        return self.digest.hex()[:16]


class KeyRing:
    """All keys that are valid now.

    Args:
        given: keys of the command line, which have no limits.
        path: the key file; read again when it has changed. One that cannot be read then, or has a fault,
            changes nothing and is logged.

    Raises:
        ConfigError: a key is none that can be sent, the file cannot be read or has a fault, or there is no
            key at all.
    """

    def __init__(self, given: Iterable[str], path: Path | None) -> None:
        given = list(given)
        if any(text.split() != [text] for text in given):
            raise ConfigError("api_key: a key is empty, or has white space in it")
        self._given = [Key(_digest(text.encode()), Limits()) for text in given]
        self._path = path
        self._accounts: dict[bytes, Account] = {}
        self._keys = self._given
        if path is not None:
            try:
                self._version = _version(path)
                self._keys = [*self._given, *_read(path)]
            except OSError as error:
                raise ConfigError(f"api_key_file: {path}: {error.strerror}") from error
        if not self._keys:
            raise ConfigError(f"api_key_file: {path} holds no key")

    def find(self, text: bytes) -> Key | None:
        """The key that `text` is. Takes the same time whether it is one, and whichever it is."""
        self._refresh()
        digest = _digest(text)
        found: Key | None = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found

    def account(self, key: Key) -> Account:
        """What the key has used; survives a change of the file."""
        return self._accounts.setdefault(key.digest, Account())

    def _refresh(self) -> None:
        if self._path is None:
            return
        try:
            version = _version(self._path)
        except OSError:
            version = _MISSING
        if version == self._version:
            return
        self._version = version
        try:
            self._keys = [*self._given, *_read(self._path)]
        except (OSError, ConfigError) as error:
            _log.error("the API keys stay as they were: %s", error)
        else:
            _log.info("read the API keys again: %d", len(self._keys))


def configured_keys(config: Config) -> KeyRing | None:
    """The keys of a server; None where it answers without.

    Raises:
        ConfigError: as `KeyRing`.
    """
    if not config.api_key and config.api_key_file is None:
        return None
    return KeyRing(config.api_key or (), Path(config.api_key_file) if config.api_key_file else None)


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()


def _version(path: Path) -> _Version:
    stat = os.stat(path)
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _read(path: Path) -> list[Key]:
    keys: list[Key] = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig", errors="replace").splitlines(), 1):
        text, *options = line.partition("#")[0].split() or [""]
        if not text:
            continue
        try:
            limits = msgspec.convert(dict(_option(option) for option in options), Limits, strict=False)
        except (ValueError, msgspec.ValidationError) as error:
            raise ConfigError(f"api_key_file: {path}, line {number}: {error}") from error
        keys.append(Key(_digest(text.encode()), limits))
    return keys


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{name!r} is not name=value")
    return name, value
