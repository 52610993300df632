"""Orders that name what all agents share by its digest: they wait until that is here. Pure: time is an argument.

The shared part is fetched like a model, once, and kept for the orders that follow. An order whose digest never arrives is
never followed.
"""

from __future__ import annotations

from covey.agent.device.events import Action, Actions, Notify, Subscribe, Unsubscribe
from covey.agent.device.stalls import STALLS_TO_SHOW, StallTimer, part_topics
from covey.shared.mqtt.part_window import PartWindow
from covey.shared.wire.brief_work import whole_of
from covey.shared.wire.messages import ModelRef, OrderMessage, SharedWork
from covey.shared.wire.topics import Topics

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
