"""The roster as its readers put it together: from pages, and from the rows that have changed since. Pure.

The first page has the number of pages. Every row is complete in itself, so a message that was lost leaves some rows older
than others until their page comes again, and nothing else. Among changes, an empty row means that the agent was forgotten.
"""

from __future__ import annotations

from typing import Any

from covey.shared.wire.documents import RosterMessage
from covey.shared.wire.topics import Topics


class RosterView:
    """All pages of one run's roster that have come so far."""

    def __init__(self) -> None:
        self._pages: dict[int, RosterMessage] = {}
        self._changes: dict[str, Any] = {}  # newest rows, by agent, that came after its page

    def __repr__(self) -> str:
        return f"<RosterView: {len(self._pages)} pages>"

    @property
    def first(self) -> RosterMessage | None:
        """The first page; None before it has come."""
        return self._pages.get(0)

    @property
    def is_complete(self) -> bool:
        """Whether all pages have come."""
        first = self.first
        if first is None:
            return False
        return len(self._pages) >= first.pages

    def take_page(self, number: int, page: RosterMessage) -> None:
        """Keep a page. The first page of another run replaces everything."""
        if number == 0:
            self._first_page(page)
        self._pages[number] = page
        for agent in page.agents:
            self._changes.pop(agent, None)

    def _first_page(self, page: RosterMessage) -> None:
        """Forget another run, and pages that the roster has no more."""
        before = self.first
        if before is not None and before.run != page.run:
            self._pages.clear()
            self._changes.clear()
        for number in tuple(self._pages):
            if number >= page.pages:
                del self._pages[number]

    def take_changes(self, changes: RosterMessage) -> None:
        """Keep rows that have changed since their pages were made."""
        first = self.first
        if first is None:
            return
        if first.run == changes.run:
            self._changes.update(changes.agents)

    def take(self, topics: Topics, topic: str, payload: bytes) -> bool:
        """Keep what came on a topic; False if it is none of the roster's. Raises DecodeError."""
        before, _, word = topic.rpartition("/")
        is_first = topic == topics.roster
        if not is_first and before != topics.roster:
            return False
        message = RosterMessage.from_bytes(payload)
        if is_first:
            self.take_page(0, message)
        elif word.isdecimal():
            self.take_page(int(word), message)
        else:
            self.take_changes(message)
        return True

    def further_topics(self, topics: Topics) -> list[str]:
        """What to subscribe to besides the first page, once that has come: changes first, so that none is missed."""
        first = self.first
        if first is None:
            return []
        if first.pages == 1:
            return []
        found = [topics.roster_changes]
        for number in range(1, first.pages):
            found.append(topics.roster_page(number))
        return found

    @property
    def message(self) -> RosterMessage | None:
        """Everything that is known, as one roster; None before the first page."""
        first = self.first
        if first is None:
            return None
        rows: dict[str, Any] = {}
        for page in self._pages.values():
            rows.update(page.agents)
        rows.update(self._changes)
        in_order: dict[str, Any] = {}
        for agent in sorted(rows):
            row = rows[agent]
            if row:
                in_order[agent] = row
        # the rows were checked when their pages were read
        return RosterMessage.model_construct(
            run=first.run,
            round=first.round,
            agents=in_order,
            refusals=first.refusals,
            pages=1,
            odd=first.odd,
        )
