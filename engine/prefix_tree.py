"""A radix tree over token ids whose nodes own KV pages: equal prompt prefixes are computed once.

The idea is SGLang's RadixAttention (arXiv:2312.07104), on whole pages. An edge is a span of whole
pages of tokens; children are keyed by their first page, so siblings differ within it. Everything is
iterative and works on plain ints.

    root --[a b c d | e f g h]--> node --[i j k l]--> leaf          page_size = 4
                                       \\-[i j x y]--> leaf

A lock on a node protects it and its ancestors from eviction. Unlocked leaves are evicted least
recently used first, page by page from their ends.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class Node:
    """A span of tokens and the pages with their KV; `len(tokens) == len(pages) * page_size`."""

    __slots__ = ("children", "id", "last_used", "locks", "namespace", "pages", "parent", "tokens")

    def __init__(
        self, id_: int, namespace: str, parent: Node | None, tokens: list[int], pages: list[int]
    ) -> None:
        self.id = id_
        self.namespace = namespace
        self.parent = parent
        self.tokens = tokens
        self.pages = pages
        self.children: dict[tuple[int, ...], Node] = {}
        self.locks = 0
        self.last_used = 0


@dataclass(frozen=True, slots=True)
class Prefix:
    """A path from the root: its pages in order and its last node (None for the empty path)."""

    pages: list[int]
    node: Node | None


class PrefixTree:
    """Maps prefixes to pages, apart for each namespace.

    Attributes:
        evictable: pages owned by nodes without a lock.
        protected: pages owned by locked nodes.
        num_nodes: nodes that own pages (the roots do not).
    """

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.evictable = 0
        self.protected = 0
        self.num_nodes = 0
        self._roots: dict[str, Node] = {}
        self._ids = itertools.count(1)
        self._clock = 0
        # Candidates for eviction. Entries go stale when their node is used, locked or grows children;
        # they are recognised when popped. (last use, serial number, node): the serial number breaks ties.
        self._heap: list[tuple[int, int, Node]] = []
        self._offers = 0

    @property
    def roots(self) -> Iterable[Node]:
        """One for each namespace; their children are the first nodes that own pages."""
        return self._roots.values()

    def match(self, namespace: str, tokens: Sequence[int]) -> Prefix:
        """The longest cached prefix of `tokens`, in whole pages. Splits a node that matches in part."""
        pages: list[int] = []
        node = self._roots.get(namespace)
        at = 0
        while node is not None:
            child = self._child(node, tokens, at)
            if child is None:
                break
            child = self._split(child, self._common_pages(child, tokens, at))
            pages += child.pages
            at += len(child.tokens)
            self._touch(child)
            node = child
        return Prefix(pages, node if pages else None)

    def insert(self, namespace: str, tokens: Sequence[int], pages: Sequence[int]) -> Prefix:
        """Hand over `pages`, which hold the KV of `tokens` (whole pages), to the tree.

        Where the tree has a prefix already it keeps its own pages: the returned prefix holds the pages
        to use from now on. Those of `pages` that differ from it are duplicates; they stay the caller's,
        who must stop using them and may then free them.
        """
        if len(tokens) != len(pages) * self.page_size:
            raise ValueError(f"{len(tokens)} tokens do not fill {len(pages)} pages of {self.page_size}")
        known = self.match(namespace, tokens)
        rest = len(known.pages)
        if rest == len(pages):
            return known
        parent = known.node or self._root(namespace)
        new_tokens, new_pages = list(tokens[rest * self.page_size :]), list(pages[rest:])
        if known.node is not None and not parent.children and parent.locks <= 1:
            # A leaf grows in place: a prompt that arrives in chunks stays one node. If it is locked
            # by another sequence, that lock now protects a little more than it must.
            node = parent
            node.tokens += new_tokens
            node.pages += new_pages
        else:
            node = Node(next(self._ids), namespace, parent, new_tokens, new_pages)
            parent.children[self._key(new_tokens, 0)] = node
            self.num_nodes += 1
        if node.locks:
            self.protected += len(new_pages)
        else:
            self.evictable += len(new_pages)
        self._touch(node)
        return Prefix(known.pages + new_pages, node)

    def lock(self, node: Node) -> None:
        """Protect the path to `node` from eviction until `unlock`."""
        step: Node | None = node
        while step is not None:
            if step.locks == 0:
                self.evictable -= len(step.pages)
                self.protected += len(step.pages)
            step.locks += 1
            step = step.parent

    def unlock(self, node: Node) -> None:
        """Take back one `lock`."""
        step: Node | None = node
        while step is not None:
            if step.locks == 0:
                raise ValueError("unlock without lock")
            step.locks -= 1
            if step.locks == 0:
                self.protected -= len(step.pages)
                self.evictable += len(step.pages)
                self._offer(step)
            step = step.parent

    def evict(self, count: int) -> list[int]:
        """Give up up to `count` pages, from the ends of the least recently used unlocked leaves."""
        freed: list[int] = []
        while len(freed) < count and self._heap:
            last_used, _, leaf = heapq.heappop(self._heap)
            if leaf.last_used != last_used or not self._is_candidate(leaf):
                continue
            keep = max(0, len(leaf.pages) - (count - len(freed)))
            freed += leaf.pages[keep:]
            self.evictable -= len(leaf.pages) - keep
            if keep:
                del leaf.pages[keep:], leaf.tokens[keep * self.page_size :]
                self._offer(leaf)
            else:
                self._remove(leaf)
        return freed

    def _root(self, namespace: str) -> Node:
        if namespace not in self._roots:
            self._roots[namespace] = Node(next(self._ids), namespace, None, [], [])
        return self._roots[namespace]

    def _child(self, node: Node, tokens: Sequence[int], at: int) -> Node | None:
        return node.children.get(self._key(tokens, at)) if at + self.page_size <= len(tokens) else None

    def _key(self, tokens: Sequence[int], at: int) -> tuple[int, ...]:
        return tuple(tokens[at : at + self.page_size])

    def _common_pages(self, node: Node, tokens: Sequence[int], at: int) -> int:
        """Whole pages that `node` shares with `tokens[at:]`; the first is known to be equal."""
        size = self.page_size
        whole = min(len(node.pages), (len(tokens) - at) // size)
        if node.tokens[: whole * size] == list(tokens[at : at + whole * size]):
            return whole
        for page in range(1, whole):
            here = page * size
            if node.tokens[here : here + size] != list(tokens[at + here : at + here + size]):
                return page
        return whole

    def _split(self, node: Node, pages: int) -> Node:
        """Cut `node` after `pages` pages; the new upper half inherits locks and time."""
        if pages == len(node.pages):
            return node
        size = pages * self.page_size
        parent = node.parent
        assert parent is not None, "roots own no pages"
        upper = Node(next(self._ids), node.namespace, parent, node.tokens[:size], node.pages[:pages])
        upper.locks, upper.last_used = node.locks, node.last_used
        parent.children[self._key(upper.tokens, 0)] = upper
        node.parent = upper
        del node.tokens[:size], node.pages[:pages]
        upper.children[self._key(node.tokens, 0)] = node
        self.num_nodes += 1
        return upper

    def _remove(self, leaf: Node) -> None:
        parent = leaf.parent
        assert parent is not None, "roots are never candidates"
        children = parent.children
        del children[next(key for key, child in children.items() if child is leaf)]
        leaf.parent = None
        self.num_nodes -= 1
        if not children and parent.parent is None:
            del self._roots[parent.namespace]
        self._offer(parent)

    def _touch(self, node: Node) -> None:
        self._clock += 1
        node.last_used = self._clock
        self._offer(node)

    def _is_candidate(self, node: Node) -> bool:
        return node.locks == 0 and not node.children and bool(node.pages) and node.parent is not None

    def _offer(self, node: Node) -> None:
        """Put `node` up for eviction if it is an unlocked leaf."""
        if not self._is_candidate(node):
            return
        self._offers += 1
        heapq.heappush(self._heap, (node.last_used, self._offers, node))
        if len(self._heap) > 64 + 4 * self.num_nodes:
            live = {
                id(node): (last_used, offer, node)
                for last_used, offer, node in self._heap
                if node.last_used == last_used and self._is_candidate(node)
            }
            self._heap = sorted(live.values())
