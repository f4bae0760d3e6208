"""The pages of the KV pool: which are free. What is in them is the model's business."""

from __future__ import annotations

from collections.abc import Iterable


class PagePool:
    """Hands out page ids 0..total-1. Freed pages are reused first, while they are still in a cache."""

    def __init__(self, total: int, page_size: int) -> None:
        self.total = total
        self.page_size = page_size
        self._free = list(range(total - 1, -1, -1))
        self._taken = bytearray(total)

    @property
    def free(self) -> int:
        """Number of pages that can be allocated now."""
        return len(self._free)

    @property
    def taken(self) -> bytes:
        """One byte a page: 1 where it is allocated."""
        return bytes(self._taken)

    def pages_for(self, tokens: int) -> int:
        """Pages that hold `tokens` tokens."""
        return -(-tokens // self.page_size)

    def allocate(self, count: int) -> list[int]:
        """Take `count` pages; raises IndexError when fewer are free."""
        if count > len(self._free):
            raise IndexError(f"{count} pages wanted, {len(self._free)} free")
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._taken[page] = 1
        return pages

    def release(self, pages: Iterable[int]) -> None:
        """Give pages back; raises ValueError for a page that is already free."""
        for page in pages:
            if not self._taken[page]:
                raise ValueError(f"page {page} freed twice")
            self._taken[page] = 0
            self._free.append(page)
