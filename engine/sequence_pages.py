"""Which pages a running sequence has: those of its cached prefix, which the tree shares, then its own."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from engine.page_pool import PagePool
from engine.prefix_tree import Prefix, PrefixTree
from engine.request import Sequence
from engine.stats import PageCounts, Stats


class SequencePages:
    """Owner of the page tables of sequences.

    Args:
        tree: keeps whole pages of computed prefixes; None: nothing is shared.
        stats: counts what is evicted.
    """

    def __init__(self, pool: PagePool, tree: PrefixTree | None, stats: Stats) -> None:
        self.page_size = pool.page_size
        self.is_sharing = tree is not None
        self._pool = pool
        self._tree = tree
        self._stats = stats

    @property
    def available(self) -> int:
        """Pages that are free, or would be if every prefix that nobody uses was evicted."""
        return self._pool.free + (self._tree.evictable if self._tree else 0)

    def match(self, sequence: Sequence) -> Prefix:
        """The cached prefix; never all of the sequence, since its last token must run to give logits, as
        must those that something is measured at."""
        if self._tree is None:
            return Prefix([], None)
        limit = min(sequence.known, sequence.length - 1, sequence.first_target)
        return self._tree.match(sequence.request.namespace, sequence.tokens[:limit])

    def begin(self, sequence: Sequence, prefix: Prefix) -> None:
        """Let a sequence without pages begin behind a cached prefix, which stays while it has it."""
        if prefix.node is not None and self._tree is not None:
            self._tree.lock(prefix.node)
        sequence.node, sequence.num_shared = prefix.node, len(prefix.pages)
        sequence.pages = array("i", prefix.pages)
        sequence.computed = sequence.scheduled = len(prefix.pages) * self.page_size

    def missing(self, sequence: Sequence) -> int:
        """Pages that all of its tokens need beyond those it has."""
        return self._pool.pages_for(sequence.length) - len(sequence.pages)

    def extend(self, sequence: Sequence, tokens: int) -> bool:
        """Have pages for so many of its tokens, evicting cached prefixes if need be; False if that is not
        enough."""
        if tokens <= len(sequence.pages) * self.page_size:
            return True
        missing = self._pool.pages_for(tokens) - len(sequence.pages)
        if not self._make_free(missing):
            return False
        sequence.pages.extend(self._pool.allocate(missing))
        return True

    def _make_free(self, count: int) -> bool:
        short = count - self._pool.free
        if short > 0 and self._tree is not None:
            evicted = self._tree.evict(short)
            self._pool.release(evicted)
            self._stats.evicted_pages += len(evicted)
            short -= len(evicted)
        return short <= 0

    def share(self, sequence: Sequence) -> None:
        """Hand the sequence's fully computed pages to the tree and use the tree's instead.

        Another sequence may have handed over the same prefix first. The page table is rewritten to
        the tree's pages before the duplicates are freed.
        """
        whole = sequence.computed // self.page_size
        if self._tree is None or whole <= sequence.num_shared:
            return
        tokens = sequence.tokens[: whole * self.page_size]
        prefix = self._tree.insert(sequence.request.namespace, tokens, sequence.pages[:whole])
        assert prefix.node is not None, "at least one page was inserted"
        self._tree.lock(prefix.node)
        if sequence.node is not None:
            self._tree.unlock(sequence.node)
        duplicates = set(sequence.pages[:whole]).difference(prefix.pages)
        sequence.pages[:whole] = array("i", prefix.pages)
        sequence.node, sequence.num_shared = prefix.node, whole
        self._pool.release(duplicates)

    def release(self, sequence: Sequence) -> None:
        """Give up all pages: the tree keeps its own, the rest becomes free."""
        if sequence.node is not None and self._tree is not None:
            self._tree.unlock(sequence.node)
        self._pool.release(sequence.pages[sequence.num_shared :])
        sequence.node, sequence.num_shared, sequence.pages = None, 0, array("i")
        sequence.computed = sequence.scheduled = 0

    def counts(self, running: Iterable[Sequence]) -> PageCounts:
        """Pages by state, of which the running sequences have theirs."""
        return PageCounts(
            free=self._pool.free,
            evictable=self._tree.evictable if self._tree else 0,
            protected=self._tree.protected if self._tree else 0,
            private=sum(len(sequence.pages) - sequence.num_shared for sequence in running),
            total=self._pool.total,
        )

    def flush(self) -> None:
        """Give up every cached page that nobody uses."""
        if self._tree is not None:
            self._pool.release(self._tree.evict(self._tree.evictable))
