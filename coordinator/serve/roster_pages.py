"""What of the roster has changed since it was published: rows, and the pages that hold them. Pure.

An agent stays on its page as long as it is known. So a change of one agent concerns one row and one page, however many
agents there are.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from covey.shared.strategies.base import ClientId

PAGE_AGENTS = 500  # rows of a page: some 150 kB
ROW_BYTES = 400  # of an agent


def page_agents(part_bytes: int) -> int:
    """How many agents a page holds so that it is not larger than a part of a model."""
    return max(min(PAGE_AGENTS, part_bytes // ROW_BYTES), 1)


class RosterPages:
    """The pages of a roster.

    Args:
        page_agents: how many agents a page holds.
    """

    def __init__(self, page_agents: int = PAGE_AGENTS) -> None:
        self.page_agents = page_agents
        self._members: list[set[ClientId]] = [set()]  # by page; the first one is always there
        self._page_of: dict[ClientId, int] = {}
        self._roomy: list[int] = [0]  # a heap of the pages that have room
        self._changed: set[ClientId] = set()  # since `take_changes`
        self._stale: dict[int, None] = {}  # pages to publish, in the order of their first change

    def __repr__(self) -> str:
        return f"<RosterPages: {len(self._page_of)} agents on {self.count} pages>"

    @property
    def count(self) -> int:
        """The number of pages, at least 1."""
        return len(self._members)

    @property
    def is_stale(self) -> bool:
        """Whether something has changed and was not published yet."""
        if self._stale:
            return True
        return len(self._changed) > 0

    def touch(self, agent: ClientId) -> None:
        """The row of this agent has changed, or is new."""
        page = self._page_of.get(agent)
        if page is None:
            page = self._place(agent)
        self._changed.add(agent)
        self._stale[page] = None

    def touch_all(self, agents: Iterable[ClientId]) -> None:
        """The rows of these agents have changed. Agents that have no row are left out."""
        for agent in agents:
            if agent in self._page_of:
                self.touch(agent)

    def touch_first(self) -> None:
        """Something has changed that is no agent's: it is on the first page."""
        self._stale[0] = None

    def drop(self, agent: ClientId) -> None:
        """This agent has no row any more. Its place is free."""
        page = self._page_of.pop(agent, None)
        if page is None:
            return
        members = self._members[page]
        if len(members) == self.page_agents:
            heapq.heappush(self._roomy, page)
        members.remove(agent)
        self._changed.add(agent)
        self._stale[page] = None

    def take_changes(self) -> list[ClientId]:
        """The agents whose rows have changed or gone since the last call, in ascending order."""
        changed = sorted(self._changed)
        self._changed.clear()
        return changed

    def take_page(self) -> tuple[int, Sequence[ClientId]] | None:
        """The page that waits longest to be published, and its agents in ascending order; None if none waits."""
        if not self._stale:
            return None
        page = next(iter(self._stale))
        del self._stale[page]
        return page, sorted(self._members[page])

    def _place(self, agent: ClientId) -> int:
        """Find room for an agent. A new page changes the first one, which has the number of pages."""
        if not self._roomy:
            new_page = len(self._members)
            self._roomy.append(new_page)
            self._members.append(set())
            self.touch_first()
        page = self._roomy[0]
        self._page_of[agent] = page
        members = self._members[page]
        members.add(agent)
        if len(members) == self.page_agents:
            heapq.heappop(self._roomy)
        return page
