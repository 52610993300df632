"""What the parts of the service share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from covey.coordinator.run import effects as runs
from covey.coordinator.run.effects import SendOrder
from covey.coordinator.run.happenings import Happening
from covey.coordinator.run.run import Run
from covey.coordinator.serve.elsewhere import Elsewhere
from covey.coordinator.serve.hearing import Hearing
from covey.coordinator.serve.intake import Intake
from covey.coordinator.serve.own_status import OwnStatus
from covey.coordinator.serve.placement import Placement, SilentShards
from covey.coordinator.serve.roster import Roster
from covey.coordinator.serve.roster_show import RosterShow
from covey.shared.mqtt.duplicate_ids import DuplicateIds
from covey.shared.mqtt.program import Effect
from covey.shared.programs.timers import Timers
from covey.shared.storage.audit import Flood
from covey.shared.strategies.base import ClientId
from covey.shared.wire.topics import Topics

T = TypeVar("T")


@dataclass
class Desk:
    """The data of the service, without methods.

    The link is read in the event loop while items are handled in a thread, so both hold the lock. A thread gives it up only
    while the run works (`apart`): that may take long, and what the reader looks at then is complete.
    """

    run: Run
    topics: Topics
    shards: int  # brokers
    roster: Roster
    placement: Placement  # on which broker each agent lives
    silent: SilentShards  # agents of brokers that were lost
    intake: Intake  # what agents send
    hearing: Hearing  # whose topics are read
    own_status: OwnStatus
    show: RosterShow
    elsewhere: Elsewhere
    duplicate_ids: DuplicateIds  # decides between this coordinator and another one
    # agents that do not have their newest order, in the order of their turns: a broker did not take it, or it can wait
    unpublished: dict[ClientId, None] = field(default_factory=dict)
    shared: bytes = b""  # digest of what the published orders share
    # bytes of the largest part of a model that we hear ourselves, since a link came up
    heard: int = 0
    timers: Timers = field(default_factory=Timers)
    flood: Flood = field(default_factory=lambda: Flood(singly=300))  # limits notices about peers
    effects: list[Effect] = field(default_factory=list)  # of the items that are handled now
    lock: threading.Lock = field(default_factory=threading.Lock)


# names of timers
STATUS = "publish our status"
ORDERS = "publish orders that agents do not have"
LOOKED = "stop looking at other federations"


def apart(desk: Desk, work: Callable[[], T]) -> T:
    """Let the reader continue while the run works, which may wait for the disk."""
    desk.lock.release()
    try:
        return work()
    finally:
        desk.lock.acquire()


def happen(desk: Desk, *events: Happening, now: float) -> list[runs.Effect]:
    """The effects of events of the run, once everything that they have changed is on the disk."""
    found = apart(desk, lambda: desk.run.handle_all(events, now))
    return [effect for effects in found for effect in effects]


def orders_of(desk: Desk, clients: Iterable[ClientId]) -> list[SendOrder]:
    """The newest order of each of these agents."""
    return apart(desk, lambda: [desk.run.order_of(client) for client in clients])
