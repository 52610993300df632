"""The agents that can be invited in place of others, in the order of invitation. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Sequence, Set

from covey.shared.strategies.base import ClientId


class Spare:
    """Agents in a fixed order, of whom the first that is free is asked for again and again.

    An agent that is found busy or away loses its place, and takes it again when it is offered. So the first free agent
    is found without a look at the others, however many there are.

    Args:
        order: the agents, first choice first.
    """

    def __init__(self, order: Sequence[ClientId]) -> None:
        places = range(len(order))
        self._order = order
        self._places = dict(zip(order, places, strict=True))
        self._heap = list(places)  # places of agents that may be free
        self._in_heap = set(places)

    def __repr__(self) -> str:
        number = len(self._heap)
        return f"<Spare: {number} agents>"

    def offer(self, client: ClientId) -> None:
        """The agent may be free now. An agent that is not one of these is left out."""
        place = self._places.get(client)
        if place is None:
            return
        if place in self._in_heap:
            return
        heapq.heappush(self._heap, place)
        self._in_heap.add(place)

    def first(self, free: Set[ClientId], busy: Set[ClientId]) -> ClientId | None:
        """The first agent that is among `free` and not among `busy`; None if there is none."""
        heap = self._heap
        while heap:
            place = heap[0]
            client = self._order[place]
            is_free = client in free
            is_busy = client in busy
            if is_free and not is_busy:
                return client
            heapq.heappop(heap)
            self._in_heap.discard(place)
        return None
