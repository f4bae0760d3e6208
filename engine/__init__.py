"""The engine: requests in, text out; knows nothing of HTTP.

from engine import LLM, SamplingParams

with LLM() as llm:
    print(llm.generate("Radishes are", SamplingParams(max_tokens=20))[0].text)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.offline import LLM
    from engine.params import SamplingParams

__all__ = ["LLM", "SamplingParams"]


def __getattr__(name: str) -> Any:
    # Not imported before it is asked for: it brings torch along, which takes seconds.
    if name == "LLM":
        from engine.offline import LLM  # noqa: PLC0415

        return LLM
    if name == "SamplingParams":
        from engine.params import SamplingParams  # noqa: PLC0415

        return SamplingParams
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
