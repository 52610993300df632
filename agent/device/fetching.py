"""The work of one order: fetch the models that it names, then start. Pure: time is an argument.

An agent works on one order at a time. It subscribes to the parts of the models that are not on disk yet. If parts do not
arrive, it subscribes again after doubling waits, and the broker sends the retained parts once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from covey.agent.device.events import (
    Action,
    Actions,
    CancelWork,
    KeepModels,
    Notify,
    OrderRefused,
    ReportFailure,
    StartWork,
    Subscribe,
    Unsubscribe,
)
from covey.agent.device.stalls import STALLS_TO_SHOW, StallTimer, part_topics
from covey.shared.mqtt.part_window import PartWindow
from covey.shared.strategies.phase_names import EXCHANGES
from covey.shared.wire.messages import ModelRef, OrderMessage
from covey.shared.wire.topics import Topics


class WorkState(Enum):
    """What the agent does for an order."""

    IDLE = "idle"  # nothing to do, or the report lies in the outbox
    FETCHING = "fetching"  # the order names models that are not on disk
    WORKING = "working"


class Fetching:
    """The order that the agent works on, and the models on disk.

    Args:
        topics: where the parts of models lie.
        models: digests of the models that are on disk at the start.
    """

    def __init__(self, topics: Topics, models: Sequence[bytes]) -> None:
        self._topics = topics
        self.state = WorkState.IDLE
        self.order: OrderMessage | None = None  # None exactly while the state is IDLE
        self._on_disk = set(models)  # digests; the model store holds at least these
        self._newest: dict[str, bytes] = {}  # model key -> digest, as of the latest order or later
        self.parts = PartWindow[Action](Subscribe, Unsubscribe)  # as of the latest `settle`
        self._stall = StallTimer()  # watches only while FETCHING
        self._waits = 0  # for a part since the latest one came, of all orders: each may end sooner than a person learns of it

    def __repr__(self) -> str:
        if self.order is None:
            return "<Fetching: idle>"
        return f"<Fetching: {self.state.value} for step {self.order.step}>"

    @property
    def step(self) -> int:
        """Step of the order that the agent works on; 0 for none."""
        return self.order.step if self.order is not None else 0

    @property
    def wake_at(self) -> float | None:
        return self._stall.at

    def is_for(self, order: OrderMessage) -> bool:
        """Whether this is the work in hand. Another coordinator of the run may ask for other work in the same step."""
        mine = self.order
        if mine is None or mine.work is None or order.work is None or order.step != mine.step:
            return False
        return order.work.digest == mine.work.digest

    # the order

    def begin(self, order: OrderMessage) -> Actions:
        """Take up an order. Models that it does not name may leave the disk."""
        models = models_of(order)
        before = self.order
        models_are_known = before is not None and models_of(before) == models
        self.state = WorkState.FETCHING
        self.order = order
        if models_are_known:
            return []
        self._stall.reset()
        self._newest = {ref.key: ref.digest for ref in models}
        named = _digests(models)
        self._on_disk &= named
        return [KeepModels(named)]

    def proceed(self, now: float) -> Actions:
        """Start the work if all its models are on disk. Otherwise watch for the next part."""
        if self.state is not WorkState.FETCHING or self.order is None:
            return []
        if self._missing():
            self._watch_for_stall(now)
            return []
        self.state = WorkState.WORKING
        self._stall.stop()
        return [StartWork(self.order)]

    def refuse(self, order: OrderMessage, why: str) -> Actions:
        """Answer the order with a failure. Nothing that it names is fetched or built."""
        self.state = WorkState.WORKING
        self.order = order
        self._stall.stop()
        return [OrderRefused(order.step, why), ReportFailure(order, why)]

    def cancel(self) -> Actions:
        """Give up the order, if the agent works on one."""
        was_working = self.state is WorkState.WORKING
        self.finish()
        return [CancelWork()] if was_working else []

    def finish(self) -> None:
        self.state = WorkState.IDLE
        self.order = None
        self._stall.stop()

    # the models

    def link_up(self, now: float) -> None:
        self._waits = 0
        self._stall.reset()
        self._watch_for_stall(now)

    def part_arrived(self, topic: str, digest: bytes, now: float) -> None:
        self._waits = 0
        self._stall.reset()
        self._watch_for_stall(now)
        if digest in _digests(self._missing()):
            self.parts.came(topic)

    def model_ready(self, key: str, digest: bytes, now: float) -> Actions:
        """A model is complete on disk."""
        self._waits = 0
        self._on_disk.add(digest)
        self._newest[key] = digest
        if self.state is not WorkState.IDLE:
            return self.proceed(now)
        # no order names it yet: with delivery "all" the newest models arrive before their order
        self._on_disk = set(self._newest.values())
        return [KeepModels(frozenset(self._on_disk))]

    def model_damaged(self, digest: bytes, now: float) -> Actions:
        """Fetch the model again. The work begins again once it is there."""
        self._on_disk.discard(digest)
        if digest not in _digests(models_of(self.order)):
            return []
        self.state = WorkState.FETCHING
        self._stall.reset()
        return self.proceed(now)

    def tick(self, now: float) -> Actions:
        if not self._stall.is_due(now):
            return []
        self._watch_for_stall(now)
        actions = self.parts.again(self._topics_of(self._missing()))
        self._waits += 1
        if self._waits == STALLS_TO_SHOW:
            actions.append(
                Notify(
                    f"step {self.step}: the order has arrived, and the broker sends no part of its model, although it was "
                    f"asked {STALLS_TO_SHOW} times. Either the connection is slow, or the broker drops what is large (message_size_limit) "
                    "or not allowed, or its nodes do not share retained messages (RabbitMQ): name all of them to "
                    "`broker doctor`, and use one node for all agents"
                )
            )
        return actions

    def settle(self, last_order: OrderMessage | None, *, everything: bool, is_up: bool) -> Actions:
        """Subscribe to the parts that are needed now, and unsubscribe from the others.

        Args:
            last_order: the newest order that the agent has seen.
            everything: hold the newest models ahead of their order (`delivery: all` of a scenario).
            is_up: whether the link is connected. If it is not, the next connection subscribes.
        """
        actions = self.parts.need(self._needed_topics(last_order, everything))
        return actions if is_up else []

    def _needed_topics(self, last_order: OrderMessage | None, everything: bool) -> tuple[str, ...]:
        if everything:
            models = models_of(self.order or last_order)
            topics = self._topics_of(models)
            if not models:
                # nothing to do now: keep the subscriptions of the latest order that named models
                return self.parts.subscribed
            if len(topics) <= self.parts.most:
                return topics
        if self.state is WorkState.FETCHING:
            return self._topics_of(self._missing())
        return ()

    def _missing(self) -> list[ModelRef]:
        return [ref for ref in models_of(self.order) if ref.digest not in self._on_disk]

    def _topics_of(self, refs: Sequence[ModelRef]) -> tuple[str, ...]:
        return part_topics(self._topics, refs)

    def _watch_for_stall(self, now: float) -> None:
        if self.state is WorkState.FETCHING:
            self._stall.watch(now, sum(ref.size for ref in self._missing()))


def is_exchange(order: OrderMessage) -> bool:
    """Whether the order asks for a message of a secure sum, not for training."""
    return order.work is not None and order.work.phase in EXCHANGES


def models_of(order: OrderMessage | None) -> list[ModelRef]:
    """The models that an order names; none for no order, or one without work."""
    if order is None or order.work is None:
        return []
    return order.work.models


def _digests(models: Sequence[ModelRef]) -> frozenset[bytes]:
    return frozenset(ref.digest for ref in models)
