"""The agent in the eyes of the others: its retained status, its id, and what it knows of the coordinator.

Pure: time is an argument. Any change that others may see is published at once. A roll call by itself is answered after
a delay of its own, so that a large fleet does not answer all at the same instant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from covey.agent.device.events import Actions, Inspected, Notify, PublishStatus, YieldId
from covey.shared.mqtt.duplicate_ids import DuplicateIds, Reaction
from covey.shared.mqtt.subscriptions import TopicsRefused
from covey.shared.programs.timers import earliest
from covey.shared.wire.documents import AgentStatus, CoordinatorStatus, ModelInUse, bounded_labels
from covey.shared.wire.format import FORMAT, speaks_other
from covey.shared.wire.roll_call import answer_delay_s

DAY_S = 86_400.0
PROGRESS_S = 1.0  # work that is over sooner is not published: only people follow it
MOST_LINKS = 1000  # of a day that are counted
TWINS_S = 3600.0  # another program with our id that was silent for so long is gone


@dataclass(frozen=True)
class SessionProgress:
    """The part of the status that the session's other machines know."""

    busy: bool
    dropped: dict[str, int]
    model: ModelInUse | None = None  # that the device uses itself
    unmet: str = ""  # why no work may or can begin now; empty if it may, or if work is under way
    refused: str = ""  # why the coordinator refused the newest report


@dataclass(frozen=True)
class Vitals:
    """The state of the machine."""

    disk_free: int | None = None  # bytes on the disk of the agent's state
    certificate: float | None = None  # when the first one ends that the connection needs

    @property
    def visible(self) -> tuple[Any, ...]:
        """What others should learn at once: half of the room is gone, or twice as much is there; another certificate."""
        return (None if self.disk_free is None else self.disk_free.bit_length(), self.certificate)


NOT_LOOKED = Vitals()


class SessionPresence:
    """The status of one session of an agent, and the latest status of the coordinator.

    Args:
        agent: the agent's id.
        session: a name for this life of the agent; of two lives, the older one sorts first.
        version: the installed version of Covey, for others to read.
        vitals: of the machine at the start.
    """

    def __init__(self, agent: str, session: str, version: str, vitals: Vitals = NOT_LOOKED) -> None:
        self.agent = agent
        self._session = session
        self._version = version
        self.vitals = vitals
        self._links: list[float] = []  # when each connection of the last day began
        self._twins = 0  # times that another program with our id was heard
        # then it has been silent for so long that it is gone
        self._twins_until: float | None = None
        self._duplicate_ids = DuplicateIds(session)
        self.is_up = False  # the link is connected
        # our connection ended those of others with our id, if there were some
        self._takes_over = False
        # what others see in the newest status; None: the broker has none of this connection
        self._published: tuple[Any, ...] | None = None
        self._is_due = False  # the status has to be published even if nothing changed
        self._shown = False  # what the newest status has of whether it works
        self._show_at: float | None = None  # when to publish that; None: it is as published
        self._serial = 0  # of the newest status; grows with each
        self._epoch = ""  # the roll call that the next status answers
        self._roll_at: float | None = None  # when to answer it
        # why this agent receives nothing, for others to read; None if it receives
        self.deafness: str | None = None
        self.inspection = Inspected("")  # the data, compared with the task it names
        self._labels: list[str] = []  # of the inspection, as many as a status has room for
        self._inspecting = ""  # digest of the newest task; the inspection may be of an older one
        self.coordinator: CoordinatorStatus | None = None  # its newest status
        self.live_run = ""  # the run of the newest coordinator that was online
        self._live_session = ""  # and its session

    def __repr__(self) -> str:
        link = "connected" if self.is_up else "not connected"
        return f"<Presence of {self.agent!r}: {link}, status {self._serial}>"

    @property
    def wake_at(self) -> float | None:
        return earliest(
            self._roll_at, self._show_at, self._duplicate_ids.announce_at, self._twins_until
        )

    @property
    def will(self) -> AgentStatus:
        """The status that others read when this agent is gone."""
        return AgentStatus(
            agent=self.agent,
            session=self._session,
            version=self._version,
            online=False,
            certificate=self.vitals.certificate,
        )

    @property
    def goodbye(self) -> AgentStatus:
        """The status that others read when this agent has ended in order. A last will has no serial."""
        return self.will.model_copy(update={"serial": self._serial + 1})

    def status(self, progress: SessionProgress) -> AgentStatus:
        """The agent's status now."""
        seen = self.inspection
        return AgentStatus(
            agent=self.agent,
            session=self._session,
            serial=self._serial,
            version=self._version,
            online=True,
            epoch=self._epoch,
            task=seen.task,
            samples=seen.samples,
            test_samples=seen.test_samples,
            labels=self._labels,
            problem=self.problem(progress),
            busy=progress.busy,
            dropped=progress.dropped,
            model=progress.model,
            brief=True,
            certificate=self.vitals.certificate,
            disk_free=self.vitals.disk_free,
            links=len(self._links),
            twins=self._twins,
            refused=progress.refused,
        )

    def announce(self, progress: SessionProgress, now: float) -> Actions:
        """Publish the status if it is due, or if others would see a change."""
        if not self.is_up:
            return []
        visible = self._visible(progress)
        if not self._is_due and visible == self._published:
            if progress.busy == self._shown:
                self._show_at = None
                return []
            if self._show_at is None:
                self._show_at = now + PROGRESS_S
            if now < self._show_at:
                return []
        self._serial += 1
        self._is_due = False
        self._roll_at = None
        self._show_at = None
        self._published = visible
        self._shown = progress.busy
        return [PublishStatus(self.status(progress))]

    def _visible(self, progress: SessionProgress) -> tuple[Any, ...]:
        """What others may see change. Counters are no reason to publish: they travel with the next status."""
        seen = self.inspection
        return (
            seen.task,
            seen.samples,
            seen.test_samples,
            self._labels,
            self.problem(progress),
            progress.model,
            progress.refused,
            *self.vitals.visible,
        )

    def problem(self, progress: SessionProgress) -> str | None:
        """Why this agent does not take part; None if it does."""
        return (
            self.deafness or self.other_format or self.inspection.problem or progress.unmet or None
        )

    @property
    def other_format(self) -> str:
        """Why this agent cannot work for the newest coordinator that was online; empty if it can."""
        seen = self.coordinator
        if seen is None or not seen.online or seen.format == FORMAT:
            return ""
        return speaks_other(
            "the coordinator", seen.format, seen.version, f"this agent, {self.agent},"
        )

    # the link, and other programs with this agent's id

    def link_up(self, now: float, *, fixed_client_id: bool = False) -> None:
        """With a fixed client id, another program with our id ends our connection, and we end its."""
        self.is_up = True
        self._links = [at for at in self._links[-MOST_LINKS:] if now - at < DAY_S] + [now]
        self._takes_over = fixed_client_id
        self._published = None  # the broker may have published our last will meanwhile

    def link_lost(self) -> None:
        self.is_up = False

    def subscriptions_refused(self, refused: TopicsRefused) -> Actions:
        self.deafness = refused.why or None
        return [Notify(self.deafness or "the broker accepts all subscriptions again")]

    def own_status_seen(self, status: AgentStatus, retained: bool, now: float) -> Actions:
        """React to a status under our own id: a last will of ours, or another program's word."""
        if not self.is_up:
            return []
        if not status.online:  # others read that we are gone
            self._is_due = True
        if status.session == self._session:
            return []
        if self._takes_over:
            # only one of us is connected at a time: what the other has left is its word, or its last will
            if status.problem:
                return []
        elif retained or not status.online:
            return []
        match self._duplicate_ids.observe(status.session, now):
            case Reaction.ANNOUNCE:
                self._is_due = True
                self._twins += 1
                self._twins_until = now + TWINS_S
            case Reaction.YIELD_ID:
                return [YieldId()]
        return []

    def tick(self, now: float) -> None:
        if self._roll_at is not None and now >= self._roll_at:
            self._is_due = True
        if self._twins_until is not None and now >= self._twins_until:
            self._twins, self._twins_until, self._is_due = 0, None, True
        announce_at = self._duplicate_ids.announce_at
        if announce_at is not None and now >= announce_at:
            self._duplicate_ids.announce_at = None
            self._is_due = True

    # the coordinator and its task

    def is_outdated(self, status: CoordinatorStatus, retained: bool) -> bool:
        """Whether the broker kept this status from before a crash. A coordinator that lives publishes its own."""
        return status.online and retained and status.session < self._live_session

    def coordinator_seen(self, status: CoordinatorStatus, now: float) -> bool:
        """Take note of the coordinator's status. True if it calls the roll or is back online."""
        before = self.coordinator
        self.coordinator = status
        if not status.online:
            return False
        self.live_run = status.run
        self._live_session = status.session
        if status.epoch != self._epoch:
            self._epoch = status.epoch
            self._roll_at = now + answer_delay_s(self.agent, status.epoch, status.spread_s)
            return True
        return before is not None and not before.online

    def is_new_task(self, status: CoordinatorStatus) -> bool:
        """Whether the status names a task that the data has not been compared with. Expects its inspection then."""
        if status.task is None or status.task_digest in ("", self._inspecting):
            return False
        self._inspecting = status.task_digest
        return True

    def compare_again(self) -> None:
        """The data has changed: the next status of the coordinator names a task to compare it with."""
        self._inspecting = ""

    def inspected(self, seen: Inspected) -> Actions:
        """The data was compared with a task. A problem is shown once."""
        if seen.task != self._inspecting:  # the task changed meanwhile
            return []
        before = self.inspection
        self.inspection = seen
        self._labels = bounded_labels(seen.labels)
        is_known = (seen.problem, seen.detail) == (before.problem, before.detail)
        if not seen.problem or is_known:
            return []
        return [Notify(seen.detail or seen.problem)]
