"""Publishes and stores who is there: at most once a second, and of a large fleet only what has changed.

The roster of a small fleet is one page, which is published whole. A large fleet has pages of `PAGE_AGENTS` agents. Every
second the rows that have changed are published, and one page of those that hold them. So no second costs more than a page
and the changes, however many agents there are.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence

from covey.coordinator.engine.members import Trouble
from covey.coordinator.engine.step import Stage
from covey.coordinator.odd import Broker, Odd, doctor
from covey.coordinator.record.notices import PhaseFolded
from covey.coordinator.record.roster_files import roster_file
from covey.coordinator.run.run import Run
from covey.coordinator.serve.roster import Roster
from covey.shared.mqtt.program import Effect, Publish
from covey.shared.storage.files import write_atomically
from covey.shared.strategies.base import ClientId
from covey.shared.wire.documents import RosterMessage
from covey.shared.wire.topics import Topics

ROSTER_EVERY_S = 1.0
PATIENCE = 20.0  # the roster takes at most a twentieth of the time, on a slow machine too


class RosterShow:
    """Makes the roster's messages from the roster and the run.

    Args:
        run: knows clusters, figures and quarantines.
        topics: of the federation.
        roster: the agents.

    Attributes:
        due: when to call `publish`; None: nothing has changed.
    """

    def __init__(self, run: Run, topics: Topics, roster: Roster) -> None:
        self._run = run
        self._topics = topics
        self._roster = roster
        self.due: float | None = None
        self._shown: dict[int, int] = {}  # hashes of the pages as they were published
        # why agents are not invited, as it was published
        self._apart: Mapping[ClientId, tuple[str | None, Trouble | None]] = {}
        self._has_folded = False  # since the newest look at the clusters
        self._pause_s = ROSTER_EVERY_S  # before the next publication
        self._doctor = doctor()
        self._of_reports: list[Odd] = []  # found in data and figures
        self._odd: list[Odd] = []  # as it was published
        self.broker: Callable[[], Broker] = Broker  # as the service sees it
        self._is_waiting = False

    def __repr__(self) -> str:
        return f"<RosterShow: {self._roster.pages!r}, due at {self.due}>"

    def changed(self, now: float) -> None:
        """Something has changed: publish it soon."""
        if self.due is None:
            self.due = now + self._pause_s

    def is_waiting(self, waits: bool, now: float) -> None:
        """Whether the run waits for agents: those that ended in order are odd then."""
        if waits != self._is_waiting:
            self._is_waiting = waits
            self.changed(now)

    def publish_at(self, time: float) -> None:
        """An operator waits to see a change."""
        self.due = time

    def folded(self, phase: PhaseFolded, now: float) -> None:
        """A fold may have changed clusters and figures."""
        self._has_folded = True
        self._roster.pages.touch_all(phase.reported)
        self.changed(now)

    def lost(self, now: float) -> None:
        """A broker may have forgotten every page: publish all of them again."""
        self._shown.clear()
        self._roster.pages.touch_all(self._roster.members.listed)
        self.changed(now)

    def publish(self, now: float) -> list[Effect]:
        """Publish what is due, and store it in the run's folder."""
        if self.due is None or now < self.due:
            return []
        self.due = None
        began = time.thread_time()
        self._look_at_run()
        self._look_for_odd()
        pages = self._roster.pages
        changed = pages.take_changes()
        effects: list[Effect] = []
        for first in range(0, len(changed) if pages.count > 1 else 0, pages.page_agents):
            changes = self._message(changed[first : first + pages.page_agents]).to_bytes()
            effects.append(Publish([(self._topics.roster_changes, changes)], retain=False))
        effects += self._publish_page()
        took_s = time.thread_time() - began
        self._pause_s = max(ROSTER_EVERY_S, PATIENCE * took_s)
        if pages.is_stale:
            self.changed(now)
        return effects

    def publish_all(self) -> list[Effect]:
        """Publish every page that has changed: the run ends, or this process does."""
        self.due = None
        self._look_at_run()
        self._look_for_odd()
        pages = self._roster.pages
        pages.touch_first()
        if self._run.engine.stage is Stage.DONE:  # no agent is busy any more
            pages.touch_all(self._roster.members.listed)
        pages.take_changes()
        effects: list[Effect] = []
        while pages.is_stale:
            effects += self._publish_page()
        return effects

    def _look_at_run(self) -> None:
        """Find the agents whose rows have changed because of the run."""
        run = self._run
        pages = self._roster.pages
        resting = run.engine.resting
        apart = {
            agent: (run.members[agent].quarantine, resting.get(agent))
            for agent in run.members.barred | resting.keys()
        }
        pages.touch_all(agent for agent, _ in apart.items() ^ self._apart.items())
        self._apart = apart
        if not self._has_folded:
            return
        self._has_folded = False
        if self._doctor is not None:
            self._of_reports = self._doctor.of_reports(run)
        clusters = run.assignment
        for member in run.members:  # all of them, but only after a fold
            cluster = clusters.get(member.id)
            if cluster != member.cluster_shown:
                member.cluster_shown = cluster
                pages.touch_all([member.id])

    def odd(self) -> list[Odd]:
        """The list of all that is odd about the fleet now."""
        if self._doctor is None:
            return []
        found: list[Odd] = self._doctor.now(
            self._run, self._roster, self.broker(), self._of_reports, waits=self._is_waiting
        )
        return found

    def _look_for_odd(self) -> None:
        """The list is on the first page."""
        odd = self.odd()
        if odd != self._odd:
            self._odd = odd
            self._roster.pages.touch_first()

    def _message(self, agents: Sequence[ClientId], odd: Sequence[Odd] = ()) -> RosterMessage:
        run = self._run
        rows = self._roster.rows(
            run.assignment, run.engine.resting, over=run.engine.stage is Stage.DONE, agents=agents
        )
        # our own rows need no check, which would take longer than all the rest
        return RosterMessage.model_construct(
            run=run.id,
            round=run.engine.round,
            agents=rows,
            refusals=dict(self._roster.refusals),
            pages=self._roster.pages.count,
            odd=[one.to_json() for one in odd],
        )

    def _publish_page(self) -> list[Effect]:
        """Publish and store the page that waits longest, unless it is as it was."""
        taken = self._roster.pages.take_page()
        if taken is None:
            return []
        number, agents = taken
        payload = self._message(agents, () if number else self._odd).to_bytes()
        content = hash(payload)
        if self._shown.get(number) == content:
            return []
        self._shown[number] = content
        # for people only; a full disk must not end a run for it
        with contextlib.suppress(OSError):
            write_atomically(roster_file(self._run.folder, number), payload, durable=False)
        return [Publish([(self._topics.roster_page(number), payload)])]
