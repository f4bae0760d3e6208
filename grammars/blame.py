"""Which part of a constraint a refusal is for: the place it names, or else one found by trials."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import time
from collections.abc import Callable
from typing import Any

import msgspec

from grammars.allowance import NICE
from grammars.base import GrammarError, UnsatisfiableError
from grammars.json_pointer import keys_of
from grammars.limits import check_limits
from grammars.schema.document import keyword_at
from grammars.schema.fault import fault_in_schema, fault_in_tags, repeated_in
from grammars.schema.trials import Trials, Verdict
from grammars.spec import Constraint, JsonOptions

ENDLESS = "no value is found within the limits, so none could be ended"
"""Why JSON of which no shortest value is known is refused: a budget would cut it off."""
_OPTIONS = frozenset(JsonOptions.__struct_fields__)
_NUMBER = re.compile(r"\d+")
_VERDICTS: tuple[Verdict, ...] = ("taken", "same", "other")
_FAILED = len(_VERDICTS)
_PATIENCE = 8
"""A trial may take so many times its processor time by the clock."""


def has_parts(constraint: Constraint) -> bool:
    """Whether it is JSON, so that a pointer can lead to a part of it."""
    return constraint.kind in ("json_schema", "structural_tag")


def is_placed(error: GrammarError, constraint: Constraint) -> bool:
    """Whether a refusal names a part that is there; or what is wrong is no part of the JSON."""
    if error.keyword in _OPTIONS or not has_parts(constraint):
        return True
    return error.keyword is not None and _is_there(constraint.spec, error.pointer)


def placed(
    error: GrammarError,
    constraint: Constraint,
    judge: Callable[[Constraint], Verdict],
    *,
    most_s: float | None = None,
    clock: Callable[[], float] = time.thread_time,
) -> GrammarError:
    """A refusal that names the smallest part found to be at fault, if there is one.

    Args:
        judge: tells of another constraint.
        most_s: how long the search may take; None: the default.
        clock: what tells.
    """

    def judge_text(text: str) -> Verdict:
        return judge(msgspec.structs.replace(constraint, spec=text))

    in_tags = constraint.kind == "structural_tag"
    pointer = None
    try:
        check_limits(constraint)
        trials = Trials(
            constraint.spec,
            judge_text,
            is_unsatisfiable=isinstance(error, UnsatisfiableError),
            most_s=most_s,
            clock=clock,
        )
        if error.message == ENDLESS:
            pointer = repeated_in(trials)
        elif in_tags:
            pointer = fault_in_tags(trials)
        else:
            pointer = fault_in_schema(trials)
    except (GrammarError, ValueError, RecursionError):
        pass  # too large to look at, or no JSON: nothing is known of its parts
    if pointer is None:
        # The place it came with, as far as there is one.
        pointer = error.pointer
        while pointer and not _is_there(constraint.spec, pointer):
            pointer = pointer.rpartition("/")[0]
    return type(error)(error.message, pointer=pointer, keyword=keyword_at(pointer, in_tags=in_tags))


def are_for_the_same(message: str, other: str) -> bool:
    """Whether two refusals are for the same, however much of it."""
    return _NUMBER.sub("", message) == _NUMBER.sub("", other)


def in_copy(work: Callable[[], Verdict], most_s: float) -> Verdict | None:
    """What work says, done in a copy of this process, which has one thread, that is nice; None: it ended.

    It ends when it takes more processor time, or memory, whatever native code is at.
    """
    pid = os.fork()
    if pid == 0:
        code = _FAILED
        try:
            os.setpriority(os.PRIO_PROCESS, 0, NICE)
            signal.setitimer(signal.ITIMER_PROF, most_s)
            signal.setitimer(signal.ITIMER_REAL, most_s * _PATIENCE)
            code = _VERDICTS.index(work())
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return _VERDICTS[code] if 0 <= code < len(_VERDICTS) else None


def seconds_of_copies() -> float:
    """Processor time that ended copies of this process took."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _is_there(text: str, pointer: str) -> bool:
    if pointer and not pointer.startswith("/"):
        return False
    try:
        value: Any = json.loads(text)
        for key in keys_of(pointer):
            value = value[int(key) if isinstance(value, list) else key]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return False
    return True
