"""The schemas of schemas, which documents may refer to without having them."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import Final

_FOLDERS: Final = {
    "http://json-schema.org/draft-04/schema": "draft4",
    "http://json-schema.org/draft-06/schema": "draft6",
    "http://json-schema.org/draft-07/schema": "draft7",
    "https://json-schema.org/draft/2019-09/schema": "draft201909",
    "https://json-schema.org/draft/2020-12/schema": "draft202012",
}


@lru_cache(maxsize=32)
def metaschema(uri: str) -> str | None:
    """The text of a metaschema or of one of its vocabularies; None for any other URI."""
    schemas = files("jsonschema_specifications") / "schemas"
    if uri in _FOLDERS:
        return (schemas / _FOLDERS[uri] / "metaschema.json").read_text()
    base, _, vocabulary = uri.rpartition("/meta/")
    folder = _FOLDERS.get(f"{base}/schema")
    if folder is None or not vocabulary.replace("-", "").isalpha():
        return None
    path = schemas / folder / "vocabularies" / vocabulary
    return path.read_text() if path.is_file() else None
