"""Reads the link: checks what arrives and turns it into items. Parts of reports go straight to where they wait."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import Protocol

from covey.coordinator.record.notices import DiskRemark
from covey.coordinator.serve.desk import STATUS, Desk
from covey.coordinator.serve.direct import AggregatorItem, Direct
from covey.coordinator.serve.hearing import Flooding
from covey.coordinator.serve.intake import Arrived, StatusQueued
from covey.coordinator.serve.publisher import packet_bytes
from covey.shared.errors import DecodeError
from covey.shared.mqtt.duplicate_ids import Reaction
from covey.shared.mqtt.link import Down, Echo, Incoming, Received, Up
from covey.shared.mqtt.program import Effect, Show
from covey.shared.storage.files import obstacle
from covey.shared.wire.documents import Control, CoordinatorStatus
from covey.shared.wire.topics import AgentTopic, ClusterTopic, PlainTopic

log = logging.getLogger(__name__)

RATE_LINES = 1000  # of this many messages beyond the limits, one is named in the audit log
FULL_NOTICE_S = 60.0  # between two notices that the disk is full


@dataclass(frozen=True)
class Repeat:
    """Another coordinator published, and may have overwritten retained documents: publish all of them again."""

    shard: int = 0  # where it did


@dataclass(frozen=True)
class Cleared:
    """The coordinator's status was cleared, and perhaps all that a broker retained."""

    shard: int = 0


ReadItem = (
    Up
    | Down
    | Echo
    | Arrived
    | StatusQueued
    | AggregatorItem
    | Control
    | Repeat
    | Cleared
    | Flooding
)


class GiveWay(Protocol):
    """Ends this coordinator, since another one is at work."""

    def __call__(self, name: str, *, stale: bool) -> None:
        """`name` is the other's scenario; `stale`: it has taken up this very run since."""


class Reader:
    """Turns incoming messages into items, and refuses others. It counts refusals in the roster.

    Args:
        desk: of the service.
        aggregators: take what aggregators send, if the run has any.
        give_way: called if another coordinator continues and this one ends.
    """

    def __init__(self, desk: Desk, aggregators: Direct, give_way: GiveWay) -> None:
        self._desk = desk
        self._aggregators = aggregators
        self._give_way = give_way
        self._full_noticed = -FULL_NOTICE_S  # when a part was last dropped for want of room

    def __repr__(self) -> str:
        return f"<Reader of {self._desk.topics.federation}: {self._desk.intake!r}>"

    def read(self, incoming: Incoming, now: float) -> list[ReadItem | Effect]:
        """What follows from something that happened on the link; nothing if it was refused."""
        if not isinstance(incoming, Received):
            return [incoming]
        try:
            item = self._understand(incoming, now)
        except DecodeError as error:
            return self._refuse(error, incoming, now)
        except OSError as error:
            if not obstacle(error, self._desk.run.folder):
                raise
            return self._drop_for_want_of_room(error, now)
        if item is None:
            return []
        if isinstance(item, Repeat) or item == Control(command="tell"):
            # at once: others wait for it, and a fold may take long
            self._desk.timers.stop(STATUS)
            return [*self._desk.own_status.publish(), item]
        return [item]

    def _understand(self, message: Received, now: float) -> ReadItem | None:
        """The item of a message. Raises DecodeError for one that must be refused, OSError if it cannot be stored."""
        desk = self._desk
        if desk.elsewhere.take(message):
            return None
        payload = message.payload
        topic = desk.topics.parse(message.topic)
        if topic == PlainTopic("coordinator/status"):
            if not payload:
                return None if message.retained else Cleared(message.shard)
            return self._own_status(CoordinatorStatus.from_bytes(payload), message, now)
        if isinstance(topic, ClusterTopic):  # our own: what a broker delivers is seen by the link
            return None
        desk.run.count_wire("up", packet_bytes(message.topic, payload))
        match topic:
            case AgentTopic(agent) if desk.hearing.has_left(agent, message.shard):
                return None
            case AgentTopic(_, "status") if not payload:  # the topic was cleared
                return None
            case AgentTopic(agent, "status"):
                return desk.intake.status(agent, payload, message.retained, now, message.shard)
            case AgentTopic(_, "report") if not payload:  # the topic was cleared
                return None
            case AgentTopic(agent, "report"):
                return desk.intake.part(agent, payload, now, message.shard)
            case PlainTopic("aggregator/status" | "aggregator/sum") as own:
                return self._aggregators.read(own, message, now)
            case PlainTopic("control"):
                return Control.from_bytes(payload)
        return None

    def _own_status(
        self, status: CoordinatorStatus, message: Received, now: float
    ) -> Repeat | None:
        """A status on our own topic: our own, the last will of an earlier process, or that of another coordinator."""
        ids = self._desk.duplicate_ids
        if message.retained or status.session == ids.session:
            return None
        if not status.online:
            return Repeat(message.shard)
        mine = self._desk.run
        if status.run == mine.id and status.incarnation != mine.facts.incarnation:
            # agents follow the newer one alone; whatever becomes of it, our state is the older one
            if status.incarnation > mine.facts.incarnation:
                self._give_way(status.name, stale=True)
                return None
            return Repeat(message.shard)
        match ids.observe(status.session, now):
            case Reaction.ANNOUNCE:
                return Repeat(message.shard)
            case Reaction.YIELD_ID:
                self._give_way(status.name, stale=False)
        return None

    def _refuse(self, error: DecodeError, message: Received, now: float) -> list[ReadItem | Effect]:
        """Count a message, of those beyond the limits few in the audit log, and leave the topics of an agent that floods."""
        desk, agent = self._desk, None
        with contextlib.suppress(DecodeError):
            topic = desk.topics.parse(message.topic)
            if isinstance(topic, AgentTopic):
                agent = topic.agent
        if error.reason != "rate" or desk.roster.refusals["rate"] % RATE_LINES == 0:
            desk.run.audit.blame("refuse", agent, str(error))
        desk.roster.refuse(error.reason, agent)
        log.debug("refused a message: %s", error)
        if agent is None or not desk.intake.floods(agent, len(message.payload), now):
            return []
        return [*desk.hearing.leave(agent, message.shard, now)]

    def _drop_for_want_of_room(self, error: OSError, now: float) -> list[ReadItem | Effect]:
        """Drop a part of a report, because the disk cannot take it: its agent sends the report again until it is accepted."""
        self._desk.roster.refuse("disk full")
        if now < self._full_noticed + FULL_NOTICE_S:
            return []
        self._full_noticed = now
        return [Show(DiskRemark(f"{error}: a report is dropped; its agent sends it again later"))]
