"""Orders that name what all agents share by its digest: fetched once, never followed with another content."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from covey.agent.device import events as e
from covey.agent.device.fetching import STALL_S
from covey.agent.device.session import Session
from covey.coordinator.run.orders import OrderBook
from covey.shared.errors import DecodeError
from covey.shared.mqtt.link import Up
from covey.shared.wire.brief_work import SharedParts, brief_of, shared_of, whole_of
from covey.shared.wire.messages import (
    MAX_SETTINGS_BYTES,
    SETTINGS,
    BriefWork,
    ModelRef,
    OrderMessage,
    Part,
    SharedWork,
    Work,
    digest,
)
from covey.shared.wire.parts import part_count, split
from covey.shared.wire.topics import Topics
from tests import clock
from tests.agent.orders import order, ref, work
from tests.kit.memory_broker import MemoryBroker
from tests.kit.small_fleet import Fleet
from tests.kit.small_run import clients, rules, scenario

TOPICS = Topics("default")
REF = ref()
WORK = work(REF, numbers={"mu": 0.5}, cluster=1)
SHARED_TOPIC = f"covey/default/clusters/{SETTINGS}/model/0"


def ref_of(shared: SharedWork, part_bytes: int = 1 << 19) -> ModelRef:
    content = shared.to_bytes()
    size = len(content)
    return ModelRef(
        key=SETTINGS, digest=digest(content), parts=part_count(size, part_bytes), size=size
    )


def brief_order(step: int, whole: Work = WORK, **changes: Any) -> OrderMessage:
    brief = brief_of(whole, ref_of(shared_of(whole)))
    return order(step, **changes).model_copy(update={"work": None, "brief": brief})


def ready(whole: Work = WORK) -> e.SettingsReady:
    shared = shared_of(whole)
    return e.SettingsReady(digest(shared.to_bytes()), shared)


def session() -> Session:
    this = Session("pi", TOPICS, session="s1", models=[REF.digest])
    this.handle(Up(), 0.0)
    return this


def started(actions: list[e.Action]) -> list[int]:
    return [action.order.step for action in actions if isinstance(action, e.StartWork)]


def test_the_two_parts_of_some_work_make_the_whole_again() -> None:
    shared = shared_of(WORK)
    read = SharedWork.from_bytes(shared.to_bytes())
    brief = brief_order(1).brief
    assert brief is not None
    assert whole_of(brief, read) == WORK
    assert len(brief_order(1).to_bytes()) < 0.6 * len(order(1, REF).to_bytes())


def test_a_brief_order_waits_for_what_all_share_and_is_then_followed() -> None:
    this = session()
    actions = this.handle(e.OrderSeen(brief_order(1)), 0.0)
    assert e.Subscribe((SHARED_TOPIC,)) in actions
    assert started(actions) == []
    actions = this.handle(ready(), 1.0)
    assert started(actions) == [1]
    assert e.Unsubscribe((SHARED_TOPIC,)) in actions


def test_the_shared_part_is_fetched_once() -> None:
    this = session()
    this.handle(e.OrderSeen(brief_order(1)), 0.0)
    this.handle(ready(), 0.0)
    later = this.handle(e.OrderSeen(brief_order(2, closed=1)), 5.0)
    assert e.Subscribe((SHARED_TOPIC,)) not in later
    assert started(later) == [2]


def test_another_content_than_the_one_named_starts_nothing() -> None:
    this = session()
    this.handle(e.OrderSeen(brief_order(1)), 0.0)
    other = WORK.model_copy(update={"seed": 99})
    assert started(this.handle(ready(other), 1.0)) == []


def test_an_agent_that_receives_nothing_subscribes_again() -> None:
    this = session()
    this.handle(e.OrderSeen(brief_order(1)), 0.0)
    assert this.wake_at is not None
    assert this.wake_at <= STALL_S
    assert e.Subscribe((SHARED_TOPIC,)) in this.handle(e.Tick(), STALL_S)


def test_a_newer_order_takes_the_place_of_one_that_waits_and_an_older_one_does_not() -> None:
    this = session()
    this.handle(e.OrderSeen(brief_order(2, serial=5)), 0.0)
    assert this.handle(e.OrderSeen(order(1, REF, serial=4)), 0.0) == []
    assert started(this.handle(e.OrderSeen(order(3, REF, serial=6)), 0.0)) == [3]
    assert started(this.handle(ready(), 1.0)) == []


@pytest.mark.parametrize(
    "change", [{"key": "0"}, {"key": "@pi-8"}, {"size": MAX_SETTINGS_BYTES + 1}]
)
def test_a_brief_order_names_no_other_topic_and_nothing_large(change: dict[str, Any]) -> None:
    shared = ref_of(shared_of(WORK)).model_copy(update=change)
    fields = dict(brief_of(WORK, ref_of(shared_of(WORK))))
    with pytest.raises(ValueError, match=r"expected the key|are accepted"):
        BriefWork(**{**fields, "shared": shared.model_dump()})


def parts_of(shared: SharedWork, part_bytes: int) -> list[Part]:
    content = shared.to_bytes()
    return list(
        split(
            BytesIO(content),
            digest=digest(content),
            size=len(content),
            part_bytes=part_bytes,
            about=1,
        )
    )


@pytest.mark.parametrize("part_bytes", [64, 1 << 19])
def test_parts_in_any_order_make_the_content(part_bytes: int) -> None:
    shared = shared_of(WORK)
    found = None
    this = SharedParts(MAX_SETTINGS_BYTES)
    for part in reversed(parts_of(shared, part_bytes)):
        assert found is None
        found = this.feed(part)
    assert found == shared


def test_a_damaged_or_large_content_is_refused() -> None:
    [part] = parts_of(shared_of(WORK), 1 << 19)
    damaged = part.model_copy(update={"data": part.data[:-1] + b"x"})
    with pytest.raises(DecodeError, match="wrong digest"):
        SharedParts(MAX_SETTINGS_BYTES).feed(damaged)
    with pytest.raises(DecodeError, match="too large"):
        SharedParts(10).feed(part)


def models(folder: Path, monkeypatch: pytest.MonkeyPatch, *, brief: bool) -> Any:
    """The final models of a small fleet, and whether a brief order was seen."""
    seen: list[bool] = []
    make = OrderBook.order_of

    def watched(self: OrderBook, client: str, state: Any) -> Any:
        if not brief:
            self._members.readers.clear()
        sent = make(self, client, state)
        seen.append(sent.order.brief is not None)
        return sent

    monkeypatch.setattr(OrderBook, "order_of", watched)
    scene = scenario("ifca")
    broker = MemoryBroker()

    async def program() -> Any:
        async with Fleet(folder, scene, rules(scene), broker, clients()) as fleet:
            run = await fleet.serve()
            return run.strategy.clusters(run.state)

    found = clock.run(program())
    monkeypatch.undo()
    return [vector.tobytes() for vector in found], any(seen)


def test_a_fleet_with_brief_orders_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brief, was_brief = models(tmp_path / "brief", monkeypatch, brief=True)
    whole, was_whole = models(tmp_path / "whole", monkeypatch, brief=False)
    assert brief == whole
    assert was_brief
    assert not was_whole
