"""Grammar engines behind one small interface, to be compared on the same schemas."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from engine.models.loader import embedded_model_path
from engine.tokenizer import load_tokenizer
from grammars.llg import LlgGrammar
from grammars.lower import lower
from grammars.spec import Constraint, JsonOptions
from grammars.vocab import Vocabulary


def embedded_vocabulary() -> Vocabulary:
    """That of the embedded model."""
    tokenizer = load_tokenizer(embedded_model_path())
    return Vocabulary(
        tokenizer.token_bytes,
        tokenizer.eos_ids,
        tokenizer.special_ids,
        tokenizer.vocab_size,
        lambda text: tokenizer.encode(text, add_special=False, parse_special=False),
    )


class Sequence(Protocol):
    """One text being written."""

    def mask(self, row: Any) -> None: ...
    def accept(self, token: int) -> bool: ...
    def would_accept(self, token: int) -> bool: ...
    def is_complete(self) -> bool: ...


Start = Callable[[], Sequence]


class Radish:
    """This project: default options, or every spelling of JSON that the schema allows."""

    def __init__(self, vocabulary: Vocabulary, *, any_spelling: bool) -> None:
        spelled = JsonOptions(whitespace="flexible", decimal_integers=True)
        self._options = spelled if any_spelling else JsonOptions()
        self._vocabulary = vocabulary

    def compile(self, schema: str) -> Start:
        grammar = LlgGrammar(self._vocabulary, lower(Constraint.json_schema(schema, self._options)))
        return lambda: _RadishSequence(grammar)


class _RadishSequence:
    def __init__(self, grammar: LlgGrammar) -> None:
        self._matcher = grammar.matcher()

    def mask(self, row: Any) -> None:
        self._matcher.fill_mask(row)

    def accept(self, token: int) -> bool:
        return self._matcher.accept(token)

    def would_accept(self, token: int) -> bool:
        return self._matcher.fork().accept(token)

    def is_complete(self) -> bool:
        return self._matcher.is_complete


class XGrammar:
    """xgrammar, with undeclared properties allowed as the standard has it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        import xgrammar  # noqa: PLC0415 (optional)

        self._xgrammar = xgrammar
        barred = vocabulary.special_ids
        texts = [b"" if i in barred else text for i, text in enumerate(vocabulary.token_bytes)]
        info = xgrammar.TokenizerInfo(texts, stop_token_ids=sorted(vocabulary.eos_ids))
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1)

    def compile(self, schema: str) -> Start:
        grammar = self._compiler.compile_json_schema(schema, strict_mode=False)
        return lambda: _XGrammarSequence(self._xgrammar.GrammarMatcher(grammar))


class _XGrammarSequence:
    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def mask(self, row: Any) -> None:
        import torch  # noqa: PLC0415 (only this engine needs it)

        self._matcher.fill_next_token_bitmask(torch.from_numpy(row.reshape(1, -1)))

    def accept(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token))

    def would_accept(self, token: int) -> bool:
        accepted = self.accept(token)
        if accepted:
            self._matcher.rollback(1)
        return accepted

    def is_complete(self) -> bool:
        return bool(self._matcher.is_completed())


class OutlinesCore:
    """outlines_core on a vocabulary of bytes."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        import outlines_core  # noqa: PLC0415 (optional)

        self._core = outlines_core
        self._eos = min(vocabulary.eos_ids)
        ids: dict[bytes, list[int]] = {}
        for token_id, text in enumerate(vocabulary.token_bytes):
            if text:
                ids.setdefault(text, []).append(token_id)
        self._vocabulary = outlines_core.Vocabulary(self._eos, ids)

    def compile(self, schema: str) -> Start:
        regex = self._core.json_schema.build_regex_from_schema(schema)
        index = self._core.Index(regex, self._vocabulary)
        return lambda: _OutlinesSequence(self._core.Guide(index))


class _OutlinesSequence:
    def __init__(self, guide: Any) -> None:
        self._guide = guide

    def mask(self, row: Any) -> None:
        self._guide.write_mask_into(row.ctypes.data, row.size, row.itemsize)

    def accept(self, token: int) -> bool:
        try:
            self._guide.advance(token, return_tokens=False)
        except ValueError:
            return False
        return True

    def would_accept(self, token: int) -> bool:
        return bool(self._guide.accepts_tokens([token]))

    def is_complete(self) -> bool:
        return bool(self._guide.is_finished())


ENGINES: dict[str, Callable[[Vocabulary], Any]] = {
    "radish": lambda vocabulary: Radish(vocabulary, any_spelling=False),
    "radish, any spelling": lambda vocabulary: Radish(vocabulary, any_spelling=True),
    "xgrammar": XGrammar,
    "outlines-core": OutlinesCore,
}


@dataclass
class Outcome:
    """What one engine made of one schema.

    Attributes:
        refusal: its complaint; "" if it compiled.
        verdicts: for each instance, whether it is valid and whether it was accepted.
        compile_s, mask_s: seconds of processor time, of the compilation and of each mask.
        checked, inconsistent: sampled tokens, and those on which mask and accept disagree.
    """

    refusal: str = ""
    verdicts: list[tuple[bool, bool]] = field(default_factory=list)
    compile_s: float = 0.0
    mask_s: list[float] = field(default_factory=list)
    checked: int = 0
    inconsistent: int = 0


def examine(engine: Any, vocabulary: Vocabulary, schema: str, instances: list[tuple[str, bool]]) -> Outcome:
    """Compile a schema and feed it instances, each with whether it is valid."""
    outcome = Outcome()
    started = time.thread_time()
    try:
        start = engine.compile(schema)
    except Exception as error:  # noqa: BLE001 (every engine has errors of its own)
        return Outcome(refusal=str(error).strip() or type(error).__name__)
    outcome.compile_s = time.thread_time() - started
    rng = random.Random(schema)
    for text, valid in instances:
        outcome.verdicts.append((valid, _accepts(start(), vocabulary, text, outcome, rng)))
    return outcome


def _accepts(
    sequence: Sequence, vocabulary: Vocabulary, text: str, outcome: Outcome, rng: random.Random
) -> bool:
    row = np.zeros(vocabulary.row_words, np.int32)
    for token in vocabulary.encode(text):
        started = time.thread_time()
        sequence.mask(row)
        outcome.mask_s.append(time.thread_time() - started)
        sampled = rng.randrange(len(vocabulary.token_bytes))
        if sampled not in vocabulary.eos_ids:
            outcome.checked += 1
            outcome.inconsistent += sequence.would_accept(sampled) != _is_set(row, sampled)
        if not _is_set(row, token) or not sequence.accept(token):
            return False
    return sequence.is_complete()


def _is_set(row: Any, token: int) -> bool:
    return bool(row[token >> 5] >> (token & 31) & 1)
