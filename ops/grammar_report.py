"""Compare grammar engines on schemas with right verdicts, and print the table that the README shows.

    .venv/bin/python ops/grammar_report.py [--engine NAME ...] [--set NAME ...] [--limit S] [--generate N]

Engines other than ours take part where they are installed. A group of a set is *right* when every instance
gets its verdict (a refusal is right where there is nothing to accept), *refused* when the schema is not
taken, *narrow* when something valid is masked, *wrong* when something invalid is let through. *Generated* is
how many answers of the embedded model at temperature 1, to so many schemas of the set drawn at random, are
valid: all that ended, by themselves or by their budget.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import resource
import sys
import time
from collections import Counter
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402 (the path comes first)

from grammars.base import GrammarError  # noqa: E402
from grammars.compiler import Compiler  # noqa: E402
from grammars.spec import Constraint  # noqa: E402
from grammars.vocab import Vocabulary  # noqa: E402
from ops.grammar_engines import ENGINES, Outcome, embedded_vocabulary, examine  # noqa: E402
from ops.grammar_generations import generate  # noqa: E402
from tests.grammars.order import as_declared  # noqa: E402

SETS = {
    "probes": None,
    "real-world-schemas": None,
    "json-schema-test-suite-draft7": "http://json-schema.org/draft-07/schema#",
    "json-schema-test-suite-draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
MEMORY_BYTES = 6 << 30
HEAD = ["schemas", "engine", "wrong", "right", "narrow", "refused", "compile ms", "mask ms", "mask = accept"]
PROGRESS = 25


class Case(NamedTuple):
    """A schema, and texts with whether they are valid."""

    name: str
    schema: str
    instances: list[tuple[str, bool]]


def read_cases(name: str) -> list[Case]:
    """The cases of a set; what is JSON is written compactly, which every engine reads."""
    draft = SETS[name]
    cases = []
    for line in (ROOT / "tests" / "cases" / f"{name}.jsonl").read_text().splitlines():
        group = json.loads(line)
        schema = group["schema"]
        if draft is not None and isinstance(schema, dict):
            schema = {"$schema": draft, **schema}
        if "tests" in group:
            instances = [(_written(as_declared(t["data"], schema)), t["valid"]) for t in group["tests"]]
        elif name == "real-world-schemas":
            instances = [(_written(value), True) for value in group["valid"]]
            instances += [(_written(value), False) for value in group["invalid"]]
        else:
            texts = [(text, True) for text in group["valid"]] + [(text, False) for text in group["invalid"]]
            instances = texts if group["name"].startswith("ws.") else [(_compact(t), v) for t, v in texts]
        cases.append(Case(group.get("id") or group["name"], json.dumps(schema), instances))
    return cases


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _compact(text: str) -> str:
    """The same JSON without blanks between tokens, if that is all that changes."""
    try:
        value = json.loads(text)
        _written(value).encode()  # not with half a surrogate pair
    except ValueError:
        return text
    return _written(value) if json.dumps(value) == text else text


def run(engine: Any, vocabulary: Vocabulary, case: Case, limit_s: float) -> Outcome:
    """Examine a case in a child process, which may be killed and has a memory ceiling."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(sender, engine, vocabulary, case))
    child.start()
    sender.close()
    try:
        outcome: Outcome = (
            receiver.recv() if receiver.poll(limit_s) else Outcome(refusal=f"over {limit_s:g} s")
        )
    except EOFError:
        outcome = Outcome(refusal="ended the process")
    child.kill()
    child.join()
    return outcome


def _child(sender: Connection, engine: Any, vocabulary: Vocabulary, case: Case) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    sender.send(examine(engine, vocabulary, case.schema, case.instances))


def classify(outcome: Outcome, case: Case) -> str:
    """The column a group is counted in."""
    if outcome.refusal:
        return "refused" if any(valid for _, valid in case.instances) else "right"
    if any(accepted and not valid for valid, accepted in outcome.verdicts):
        return "wrong"
    return "right" if all(valid == accepted for valid, accepted in outcome.verdicts) else "narrow"


def report(name: str, engine_name: str, engine: Any, vocabulary: Vocabulary, limit_s: float) -> list[str]:
    """One row of the table."""
    cases = read_cases(name)
    counts: Counter[str] = Counter()
    compile_s: list[float] = []
    mask_s: list[float] = []
    checked = inconsistent = 0
    for number, case in enumerate(cases):
        outcome = run(engine, vocabulary, case, limit_s)
        counts[classify(outcome, case)] += 1
        compile_s += [outcome.compile_s] if not outcome.refusal else []
        mask_s += outcome.mask_s
        checked += outcome.checked
        inconsistent += outcome.inconsistent
        if (number + 1) % PROGRESS == 0:
            print(f"{engine_name}: {name} {number + 1}/{len(cases)}", file=sys.stderr, flush=True)
    share = f"{100 * counts['right'] / len(cases):.1f} %"
    agreement = f"{100 * (1 - inconsistent / max(1, checked)):.2f} % of {checked}"
    columns = [counts["wrong"], share, counts["narrow"], counts["refused"]]
    return [name, engine_name, *map(str, columns), _milliseconds(compile_s), _milliseconds(mask_s), agreement]


def _milliseconds(seconds: list[float]) -> str:
    if not seconds:
        return "-"
    return " / ".join(f"{1e3 * value:.3g}" for value in np.percentile(seconds, [50, 99, 100]))


async def server_compile_times(vocabulary: Vocabulary) -> str:
    """Wall time from a constraint to a grammar as the server compiles, over every schema there is."""
    compiler = Compiler(vocabulary, timeout_s=5.0, cache_bytes=1 << 28)
    schemas = [case.schema for name in SETS for case in read_cases(name)]
    schemas += [json.dumps(json.loads(x)["schema"]) for x in (ROOT / "tests/cases/hostile.jsonl").open()]
    seconds = []
    try:
        await compiler.compile(Constraint(kind="json_object"))
        for schema in schemas:
            started = time.perf_counter()
            try:
                await compiler.compile(Constraint.json_schema(schema))
            except GrammarError:
                continue
            seconds.append(time.perf_counter() - started)
    finally:
        compiler.close()
    return f"{_milliseconds(seconds)} ms over {len(seconds)} schemas"


def print_row(cells: list[str]) -> None:
    """In Markdown."""
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Run and print."""
    installed = [name for name in ENGINES if name.startswith("radish") or find_spec(name.replace("-", "_"))]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", action="append", choices=list(ENGINES), help="only these engines")
    parser.add_argument("--set", action="append", choices=list(SETS), help="only these sets of schemas")
    parser.add_argument("--limit", type=float, default=10.0, help="seconds for one schema")
    parser.add_argument(
        "--generate", type=int, default=40, help="schemas of each set to generate for; 0: none"
    )
    arguments = parser.parse_args()
    vocabulary = embedded_vocabulary()
    vocabulary.tokenizer, vocabulary.spellings  # noqa: B018 (built once, before processes are forked)
    gc.freeze()  # else a collection of all that is imported here falls into a child's time
    names = arguments.set or list(SETS)
    print_row(HEAD)
    print("|" + "---|" * len(HEAD))
    for name in names:
        for engine_name in arguments.engine or installed:
            engine = ENGINES[engine_name](vocabulary)
            print_row(report(name, engine_name, engine, vocabulary, arguments.limit))
    print("\nMilliseconds are p50 / p99 / max of processor time.")
    # Last: after it there are threads, and no more processes are to be forked.
    schemas = {name: [case.schema for case in read_cases(name)] for name in names}
    for name, valid in generate(schemas, arguments.generate).items():
        print(f"Generated for {name}: {valid} are valid", flush=True)
    print("Compiled as the server does it:", asyncio.run(server_compile_times(vocabulary)))


if __name__ == "__main__":
    main()
