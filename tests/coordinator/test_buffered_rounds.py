"""The engine of buffered rounds: orders of single agents, buffers of clusters, deadlines, failures and restarts."""

from __future__ import annotations

import json
from typing import Any

from covey.coordinator.engine.events import (
    ANY,
    Action,
    Ask,
    Buffer,
    Close,
    Event,
    Failed,
    Folded,
    Give,
    Ignored,
    Joined,
    Left,
    Planned,
    PlanPhase,
    Reported,
    SetAside,
    Tick,
    Void,
    VoteRefused,
)
from covey.coordinator.engine.rounds import RoundEngine
from covey.coordinator.engine.rules import RoundRules
from covey.coordinator.engine.step import Stage
from covey.shared.strategies.base import ENTRY, Phase

TRAIN = Phase(sizes={"model": 2})


def started(*clients: str, sizes: dict[int, int] | None = None, **rules: Any) -> RoundEngine:
    """An engine whose rounds have begun: everybody is there at 0.0."""
    changes = {"rounds": 99, "buffer": 2, "deadline_s": 30.0, "start_agents": len(clients), **rules}
    engine = RoundEngine(RoundRules(**changes))
    for client in clients:
        engine.handle(Joined(client), 0.0)
    engine.handle(Planned(TRAIN, sizes or {}), 0.0)
    return engine


def feed(engine: RoundEngine, now: float, *events: Event) -> list[Action]:
    actions: list[Action] = []
    for event in events:
        actions += engine.handle(event, now)
    return actions


def report(
    engine: RoundEngine, client: str, cluster: int = 0, began_with: int | None = None
) -> Reported:
    """The report of an agent's open order."""
    return Reported(client, engine.pace.orders[client].step, cluster, began_with)


def folded(engine: RoundEngine, now: float, sizes: dict[int, int] | None = None) -> list[Action]:
    """The actions after a fold, once another round is planned."""
    [plan] = engine.handle(Folded(), now)
    assert isinstance(plan, PlanPhase)
    return engine.handle(Planned(TRAIN, sizes or {}), now)


def given(actions: list[Action]) -> list[str]:
    [give] = [action for action in actions if isinstance(action, Give)]
    return [client for client, _ in give.orders]


def test_a_full_buffer_is_folded_and_no_other_agent_is_waited_for() -> None:
    engine = started("a", "b", "c")
    assert feed(engine, 1.0, report(engine, "c")) == []
    [close] = feed(engine, 2.0, report(engine, "a"))
    assert isinstance(close, Close)
    assert close.reporters == ("a", "c")
    assert close.buffer is not None
    assert (close.buffer.cluster, close.buffer.staleness) == (0, (0, 0))
    assert given(folded(engine, 2.0)) == ["c", "a"]  # in the order in which they reported
    assert engine.round == 1
    assert "b" in engine.pace.orders


def test_a_buffer_is_folded_with_what_it_has_once_its_first_report_has_waited_for_the_deadline() -> (
    None
):
    engine = started("a", "b", "c", "d", sizes={0: 2, 1: 2}, first_work_s=60.0)
    feed(engine, 5.0, report(engine, "a", cluster=0))
    for second in range(6, 35):  # cluster 1 is busy all the time
        for client in ("c", "d"):
            actions = feed(engine, float(second), report(engine, client, cluster=1))
        assert [one.reporters for one in actions if isinstance(one, Close)] == [("c", "d")]
        folded(engine, float(second), {0: 2, 1: 2})
    assert feed(engine, 34.9, Tick()) == []
    [close] = [one for one in feed(engine, 35.0, Tick()) if isinstance(one, Close)]
    assert close.reporters == ("a",)


def test_staleness_counts_the_folds_of_the_own_cluster_since_the_order() -> None:
    engine = started("a", "b", "c", "d", buffer=1)
    feed(engine, 1.0, report(engine, "a", cluster=0))
    folded(engine, 1.0)
    feed(engine, 2.0, report(engine, "a", cluster=0))
    folded(engine, 2.0)
    for client, cluster, staleness in (("b", 0, 2), ("c", 1, 0), ("a", 0, 1)):
        [close] = feed(engine, 3.0, report(engine, client, cluster))
        assert isinstance(close, Close)
        assert close.buffer is not None
        assert close.buffer.staleness == (staleness,)
        folded(engine, 3.0)


def test_staleness_counts_the_folds_of_the_model_that_the_agent_began_with() -> None:
    """Nine folds of cluster 0 since b began with its model; the report is for the buffer of cluster 1."""
    for began_with, staleness in ((0, 9), (1, 0), (ANY, 9), (None, 0)):
        engine = started("a", "b", buffer=1, rounds=20)
        for second in range(9):
            feed(engine, float(second), report(engine, "a", cluster=0))
            folded(engine, float(second))
        [close] = feed(engine, 9.0, report(engine, "b", 1, began_with))
        assert isinstance(close, Close)
        assert close.buffer is not None
        assert (close.buffer.cluster, close.buffer.staleness) == (1, (staleness,))


def test_a_free_place_goes_to_the_agent_that_has_waited_longest() -> None:
    engine = started("a", "b", "c", "d", concurrent=2, buffer=2)
    first = sorted(engine.pace.orders)
    waiting = list(engine.pace.line)
    assert (len(first), len(waiting)) == (2, 2)
    assert given(feed(engine, 1.0, report(engine, first[0]))) == waiting[:1]
    feed(engine, 2.0, report(engine, first[1]))
    assert given(folded(engine, 2.0)) == [waiting[1]]
    assert list(engine.pace.line) == first


def test_a_small_cluster_folds_when_all_of_it_has_reported() -> None:
    engine = started("a", "b", "c", buffer=3, sizes={0: 1, 1: 2})
    [close] = feed(engine, 1.0, report(engine, "a", cluster=0))
    assert isinstance(close, Close)
    folded(engine, 1.0, {0: 1, 1: 2})
    assert feed(engine, 2.0, report(engine, "b", cluster=1)) == []


def test_a_buffer_that_no_agent_can_add_to_is_folded_with_what_it_has() -> None:
    engine = started("a", "b", "c", buffer=3)
    feed(engine, 1.0, report(engine, "a"), Left("b"))
    [close] = feed(engine, 2.0, Left("c"))
    assert isinstance(close, Close)
    assert close.reporters == ("a",)


def test_an_order_that_is_not_answered_in_time_frees_its_place() -> None:
    engine = started("a", "b", "c", concurrent=1, rollcall_s=10.0)
    [late] = engine.pace.orders
    number = engine.pace.orders[late].step
    second, _ = engine.pace.line
    assert engine.wake_at == 30.0
    ask, give = feed(engine, 30.0, Tick())
    assert ask == Ask((late,))
    assert given([give]) == [second]
    [ignored] = feed(engine, 31.0, Reported(late, number))
    assert isinstance(ignored, Ignored)


def test_an_agent_that_returns_before_the_deadline_still_counts() -> None:
    engine = started("a", "b", "c", concurrent=1)
    [away] = engine.pace.orders
    assert len(given(feed(engine, 1.0, Left(away)))) == 1  # another takes its place
    feed(engine, 2.0, Joined(away))
    assert feed(engine, 3.0, report(engine, away)) == []
    assert [one.client for one in engine.pace.waiting()] == [away]


def test_a_newcomer_is_in_line_at_once_and_its_entry_is_folded_alone() -> None:
    engine = started("a", "b", buffer=2)
    assert given(feed(engine, 1.0, Joined("c"))) == ["c"]
    phase = Phase(ENTRY, ("c",), ends_round=False)
    number = engine.pace.orders["c"].step
    [close] = feed(engine, 2.0, Reported("c", number, phase=phase))
    assert isinstance(close, Close)
    assert close.buffer == Buffer(None, (number,), (0,))
    assert given(folded(engine, 2.0)) == ["c"]
    assert engine.round == 0


def test_an_agent_that_failed_sits_out_until_the_next_fold() -> None:
    engine = started("a", "b", "c", buffer=2)
    number = engine.pace.orders["a"].step
    assert feed(engine, 1.0, Failed("a", number, "no memory"), VoteRefused("b", "lies")) == []
    assert engine.pace.failed == {"a": "no memory", "b": "lies"}
    [close] = feed(engine, 2.0, report(engine, "c"))  # nobody else is left
    assert isinstance(close, Close)
    assert sorted(given(folded(engine, 2.0))) == ["a", "b", "c"]


def test_an_attempt_in_which_all_fail_is_void() -> None:
    engine = started("a", "b")
    events = [Failed(client, order.step, "x") for client, order in engine.pace.orders.items()]
    [void] = feed(engine, 1.0, *events)
    assert isinstance(void, Void)
    assert "could not do their work: x" in void.why
    [plan] = feed(engine, 2.0, Tick())
    assert isinstance(plan, PlanPhase)


def test_a_report_that_breaks_the_fold_leaves_the_buffer() -> None:
    engine = started("a", "b", "c", buffer=2)
    feed(engine, 1.0, report(engine, "a"), report(engine, "b"))
    assert engine.handle(SetAside({"b": "NaN"}), 1.0) == []
    assert [one.client for one in engine.pace.waiting()] == ["a"]
    [close] = feed(engine, 2.0, report(engine, "c"))
    assert isinstance(close, Close)
    assert close.reporters == ("a", "c")


def test_reports_that_come_during_an_evaluation_wait() -> None:
    engine = started("a", "b", "c", buffer=1)
    feed(engine, 1.0, report(engine, "a"))
    [plan] = engine.handle(Folded(), 1.0)
    assert isinstance(plan, PlanPhase)
    engine.handle(Planned(Phase("evaluate", "all", ends_round=False)), 1.0)
    assert engine.step is not None
    assert feed(engine, 2.0, report(engine, "b")) == []
    number = engine.step.number
    [plan] = [*feed(engine, 3.0, *(Reported(client, number) for client in "abc"))][-1:]
    assert isinstance(plan, Close)
    [close] = folded(engine, 3.0)
    assert isinstance(close, Close)
    assert close.reporters == ("b",)


def test_an_agent_trains_on_while_others_are_evaluated() -> None:
    engine = started("a", "b", "c", buffer=1)
    engine.pace.trains_on = True
    feed(engine, 1.0, report(engine, "a"))
    engine.handle(Folded(), 1.0)
    engine.handle(Planned(Phase("evaluate", "all", ends_round=False)), 1.0)
    assert engine.step is not None
    number = engine.step.number
    [give] = feed(engine, 2.0, Reported("a", number))
    assert give == Give((("a", number + 1),))
    assert feed(engine, 2.5, report(engine, "a")) == []  # it waits for the end of the evaluation
    close = feed(engine, 3.0, Reported("b", number), Reported("c", number))[-1]
    assert close == Close(number, ("a", "b", "c"), ())
    [close] = folded(engine, 3.0)
    assert isinstance(close, Close)
    assert close.buffer is not None
    assert close.reporters == ("a",)
    assert close.buffer.staleness == (0,)


def test_after_the_last_round_open_orders_end() -> None:
    engine = started("a", "b", buffer=1, rounds=1)
    number = engine.pace.orders["b"].step
    feed(engine, 1.0, report(engine, "a"))
    engine.handle(Folded(), 1.0)
    engine.handle(Planned(Phase("evaluate", "all", ends_round=False)), 1.0)
    assert engine.pace.orders == {}
    assert engine.refusal("b", number)


def test_a_restarted_engine_has_the_same_orders_buffers_and_line() -> None:
    engine = started("a", "b", "c", "d", concurrent=2, buffer=3)
    first = sorted(engine.pace.orders)[0]
    feed(engine, 5.0, report(engine, first))
    snapshot = json.loads(json.dumps(engine.snapshot()))
    again, actions = RoundEngine.restore(engine.rules, snapshot, [], 105.0)
    [plan] = actions
    assert isinstance(plan, PlanPhase)
    assert again.handle(Planned(TRAIN, {}), 105.0) == []
    assert again.pace.line == engine.pace.line
    assert list(again.pace.orders) == list(engine.pace.orders)
    deadlines = [order.deadline for order in engine.pace.orders.values()]
    assert [order.deadline for order in again.pace.orders.values()] == [
        deadline + 100.0 for deadline in deadlines
    ]
    assert [one.client for one in again.pace.waiting()] == [first]
    assert again.number == engine.number


def test_a_restarted_engine_has_no_order_whose_files_are_lost() -> None:
    engine = started("a", "b", "c", buffer=3)
    lost = engine.pace.orders["b"].step
    feed(engine, 5.0, report(engine, "a"))
    snapshot = json.loads(json.dumps(engine.snapshot()))
    again, _ = RoundEngine.restore(engine.rules, snapshot, [], 5.0, [lost])
    [give] = again.handle(Planned(TRAIN, {}), 5.0)
    assert given([give]) == ["b"]
    assert again.pace.orders["b"].step > lost


def test_a_buffer_that_has_waited_long_enough_wakes_no_agent_while_agents_are_evaluated() -> None:
    """Nothing can be folded meanwhile: a time in the past would have the service ask without end."""
    engine = started("a", "b", "c", buffer=2, sizes={0: 1, 1: 2}, first_work_s=60.0)
    feed(engine, 1.0, report(engine, "b", cluster=1))
    feed(engine, 2.0, report(engine, "a", cluster=0))
    [plan] = engine.handle(Folded(), 2.0)
    assert isinstance(plan, PlanPhase)
    engine.handle(Planned(Phase(name="evaluate", ends_round=False)), 2.0)
    assert engine.stage is Stage.OPEN
    late = 1.0 + engine.rules.deadline_s + 0.5
    engine.handle(Tick(), late)
    assert engine.stage is Stage.OPEN
    assert engine.wake_at is not None
    assert engine.wake_at > late


def test_a_report_that_comes_again_counts_once_though_others_got_orders() -> None:
    engine = started("a", "b", "c", concurrent=2, buffer=3, quarantine_after=2)
    liar = sorted(engine.pace.orders)[0]
    newest = engine.number
    given(feed(engine, 1.0, VoteRefused(liar, "not finite")))
    assert engine.number > newest
    feed(engine, 2.0, VoteRefused(liar, "not finite"))
    assert engine.quarantined == {}
    assert engine.members.refused[liar][0] == 1


def test_refused_reports_of_two_orders_count_twice() -> None:
    engine = started("a", "b", "c", buffer=1, quarantine_after=2)
    feed(engine, 1.0, VoteRefused("a", "not finite"), report(engine, "b"))
    folded(engine, 1.0)
    feed(engine, 2.0, VoteRefused("a", "not finite"))
    assert engine.quarantined == {"a": "not finite"}
