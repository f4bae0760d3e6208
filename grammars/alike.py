"""Which places of a text are as good as others to someone who looks for its end."""

from __future__ import annotations

from dataclasses import replace

from grammars.regular.ast import Concat, Regex, Repeat, concat, repeat
from grammars.schema.points import Level, Mode, Point
from grammars.schema.reader import Reader

Order = tuple[Point, int]


def loosened(language: Regex) -> tuple[Regex, int]:
    """The same for languages that differ only in how often their beginning may come; and a number.

    The one with the least number has every text of the others.
    """
    parts = language.parts if isinstance(language, Concat) and language.parts else (language,)
    first, *rest = parts
    if isinstance(first, Repeat) and first.high is None:
        return concat((repeat(first.inner, 0, None), *rest)), first.low
    if isinstance(first, Repeat) and first.low == 0 and first.high is not None:
        return concat((repeat(first.inner, 0, 2), *rest)), -first.high
    return language, 0


class JsonOrder:
    """Points of JSON that go on alike, and which of those has every end of the others.

    Where names may be any, it makes no difference which came: one of each kind may do, though it need not.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._levels: dict[Level, Level] = {}

    def of(self, point: Point) -> Order:
        """The same for points that go on alike, and a number: the least has every end of the others."""
        tables = self._reader.tables
        if tables.has_distinct:
            return point, 0
        rank = 0
        if point.texts and all(isinstance(language, Regex) for language, _ in point.texts):
            texts = point.texts
            if len(texts) == 1 and isinstance(texts[0][0], Regex):
                language, rank = loosened(texts[0][0])
                texts = ((language, texts[0][1]),)
            point = replace(point, texts=texts, text="")
        if tables.has_names:
            text = "" if point.mode == Mode.KEY and not self._may_be_named(point) else point.text
            point = replace(point, level=self._unnamed(point.level), text=text)
        return point, rank

    def languages(self, point: Point) -> tuple[Regex, ...]:
        """Those of the text or name that is being written; nothing elsewhere."""
        if point.mode == Mode.QUOTED:
            return tuple(language for language, _ in point.texts if isinstance(language, Regex))
        if point.mode == Mode.KEY:
            keys = (part.key for item in point.items for part, _ in self._reader.steps(item.position))
            return tuple(key.language for key in keys if key is not None)
        return ()

    def _may_be_named(self, point: Point) -> bool:
        """Whether a name of the schema's own begins so."""
        keys = (part.key for item in point.items for part, _ in self._reader.steps(item.position))
        return any(
            key is not None and key.name is not None and key.name.startswith(point.text) for key in keys
        )

    def _unnamed(self, level: Level) -> Level:
        """The same, and those around it, without the names that came."""
        known = self._levels.get(level)
        if known is None:
            parent = None if level.parent is None else self._unnamed(level.parent)
            known = self._levels[level] = replace(level, parent=parent, seen=frozenset())
        return known
