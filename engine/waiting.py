"""The sequences that wait, and whose turn it is."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator, Mapping

from engine.request import Sequence


class WaitingQueue:
    """Waiting sequences by tenant. Within a tenant they are served by `Sequence.order`.

    Between tenants it is the turn of the one with the fewest running sequences (max-min fairness over the
    places to run, whoever floods the queue), of several such of the one that started one least lately.
    Neither lets one starve: no order is behind all later arrivals, and no tenant behind others' next turns.
    """

    def __init__(self) -> None:
        self._tenants: dict[str, list[Sequence]] = {}
        self._tokens = Counter[str]()
        """Of their prompts, by tenant."""
        self._number = 0
        self.tokens = 0
        """Of all their prompts."""
        self._turn = 0
        self._last_turn: dict[str, int] = {}
        """When a tenant started a sequence last; as many as there are tenants."""

    def __len__(self) -> int:
        return self._number

    def __iter__(self) -> Iterator[Sequence]:
        """In the order of their turns, if nothing ran."""
        return self.turns({})

    def number_of(self, tenant: str) -> int:
        """Its sequences."""
        return len(self._tenants.get(tenant, ()))

    def tokens_of(self, tenant: str) -> int:
        """Those of its prompts."""
        return self._tokens[tenant]

    def ahead(self, tenant: str, order: tuple[float, int]) -> int:
        """How many have their turn before a new one of a tenant, as far as the queue decides that."""
        before = bisect_left(self._tenants.get(tenant, []), order, key=_order)
        others = (len(queue) for name, queue in self._tenants.items() if name != tenant)
        return before + sum(min(count, before + 1) for count in others)

    def add(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        insort(self._tenants.setdefault(tenant, []), sequence, key=_order)
        self._count(tenant, 1, sequence.num_prompt)

    def remove(self, sequence: Sequence) -> None:
        """Raises KeyError or ValueError if it does not wait."""
        tenant = sequence.request.tenant
        queue = self._tenants[tenant]
        at = bisect_left(queue, sequence.order, key=_order)
        if at == len(queue) or queue[at] is not sequence:
            raise ValueError("the sequence does not wait")
        del queue[at]
        self._count(tenant, -1, -sequence.num_prompt)
        if not queue:
            del self._tenants[tenant], self._tokens[tenant]

    def _count(self, tenant: str, number: int, tokens: int) -> None:
        self._number += number
        self.tokens += tokens
        self._tokens[tenant] += tokens

    def start(self, sequence: Sequence) -> None:
        """Take out one that runs from now on: its tenant had its turn."""
        self.remove(sequence)
        self._turn += 1
        self._last_turn[sequence.request.tenant] = self._turn

    def turns(self, running: Mapping[str, int]) -> Iterator[Sequence]:
        """All that wait in the order of their turns.

        Args:
            running: running sequences by tenant; one that is given out is counted as if it ran.

        The queue may change meanwhile only by the removal of what was given out.
        """
        queues = {tenant: iter(list(queue)) for tenant, queue in self._tenants.items()}
        heap = [
            (running.get(tenant, 0), self._last_turn.get(tenant, 0), sequence.order, sequence)
            for tenant, queue in queues.items()
            for sequence in (next(queue),)
        ]
        heapq.heapify(heap)
        while heap:
            count, turn, _, sequence = heap[0]
            yield sequence
            following = next(queues[sequence.request.tenant], None)
            if following is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (count + 1, turn, following.order, following))


def _order(sequence: Sequence) -> tuple[float, int]:
    return sequence.order
