"""What is known of text with tags that hold JSON, as plain tables."""

from __future__ import annotations

from dataclasses import dataclass

from grammars.schema.tables import Tables


@dataclass(frozen=True, slots=True)
class TagTables:
    """Tags and what they hold.

    Attributes:
        tags: begin, end, and the tables of the JSON between.
        triggers: texts with which a tag begins.
        at_least_one, stop_after_first: as in `grammars.tags.TriggeredTags`.
    """

    tags: tuple[tuple[bytes, bytes, Tables], ...]
    triggers: tuple[bytes, ...]
    at_least_one: bool
    stop_after_first: bool
