"""RESULTS.md: sections that are replaced one by one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_TITLE: Final = "# Results on a GPU"


class Report:
    """The sections of a file, in the order in which they were first put."""

    def __init__(self, path: Path | None) -> None:
        """
        Args:
            path: where to write; what is there under headings is kept. None: nowhere.
        """
        self._path = path
        text = path.read_text() if path is not None and path.exists() else ""
        pieces = re.split(r"(?m)^## (.+)\n", text)[1:]
        self.sections = {
            title: body.strip().splitlines() for title, body in zip(pieces[::2], pieces[1::2], strict=True)
        }

    def put(self, title: str, lines: list[str]) -> None:
        """Set a section, and write the file."""
        self.sections[title] = lines
        if self._path is not None:
            parts = [f"## {name}\n\n" + "\n".join(body) for name, body in self.sections.items()]
            self._path.write_text("\n\n".join([_TITLE, *parts]) + "\n")
