"""The radix tree on its own: matching, splitting, locking, eviction, and a random comparison."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.page_pool import PagePool
from engine.prefix_tree import PrefixTree


def test_matches_whole_pages_only() -> None:
    tree = PrefixTree(4)
    tree.insert("", [1, 2, 3, 4, 5, 6, 7, 8], [10, 11])
    assert tree.match("", [1, 2, 3, 4, 5, 6, 7]).pages == [10]
    assert tree.match("", [1, 2, 3, 4, 5, 6, 7, 8, 9]).pages == [10, 11]
    assert tree.match("", [1, 2, 3]).pages == []
    assert tree.match("", [2, 2, 3, 4]).node is None


def test_namespaces_share_nothing() -> None:
    tree = PrefixTree(2)
    tree.insert("a", [1, 2], [0])
    assert tree.match("b", [1, 2]).pages == []
    tree.insert("b", [1, 2], [1])
    assert tree.match("a", [1, 2]).pages == [0]
    assert tree.match("b", [1, 2]).pages == [1]


def test_split_passes_locks_to_the_upper_half() -> None:
    tree = PrefixTree(2)
    tail = tree.insert("", [1, 2, 3, 4, 5, 6], [0, 1, 2]).node
    assert tail is not None
    tree.lock(tail)
    head = tree.match("", [1, 2, 3, 4, 9, 9]).node
    assert head is not None
    assert (head.pages, head.locks, tail.pages, tail.locks) == ([0, 1], 1, [2], 1)
    assert (tree.protected, tree.evictable) == (3, 0)
    tree.unlock(tail)
    assert (tree.protected, tree.evictable) == (0, 3)
    assert sorted(tree.evict(3)) == [0, 1, 2]


def test_insert_keeps_the_pages_it_has_and_names_the_duplicates() -> None:
    tree = PrefixTree(2)
    tree.insert("", [1, 2, 3, 4], [0, 1])
    assert tree.insert("", [1, 2, 3, 4, 5, 6], [7, 8, 9]).pages == [0, 1, 9]


def test_a_chunked_prompt_stays_one_node() -> None:
    tree = PrefixTree(2)
    node = tree.insert("", [1, 2], [0]).node
    assert node is not None
    tree.lock(node)
    assert tree.insert("", [1, 2, 3, 4], [0, 1]).node is node
    assert (tree.num_nodes, tree.protected, tree.evictable) == (1, 2, 0)


def test_a_leaf_in_shared_use_does_not_grow() -> None:
    """Its other users would protect pages that are not theirs."""
    tree = PrefixTree(2)
    shared = tree.insert("", [1, 2], [0]).node
    assert shared is not None
    tree.lock(shared)
    tree.lock(shared)
    longer = tree.insert("", [1, 2, 3, 4], [0, 1]).node
    assert longer is not shared
    assert (tree.protected, tree.evictable) == (1, 1)


def test_evicts_the_least_recently_used_leaf_from_its_end() -> None:
    tree = PrefixTree(1)
    tree.insert("", [1, 2, 3], [0, 1, 2])
    tree.insert("", [5, 6], [3, 4])
    tree.match("", [1, 2, 3])
    assert tree.evict(1) == [4]
    assert tree.match("", [5, 6]).pages == [3]
    assert tree.evict(2) == [1, 2], "the branch that was just looked at is now the younger one"


def test_never_evicts_a_locked_path() -> None:
    tree = PrefixTree(1)
    node = tree.insert("", [1, 2], [0, 1]).node
    assert node is not None
    tree.insert("", [1, 2, 3], [0, 1, 2])
    tree.insert("", [1, 7], [0, 3])
    locked = tree.match("", [1, 2]).node
    assert locked is not None
    tree.lock(locked)
    assert sorted(tree.evict(10)) == [2, 3]
    assert tree.match("", [1, 2]).pages == [0, 1]


def test_an_emptied_namespace_is_forgotten() -> None:
    tree = PrefixTree(1)
    for salt in range(100):
        tree.insert(str(salt), [1], [salt])
    assert len(tree.evict(100)) == 100
    assert (tree.num_nodes, tree._roots) == (0, {})


def test_rejects_half_pages_and_unbalanced_unlocks() -> None:
    tree = PrefixTree(2)
    with pytest.raises(ValueError, match="3 tokens do not fill 1 pages of 2"):
        tree.insert("", [1, 2, 3], [0])
    node = tree.insert("", [1, 2], [0]).node
    assert node is not None
    with pytest.raises(ValueError, match="unlock without lock"):
        tree.unlock(node)


def test_pool_refuses_a_second_free() -> None:
    pool = PagePool(4, 16)
    pages = pool.allocate(3)
    pool.release(pages[:1])
    with pytest.raises(ValueError, match="freed twice"):
        pool.release(pages[:1])
    with pytest.raises(IndexError, match="3 pages wanted, 2 free"):
        pool.allocate(3)


@given(st.lists(st.lists(st.integers(0, 2), max_size=9), max_size=25), st.integers(1, 3))
def test_equals_a_set_of_prefixes(prompts: list[list[int]], page_size: int) -> None:
    """Without eviction a match is the longest whole-page prefix of anything inserted, on stable pages."""
    tree = PrefixTree(page_size)
    page_of: dict[tuple[int, ...], int] = {}
    fresh = iter(range(10_000))
    for prompt in prompts:
        whole = len(prompt) // page_size
        prefixes = [tuple(prompt[: (n + 1) * page_size]) for n in range(whole)]
        matched = tree.match("", prompt).pages
        assert matched == [page_of[prefix] for prefix in prefixes if prefix in page_of]
        offered = [next(fresh) for _ in range(whole)]
        for prefix, page in zip(prefixes, offered, strict=True):
            page_of.setdefault(prefix, page)
        kept = tree.insert("", prompt[: whole * page_size], offered).pages
        assert kept == [page_of[prefix] for prefix in prefixes]
    assert tree.evictable == len(page_of)
    assert sorted(tree.evict(len(page_of))) == sorted(page_of.values())
    assert tree.num_nodes == 0
