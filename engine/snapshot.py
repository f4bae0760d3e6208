"""A picture of the engine at one moment, for people to look at. Reading it changes nothing.

It is bounded whatever the engine holds: the page map has at most `MAX_CELLS` cells, the tree at most
`MAX_NODES` nodes, and only the first `MAX_SEQUENCES` running and waiting sequences are shown. Taking it costs
time proportional to these bounds and to the pages in use, never to the size of the tree.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, islice
from typing import Literal

import numpy as np
import numpy.typing as npt

from engine.page_pool import PagePool
from engine.prefix_tree import Node, PrefixTree
from engine.request import Sequence
from engine.stream import FinishReason
from engine.timeline import Span
from engine.tokenizer import Tokenizer

MAX_CELLS = 4096
MAX_NODES = 256
MAX_SEQUENCES = 64
_MAX_USERS = 8
_TEXT_TOKENS = 24

_FREE, _EVICTABLE, _PROTECTED, _PRIVATE = range(4)


@dataclass(frozen=True, kw_only=True, slots=True)
class SequenceView:
    """One choice of one request; times are `time.monotonic()` seconds."""

    request: str
    index: int
    state: Literal["waiting", "running"] | FinishReason
    arrived: float
    first_token: float
    """0.0: not yet."""
    finished: float
    """0.0: not yet."""
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    preemptions: int
    pages: int
    shared_pages: int
    """How many of `pages` the prefix tree owns."""
    spans: list[Span]
    """Without gaps from arrival to the last step that was read back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeView:
    """A node of the prefix tree."""

    id: int
    parent: int
    """0: a root."""
    tokens: int
    pages: int
    users: int
    """Running sequences whose prefix ends in it or below."""
    requests: list[str]
    """Some of them by request id."""
    hidden: int
    """Children that are not in the picture."""
    text: str | None
    """How its tokens begin; None where texts are not to be shown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PageMap:
    """The page pool in order of page ids.

    A cell is one letter for `pages_per_cell` pages, that of the state most of them are in: `.` free,
    `c` cached for nobody now, `s` cached and in use, `p` private to one running sequence.
    """

    cells: str
    pages_per_cell: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """Scheduler, pool and tree."""

    sequences: list[SequenceView]
    """Running ones, then waiting ones in their order."""
    page_map: PageMap
    nodes: list[NodeView]
    """Parents come before their children."""


def take(
    running: Iterable[Sequence],
    waiting: Iterable[Sequence],
    pool: PagePool,
    tree: PrefixTree | None,
    tokenizer: Tokenizer | None,
) -> Snapshot:
    """The present picture; `tokenizer` spells the beginnings of cached prefixes, None keeps them private."""
    running = list(running)
    users = _users(running)
    return Snapshot(
        sequences=[view(sequence) for sequence in islice(chain(running, waiting), MAX_SEQUENCES)],
        page_map=page_map(_page_states(running, [node for node, _ in users.values()], pool)),
        nodes=_nodes(tree, users, tokenizer) if tree is not None else [],
    )


def view(sequence: Sequence) -> SequenceView:
    """What can be told of a sequence without its text."""
    timing = sequence.timing
    return SequenceView(
        request=sequence.request.id,
        index=sequence.index,
        state=sequence.finish_reason or ("running" if sequence.pages else "waiting"),
        arrived=timing.arrived,
        first_token=timing.first_token,
        finished=timing.finished,
        prompt_tokens=sequence.num_prompt,
        cached_tokens=sequence.cached_tokens,
        output_tokens=sequence.known - sequence.num_prompt,
        preemptions=sequence.preemptions,
        pages=len(sequence.pages),
        shared_pages=sequence.num_shared,
        spans=sequence.timeline.spans,
    )


def page_map(states: npt.NDArray[np.uint8]) -> PageMap:
    """The map of pages in these states ([num_pages], 0 to 3), coarse enough for `MAX_CELLS`."""
    per_cell = -(-len(states) // MAX_CELLS)
    num_cells = -(-len(states) // per_cell)
    padded = np.full(num_cells * per_cell, 255, np.uint8)
    padded[: len(states)] = states
    grid = padded.reshape(num_cells, per_cell)
    counts = np.stack([(grid == state).sum(1) for state in range(4)])
    # Of equally frequent states the busiest: reversed, because argmax takes the first.
    letters = np.frombuffer(b"psc.", np.uint8)[counts[::-1].argmax(0)]
    return PageMap(cells=letters.tobytes().decode(), pages_per_cell=per_cell)


_Users = dict[int, tuple[Node, list[Sequence]]]


def _users(running: list[Sequence]) -> _Users:
    """Every locked node by its id, parents first, with the running sequences that lock it."""
    found: _Users = {}
    for sequence in running:
        path: list[Node] = []
        node = sequence.node
        while node is not None and node.parent is not None:
            path.append(node)
            node = node.parent
        for node in reversed(path):
            found.setdefault(node.id, (node, []))[1].append(sequence)
    return found


def _page_states(running: list[Sequence], locked: list[Node], pool: PagePool) -> npt.NDArray[np.uint8]:
    """[num_pages]. What is taken, in no locked node and in no page table is cached for nobody."""
    states = np.where(np.frombuffer(pool.taken, np.uint8), _EVICTABLE, _FREE).astype(np.uint8)
    states[list(chain.from_iterable(node.pages for node in locked))] = _PROTECTED
    private = chain.from_iterable(sequence.pages[sequence.num_shared :] for sequence in running)
    states[list(private)] = _PRIVATE
    return states


def _nodes(tree: PrefixTree, users: _Users, tokenizer: Tokenizer | None) -> list[NodeView]:
    """Nodes in use first, then level by level the youngest, as many as fit."""
    chosen = {node.id: node for node, _ in islice(users.values(), MAX_NODES)}
    level: deque[Node] = deque(islice(tree.roots, MAX_NODES))
    while level and len(chosen) < MAX_NODES:
        children = level.popleft().children
        for child in islice(reversed(children.values()), MAX_NODES):
            if child.id not in chosen and len(chosen) >= MAX_NODES:
                break
            chosen[child.id] = child
            level.append(child)
    shown = Counter(node.parent.id for node in chosen.values() if node.parent is not None)
    return [_node(node, shown[node.id], users, tokenizer) for node in chosen.values()]


def _node(node: Node, num_shown: int, users: _Users, tokenizer: Tokenizer | None) -> NodeView:
    _, sequences = users.get(node.id, (node, []))
    assert node.parent is not None, "roots are not drawn"
    return NodeView(
        id=node.id,
        parent=node.parent.id if node.parent.parent is not None else 0,
        tokens=len(node.tokens),
        pages=len(node.pages),
        users=len(sequences),
        requests=[sequence.request.id for sequence in sequences[:_MAX_USERS]],
        hidden=len(node.children) - num_shown,
        text=_beginning(node, tokenizer) if tokenizer is not None else None,
    )


def _beginning(node: Node, tokenizer: Tokenizer) -> str:
    known = (token for token in node.tokens[:_TEXT_TOKENS] if token < tokenizer.vocab_size)
    return b"".join(map(tokenizer.token_bytes.__getitem__, known)).decode("utf-8", "replace")
