"""Coverage-guided fuzzing of what reads text from outside: ops/fuzz parsers [options of libFuzzer]

    ops/fuzz parsers -max_total_time=600

A parser may refuse a text by its own error and no other; what one reads is compared with a second opinion
where there is one. A find is written to a file, which reproduces it: ops/fuzz parsers FILE.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

_TEXT = 400
"""Characters: longer ones are slow and find nothing else."""


def json_structure(body: bytes) -> None:
    """Depth and repeated keys as the standard library sees them, wherever both read the document."""
    fault = json_text.check_structure(body)
    repeated = False

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeated
        repeated |= len({key for key, _ in pairs}) < len(pairs)
        return dict(pairs)

    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        if isinstance(error, msgspec.DecodeError):
            json_text.error_path(body, error)
        return
    too_deep = fault is not None and "deeper" in fault
    if b"\\" not in body and not too_deep:  # keys are compared as written
        json.loads(body, object_pairs_hook=collect)
        assert (fault is not None) == repeated, fault


def gbnf(body: bytes) -> None:
    """A grammar, or its own error."""
    text = body.decode("utf-8", "replace")[:_TEXT]
    with suppress(grammar_base.GrammarError):
        gbnf_lark.translate(gbnf_syntax.parse_gbnf(text))


def pattern(body: bytes) -> None:
    """A pattern without lookarounds and anchors matches what `re` says it does."""
    text = body.decode("ascii", "replace")[:60]
    source, _, sample = text.partition("\x00")
    try:
        language = patterns.full_language(source)
    except (pattern_syntax.PatternError, grammar_base.GrammarError):
        return
    if not _PLAIN.fullmatch(source):
        return
    try:
        expected = re.fullmatch(source, sample, re.ASCII) is not None
    except re.error:
        return
    assert derivative.matches(language, sample) == expected, (source, sample)


_PLAIN = re.compile(r"[a-z0-9|()?*]*")
"""What means the same to `re`."""
_TARGETS: tuple[Callable[[bytes], None], ...] = (json_structure, gbnf, pattern)


def one_input(data: bytes) -> None:
    """The first byte chooses the parser."""
    if data:
        _TARGETS[data[0] % len(_TARGETS)](data[1:])


if __name__ == "__main__":
    # Of the extra `fuzz`; it has to see the modules as they are imported.
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["app", "grammars"]):
        json_text = importlib.import_module("app.json_text")
        grammar_base = importlib.import_module("grammars.base")
        gbnf_syntax = importlib.import_module("grammars.gbnf")
        gbnf_lark = importlib.import_module("grammars.gbnf_lark")
        derivative = importlib.import_module("grammars.regular.derivative")
        patterns = importlib.import_module("grammars.regular.patterns")
        pattern_syntax = importlib.import_module("grammars.regular.pattern_syntax")
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
