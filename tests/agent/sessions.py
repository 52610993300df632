"""Sessions of an agent, some way into their lives."""

from __future__ import annotations

from covey.agent.device import events as e
from covey.agent.device.session import Session
from covey.shared.mqtt.link import Up
from covey.shared.wire.topics import Topics
from tests.agent.orders import order, ref

TOPICS = Topics("default")
REF = ref()
PART = "covey/default/clusters/0/model/0"
SUBSCRIPTIONS = e.Subscribe(
    (
        "covey/default/coordinator/status",
        "covey/default/agents/pi/order",
        "covey/default/agents/pi/status",
    )
)


def fresh(**changes: object) -> Session:
    return Session("pi", TOPICS, session="s1", **changes)  # type: ignore[arg-type]


def up(at: float = 0.0, **changes: object) -> Session:
    session = fresh(**changes)
    session.handle(Up(), at)
    return session


def without_status(actions: list[e.Action]) -> list[e.Action]:
    return [action for action in actions if not isinstance(action, e.PublishStatus)]


def react(session: Session, event: e.Event, now: float = 0.0) -> list[e.Action]:
    return without_status(session.handle(event, now))


def reported(step: int = 1, at: float = 0.0) -> Session:
    """Has worked on a step and sent its report."""
    session = up(at, models=[REF.digest])
    session.handle(e.OrderSeen(order(step, REF)), at)
    session.handle(e.WorkDone(step), at)
    session.handle(e.Sent(step), at)
    return session
