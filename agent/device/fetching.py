"""The work of one order: fetch the models that it names, then start. Pure: time is an argument.

An agent works on one order at a time. It subscribes to the parts of the models that are not on disk yet. If parts do not
arrive, it subscribes again after doubling waits, and the broker sends the retained parts once more.

A brief order names the part that all agents share by its digest. That part is fetched like a model, once, and kept for the
orders that follow. An order whose digest never arrives is never followed.
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
from covey.shared.mqtt.part_window import PartWindow
from covey.shared.strategies.phase_names import EXCHANGES
from covey.shared.wire.brief_work import whole_of
from covey.shared.wire.messages import ModelRef, OrderMessage, SharedWork
from covey.shared.wire.topics import Topics

STALL_S = 3.0  # first wait for the next part of a model; doubles
STALL_LIMIT_S = 60.0
# of models that reach an agent at least while it shares a machine and a broker with others
FETCHED_BYTES_PER_S = 4_000_000
MAX_DOUBLINGS = 16
STALLS_TO_SHOW = 3  # waits for a part, each twice as long, before a person learns of it


class StallTimer:
    """Waits for the next part; each wait without one is twice as long."""

    def __init__(self) -> None:
        self.at: float | None = None  # when to subscribe again; None: nothing is awaited
        self.stalls = 0  # waits since the latest part arrived, at most MAX_DOUBLINGS

    def __repr__(self) -> str:
        return f"<StallTimer: {self.stalls} stalls, due at {self.at}>"

    def reset(self) -> None:
        """A part arrived, or other parts are awaited: the next wait is short."""
        self.stalls = 0

    def watch(self, now: float, size: int = 0) -> None:
        """Wait for the next part from now on.

        Args:
            now: the time.
            size: bytes of the models that are not complete. The parts of large ones may come late, because those for other
                agents come first; to subscribe again would bring all of them a second time.
        """
        doubled = (STALL_S + size // FETCHED_BYTES_PER_S) * 2**self.stalls
        self.at = now + min(doubled, STALL_LIMIT_S)

    def stop(self) -> None:
        """Nothing is awaited any more."""
        self.at = None

    def is_due(self, now: float) -> bool:
        """Whether the wait has been too long. The next one is then longer."""
        if self.at is None or now < self.at:
            return False
        self.stalls = min(self.stalls + 1, MAX_DOUBLINGS)
        return True


def part_topics(topics: Topics, refs: Sequence[ModelRef]) -> tuple[str, ...]:
    """The topics of all parts of some models."""
    found: dict[str, None] = {}  # as an ordered set: two refs may name the same model
    for ref in refs:
        model = topics.model(ref.key)
        for part in range(ref.parts):
            found[f"{model}/{part}"] = None
    return tuple(found)


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
        return [*self.parts.need(()), OrderRefused(order.step, why), ReportFailure(order, why)]

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
                    f"step {self.step}: the order has arrived, and no part of its model, although the broker was asked "
                    f"{STALLS_TO_SHOW} times. Either the disk here takes nothing (another line has the reason), or the connection "
                    "is slow, or the broker drops what is large (message_size_limit) or not allowed, or its nodes do not share "
                    "retained messages (RabbitMQ): name all of them to `broker doctor`, and use one node for all agents"
                )
            )
        return actions

    def settle(self, last_order: OrderMessage | None, *, everything: bool, is_up: bool) -> Actions:
        """Subscribe to the parts that are needed now, and unsubscribe from the others.

        Args:
            last_order: the newest order that the agent has seen, without what its owner's rules refuse.
            everything: hold the newest models ahead of their order (`delivery: all` of a scenario).
            is_up: whether the link is connected. If it is not, the next connection subscribes.
        """
        actions = self.parts.need(self._needed_topics(last_order, everything))
        return actions if is_up else []

    def _needed_topics(self, last_order: OrderMessage | None, everything: bool) -> tuple[str, ...]:
        if everything:
            topics = self._topics_of(models_of(last_order))
            if not topics:
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


MAX_KNOWN = 4  # shared parts that are kept: of the newest phases
# an order is about as large as the shared part: that one came and the other did not is no matter of bandwidth
WITHHELD = (
    f"orders arrive, and the broker sends nothing of what it should retain for them, although it was asked {STALLS_TO_SHOW} "
    "times: its nodes do not share retained messages (RabbitMQ). Use one node for the coordinator and all agents, or "
    "independent brokers; `broker doctor` with all addresses shows what crosses"
)


class Briefs:
    """The shared parts that are here, and the order that waits for one.

    Args:
        topics: where the parts of contents lie.
    """

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._known: dict[bytes, SharedWork] = {}  # by digest, the newest last
        self._waiting: OrderMessage | None = None  # names a shared part that is not here
        self.parts = PartWindow[Action](Subscribe, Unsubscribe)  # as of the latest `settle`
        self._stall = StallTimer()  # watches while an order waits

    def __repr__(self) -> str:
        waits = self._missing is not None
        return f"<Briefs: {len(self._known)} known, waiting: {waits}>"

    @property
    def wake_at(self) -> float | None:
        return self._stall.at

    @property
    def withheld(self) -> str:
        """Why an order cannot be followed, for others to read; empty while there is no reason to doubt the broker."""
        is_withheld = self._waiting is not None and self._stall.stalls >= STALLS_TO_SHOW
        return WITHHELD if is_withheld else ""

    @property
    def _missing(self) -> ModelRef | None:
        """The shared part that an order waits for."""
        order = self._waiting
        if order is None or order.brief is None:
            return None
        return order.brief.shared

    def whole(self, order: OrderMessage, now: float) -> OrderMessage | None:
        """The order with its whole work; None if it has to wait for the shared part. The newest order waits."""
        waiting = self._waiting
        if waiting is not None and waiting.run == order.run and order.age < waiting.age:
            return None  # a late duplicate
        self._waiting = None
        self._stall.stop()
        brief = order.brief
        if brief is None:
            return order
        shared = self._known.get(brief.shared.digest)
        if shared is None:
            self._waiting = order
            self._stall.reset()
            self._stall.watch(now)
            return None
        work = whole_of(brief, shared)
        return order.model_copy(update={"work": work, "brief": None})

    def ready(self, digest: bytes, shared: SharedWork, now: float) -> OrderMessage | None:
        """A shared part is here. Returns the order that has waited for it."""
        self._known[digest] = shared
        if len(self._known) > MAX_KNOWN:
            oldest = next(iter(self._known))
            del self._known[oldest]
        missing = self._missing
        if missing is None or missing.digest != digest:
            return None
        order = self._waiting
        assert order is not None  # noqa: S101 - it names what was missing
        return self.whole(order, now)

    def link_up(self, now: float) -> None:
        self._stall.reset()
        if self._waiting is not None:
            self._stall.watch(now)

    def tick(self, now: float) -> Actions:
        """Subscribe again if nothing has come: the broker then sends what it retains once more."""
        if not self._stall.is_due(now):
            return []
        self._stall.watch(now)
        shown: Actions = [Notify(WITHHELD)] if self._stall.stalls == STALLS_TO_SHOW else []
        return [*self.parts.again(self.parts.needed), *shown]

    def part_arrived(self, topic: str, digest: bytes) -> None:
        if self._missing is not None and self._missing.digest == digest:
            self.parts.came(topic)

    def settle(self, *, is_up: bool) -> Actions:
        """Subscribe to the shared part that is missing, and to nothing otherwise."""
        missing = self._missing
        topics = () if missing is None else part_topics(self._topics, [missing])
        actions = self.parts.need(topics)
        return actions if is_up else []
