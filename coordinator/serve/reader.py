"""Reads the link: checks what arrives and turns it into items. Parts of reports go straight to where they wait."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from covey.coordinator.run.notices import DiskRemark, Observer
from covey.coordinator.run.run import Run
from covey.coordinator.serve.aggregators import Aggregators
from covey.coordinator.serve.elsewhere import Elsewhere
from covey.coordinator.serve.intake import Intake
from covey.coordinator.serve.items import Cleared, Item, Repeat
from covey.coordinator.serve.publisher import packet_bytes
from covey.coordinator.serve.roster import Roster
from covey.shared.errors import DecodeError
from covey.shared.files import obstacle
from covey.shared.mqtt.duplicate_ids import DuplicateIds, Reaction
from covey.shared.mqtt.link import Incoming, Message
from covey.shared.wire.documents import Control, CoordinatorStatus
from covey.shared.wire.topics import AgentTopic, PlainTopic, Topics

log = logging.getLogger(__name__)

FULL_TOLD_S = 60.0  # between two notices that the disk is full


class Reader:
    """Turns incoming messages into items. What it refuses it counts in the roster.

    Args:
        run: counts the traffic.
        topics: of the federation.
        intake: takes statuses and parts of reports.
        aggregators: take what aggregators send.
        roster: counts refusals.
        duplicate_ids: decides between this coordinator and another one.
        now: the time (s).
        observer: gets remarks about the disk.
        elsewhere: takes what comes from other federations.
        give_way: called if another coordinator continues and this one ends, with the name of its scenario and whether it
            has taken up this very run since.
    """

    def __init__(
        self,
        run: Run,
        topics: Topics,
        *,
        intake: Intake,
        aggregators: Aggregators,
        roster: Roster,
        duplicate_ids: DuplicateIds,
        now: Callable[[], float],
        observer: Observer,
        give_way: Callable[[str, bool], None],
        elsewhere: Elsewhere,
    ) -> None:
        self._run = run
        self._topics = topics
        self._intake = intake
        self._aggregators = aggregators
        self._roster = roster
        self._duplicate_ids = duplicate_ids
        self._now = now
        self._observer = observer
        self._give_way = give_way
        self._elsewhere = elsewhere
        self._full_told = -FULL_TOLD_S  # when a part was last dropped for want of room

    def __repr__(self) -> str:
        return f"<Reader of {self._topics.federation}: {self._intake!r}>"

    def item(self, incoming: Incoming) -> Item | None:
        """What follows from something that happened on the link; None: nothing, or it was refused."""
        if not isinstance(incoming, Message):
            return incoming
        try:
            return self._understand(incoming)
        except DecodeError as error:
            self._refuse(error, incoming)
        except OSError as error:
            if not obstacle(error, self._run.folder):
                raise
            self._drop_for_want_of_room(error)
        return None

    def _understand(self, message: Message) -> Item | None:
        """The item of a message. Raises DecodeError for one that must be refused, OSError if it cannot be stored."""
        if self._elsewhere.take(message):
            return None
        payload = message.payload
        topic = self._topics.parse(message.topic)
        if topic == PlainTopic("coordinator/status"):
            if not payload:
                return None if message.retained else Cleared(message.shard)
            return self._own_status(CoordinatorStatus.from_bytes(payload), message)
        self._run.traffic["wire_up"] += packet_bytes(message.topic, payload)
        match topic:
            case AgentTopic(_, "status") if not payload:  # the topic was cleared
                return None
            case AgentTopic(agent, "status"):
                now = self._now()
                return self._intake.status(agent, payload, message.retained, now, message.shard)
            case AgentTopic(_, "report") if not payload:  # the topic was cleared
                return None
            case AgentTopic(agent, "report"):
                return self._intake.part(agent, payload, self._now(), message.shard)
            case PlainTopic("aggregator/status" | "aggregator/sum") as own:
                return self._aggregators.read(own, message, self._now())
            case PlainTopic("control"):
                return Control.from_bytes(payload)
        return None

    def _own_status(self, status: CoordinatorStatus, message: Message) -> Item | None:
        """A status on our own topic: our own, the last will of an earlier process, or that of another coordinator."""
        if message.retained or status.session == self._duplicate_ids.session:
            return None
        if not status.online:
            return Repeat(message.shard)
        mine = self._run.facts
        if status.run == mine.run and status.incarnation != mine.incarnation:
            # agents follow the newer one alone; whatever becomes of it, our state is the older one
            if status.incarnation > mine.incarnation:
                self._give_way(status.name, True)
                return None
            return Repeat(message.shard)
        reaction = self._duplicate_ids.observe(status.session, self._now())
        match reaction:
            case Reaction.ANNOUNCE:
                return Repeat(message.shard)
            case Reaction.YIELD_ID:
                self._give_way(status.name, False)
        return None

    def _refuse(self, error: DecodeError, message: Message) -> None:
        agent = None
        with contextlib.suppress(DecodeError):
            topic = self._topics.parse(message.topic)
            if isinstance(topic, AgentTopic):
                agent = topic.agent
        why = str(error)
        self._roster.refuse(error.reason, agent)
        self._run.audit.blame("refuse", agent, why)
        log.debug("refused a message: %s", error)

    def _drop_for_want_of_room(self, error: OSError) -> None:
        """Drop a part of a report, because the disk cannot take it: its agent sends the report again until it is accepted."""
        self._roster.refuse("disk full")
        now = self._now()
        if now >= self._full_told + FULL_TOLD_S:
            self._full_told = now
            why = f"{error}: a report is dropped; its agent sends it again later"
            self._observer(DiskRemark(why))
