"""What the parts of the schema compiler raise before a place in the document is known."""

from __future__ import annotations


class UnenforceableError(Exception):
    """Something that cannot be expressed exactly; becomes a `GrammarError` with a pointer.

    Attributes:
        message: what it is, for the client.
        keyword: the keyword at fault.
    """

    def __init__(self, message: str, keyword: str) -> None:
        super().__init__(message)
        self.message = message
        self.keyword = keyword
