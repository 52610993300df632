"""The round engine: refused reports, reports that spoil a fold, quarantine and release."""

from __future__ import annotations

import json

import pytest

from covey.coordinator.engine.events import (
    Close,
    Folded,
    FoldFailed,
    Ignored,
    Invite,
    Joined,
    Planned,
    PlanPhase,
    Quarantined,
    Release,
    Released,
    Reported,
    SetAside,
    Void,
    VoteRefused,
)
from covey.coordinator.engine.rounds import RoundEngine
from covey.coordinator.engine.rules import RoundRules
from covey.coordinator.engine.step import Stage
from covey.shared.strategies.base import Expected, Phase, View
from tests.coordinator.engines import TRAIN, cohort, feed, opened


def test_a_refused_report_leaves_its_slot_vacant_and_is_not_waited_for() -> None:
    engine = opened("a", "b", "c", quorum=2)
    feed(engine, 1.0, Reported("a", 1), Reported("b", 1))
    assert engine.handle(VoteRefused("c", "wrong numbers"), 2.0) == [Close(1, ("a", "b"), ("c",))]


def test_a_refused_report_may_be_followed_by_a_right_one() -> None:
    engine = opened("a", "b", "c")
    assert feed(engine, 1.0, VoteRefused("a", "checksum"), Reported("a", 1), Reported("b", 1)) == []
    assert engine.handle(Reported("c", 1), 2.0) == [Close(1, ("a", "b", "c"), ())]


def test_a_spare_client_takes_the_slot_of_a_refused_report() -> None:
    engine = opened("a", "b", "c", agents=2)
    first, _ = cohort(engine)
    (spare,) = {"a", "b", "c"} - set(cohort(engine))
    assert engine.handle(VoteRefused(first, "not finite"), 1.0) == [Invite(1, spare)]


def test_refusals_count_once_per_step() -> None:
    engine = opened("a", "b", quarantine_after=2)
    assert (
        feed(
            engine, 1.0, VoteRefused("a", "one"), VoteRefused("a", "two"), VoteRefused("a", "three")
        )
        == []
    )
    assert engine.members.refused == {"a": (1, 1)}
    assert engine.quarantined == {}


def fold(engine: RoundEngine) -> None:
    feed(engine, 1.5, Folded(), Planned(TRAIN))


def test_an_agent_refused_in_n_steps_is_quarantined_and_invited_no_more() -> None:
    engine = opened("a", "b", "c", quarantine_after=2, rounds=9)
    feed(engine, 1.0, VoteRefused("a", "lie 1"), Reported("b", 1), Reported("c", 1))
    fold(engine)
    assert set(cohort(engine)) == {"a", "b", "c"}
    assert engine.handle(VoteRefused("a", "lie 2"), 2.0) == [Quarantined("a", 2, "lie 2")]
    feed(engine, 2.0, Reported("b", 2), Reported("c", 2))
    assert engine.handle(Folded(), 2.5) == [PlanPhase(View(2, 9, 0, ("b", "c")))]
    engine.handle(Planned(Phase("warm-up", "all", ends_round=False)), 2.5)
    assert set(cohort(engine)) == {"b", "c"}
    report = Reported("a", 3)
    assert engine.handle(report, 3.0) == [Ignored(report, "a is in quarantine")]


def test_a_phase_that_names_a_quarantined_client_goes_without_it() -> None:
    engine = opened("a", "b", "c", quarantine_after=1)
    assert engine.handle(VoteRefused("a", "lie"), 1.0) == [Quarantined("a", 1, "lie")]
    feed(engine, 1.0, Reported("b", 1), Reported("c", 1))
    feed(engine, 1.0, Folded(), Planned(Phase("entry", ("a", "b"), ends_round=False)))
    assert cohort(engine) == ["b"]


def test_a_released_client_is_invited_again_and_starts_from_zero() -> None:
    engine = opened("a", "b", quarantine_after=1, rounds=9)
    engine.handle(VoteRefused("a", "lie"), 1.0)
    assert engine.handle(Release("a"), 2.0) == [Released("a")]
    assert engine.members.refused == {}
    feed(engine, 2.0, Reported("b", 1))
    fold(engine)
    assert set(cohort(engine)) == {"a", "b"}
    free = Release("b")
    assert engine.handle(free, 3.0) == [Ignored(free, "b is not in quarantine")]


def test_without_a_limit_no_agent_is_quarantined() -> None:
    engine = opened("a", "b")
    assert engine.handle(VoteRefused("a", "lie"), 1.0) == []
    assert engine.quarantined == {}


def test_reports_set_aside_let_the_step_close_without_them() -> None:
    engine = opened("a", "b", "c", quarantine_after=1)
    feed(engine, 1.0, Reported("a", 1), Reported("b", 1), Reported("c", 1))
    assert engine.stage is Stage.FOLDING
    actions = engine.handle(SetAside({"b": "TypeError"}), 2.0)
    assert actions == [Quarantined("b", 1, "TypeError"), Close(1, ("a", "c"), ("b",))]


def test_a_step_without_its_quorum_after_reports_were_set_aside_is_void() -> None:
    engine = opened("a", "b", quorum=2)
    feed(engine, 1.0, Reported("a", 1), Reported("b", 1))
    (void,) = engine.handle(SetAside({"a": "why"}), 2.0)
    assert isinstance(void, Void)


def test_a_failed_fold_without_a_guilty_agent_is_void_with_its_reason() -> None:
    engine = opened("a", "b")
    feed(engine, 1.0, Reported("a", 1), Reported("b", 1))
    assert engine.handle(FoldFailed("no sound state"), 2.0) == [
        Void(1, "no sound state", ("a", "b"))
    ]
    assert engine.members.refused == {}


def test_nothing_can_be_set_aside_while_nothing_is_folded() -> None:
    with pytest.raises(RuntimeError, match="nothing was to be folded"):
        opened("a").handle(SetAside({"a": "why"}), 1.0)


def test_quarantine_and_declared_numbers_outlast_a_restart() -> None:
    phase = Phase(numbers={"choice": Expected(most=3.0, whole=True)})
    engine = opened("a", "b", phase=phase, quarantine_after=1)
    engine.handle(VoteRefused("a", "lie"), 1.0)
    saved = json.loads(json.dumps(engine.snapshot()))
    again, _ = RoundEngine.restore(RoundRules(quarantine_after=1, start_agents=2), saved, [], 5.0)
    assert again.quarantined == {"a": "lie"}
    assert again.members.refused == {"a": (1, 1)}
    assert again.step is not None
    assert again.step.phase.numbers == phase.numbers
    feed(again, 6.0, Joined("a"), Joined("b"), Reported("b", 1))
    assert again.stage is Stage.FOLDING


def test_a_run_reports_that_it_waits_for_agents_in_quarantine() -> None:
    engine = opened("a", "b", quarantine_after=1, quorum=2)
    feed(engine, 1.0, VoteRefused("a", "lie"), Reported("b", 1))
    assert (
        engine.waits_for == "1 agents are there (1 more are in quarantine), rounds.quorum wants 2"
    )
