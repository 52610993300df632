"""IFCA and HypoCluster on clients whose answers are known by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from covey.shared.privacy.settings import SecureSettings
from covey.shared.strategies.base import Phase, Report, View
from covey.shared.strategies.ifca import Ifca
from covey.shared.strategies.reading import folded
from tests.bowl import flat
from tests.drive import Run, fingerprint
from tests.shared.planted import ONE, alternating, bowls, run, setup, two_groups

STARTS = [flat(1, 1), flat(-1, -1)]


@pytest.mark.parametrize("name", ["ifca", "hypocluster"])
def test_ifca_ends_with_a_hypothesis_in_each_group(name: Any) -> None:
    locals_ = two_groups()
    end = run(Ifca(name=name), locals_, ONE, *STARTS, rounds=12)
    assert end.state.assign == alternating(locals_)
    assert end.state.models[0] == pytest.approx([5, 5.3], rel=2e-3)
    assert end.state.models[1] == pytest.approx([-5, -4.6], rel=2e-3)
    assert end.personal("c01")[0][1] is end.state.models[1]


def test_ifca_keeps_a_client_in_its_random_group_until_the_warm_up_ends() -> None:
    strategy = Ifca(n_clusters=4, warmup_rounds=3)
    start = strategy.init(setup(bowls(*[(1, 1)] * 4), ONE, *[flat(k, k) for k in range(4)]))
    names = [f"c{i:02}" for i in range(20)]
    groups = [
        [strategy.order(replace(start, round=round_), Phase(), name).models for name in names]
        for round_ in range(4)
    ]
    assert groups[0] == groups[1] == groups[2]
    assert {len(models) for models in groups[0]} == {1}
    assert len(set(groups[0])) == 4
    assert {len(models) for models in groups[3]} == {4}


def test_ifca_ties_go_to_the_first_hypothesis() -> None:
    end = run(
        Ifca(initial="random"), bowls((5, 5), (-5, -5)), ONE, flat(0, 0), flat(0, 0), rounds=1
    )
    assert set(end.state.assign.values()) == {0}


def test_ifca_hypothesis_without_choosers_stays_and_is_called_dead() -> None:
    locals_ = bowls((5, 5), (5, 5), (-3, -3))
    starts = [flat(1, 1), flat(-90, 90)]
    dead = run(Ifca(initial="random"), locals_, ONE, *starts, rounds=10)
    assert dead.state.models[1].tolist() == [-90, 90]
    assert dead.strategy.shown(dead.state).notes["dead"] == [1]
    assert "no agent chose" in dead.strategy.shown(dead.state).notes["warning"]
    assert dead.strategy.shown(dead.rounds(11).state).notes.get("warning") is None  # said once


def test_ifca_round_without_a_valid_choice_does_not_count_against_anybody() -> None:
    at = run(
        Ifca(initial="random"), bowls((5, 5), (-5, -5)), ONE, flat(1, 1), flat(90, 90), rounds=2
    )
    assert at.state.idle == (0, 2)
    assert folded(at.strategy, at.state, Phase(), reports=[]).idle == (0, 2)
    assert at.rounds(3).state.idle == (0, 3)


def test_ifca_warmup_trains_random_groups_before_clients_choose() -> None:
    locals_ = two_groups()
    strategy = Ifca(n_clusters=2, initial="warmup", warmup_rounds=2)
    early, end = (run(strategy, locals_, ONE, *STARTS, rounds=r) for r in (2, 3))
    assert early.state.assign != alternating(locals_)
    assert set(early.state.assign.values()) == {0, 1}
    sent = [
        len(early.strategy.order(state, Phase(), "c00").models)
        for state in (early.state, end.state)
    ]
    assert sent == [2, 2]
    assert len(early.strategy.order(early.strategy.init(early.setup), Phase(), "c00").models) == 1


def test_ifca_keeps_the_random_group_of_a_client_through_the_warmup() -> None:
    locals_ = two_groups()
    strategy = Ifca(n_clusters=2, initial="warmup", warmup_rounds=4)
    groups = [run(strategy, locals_, ONE, *STARTS, rounds=r).state.assign for r in (1, 2, 3, 4)]
    assert groups == [groups[0]] * 4


def test_ifca_ignores_a_choice_that_is_no_hypothesis() -> None:
    end = run(Ifca(), bowls((5, 5), (-5, -5)), ONE, *STARTS, rounds=1)
    for choice in (2, -1, "0", None):
        wrong = Report({"model": flat(1e9, 1e9)}, 10, {"choice": choice})
        after = folded(end.strategy, end.state, Phase(), reports=[("c00", wrong)])
        assert fingerprint(after.models) == fingerprint(end.state.models)
        assert after.assign == end.state.assign


def test_ifca_by_default_gives_every_hypothesis_three_rounds_before_clients_choose() -> None:
    assert (Ifca().initial, Ifca().warmup_rounds) == ("warmup", 3)
    assert Ifca(initial="warmup").warmup_rounds == 20  # as the authors' code has it
    assert Ifca.model_validate(Ifca().model_dump()) == Ifca()


def test_ifca_warns_where_all_choose_the_same_hypothesis() -> None:
    locals_ = bowls((5, 5), (5, 4), (4, 5))
    for rounds, warned in ((4, False), (5, True)):
        end = run(Ifca(initial="random"), locals_, ONE, flat(1, 1), flat(-90, -90), rounds=rounds)
        assert ("warning_clusters" in end.strategy.shown(end.state).notes) == warned


def test_under_secure_sums_clients_choose_first_and_train_what_they_would_have_chosen() -> None:
    strategy, locals_ = Ifca(initial="warmup", warmup_rounds=1), two_groups()
    begun = setup(locals_, ONE, *STARTS)
    summed = replace(begun, secure=SecureSettings(clip=1.0))
    at_once, first = (Run(strategy, one, locals_).rounds(3) for one in (begun, summed))
    assert "choose" in {phase.name for phase, _ in first.phases}
    for ours, theirs in zip(first.state.models, at_once.state.models, strict=True):
        assert np.array_equal(ours, theirs)
    assert first.state.assign == at_once.state.assign
    assert first.state.chosen == {}


def test_clients_choose_again_if_those_who_chose_have_vanished() -> None:
    strategy = Ifca(initial="random")
    begun = run(strategy, two_groups(), ONE, *STARTS, rounds=1).state
    state = replace(begun, chooses_first=True, chosen={"c00": 1})
    assert strategy.plan(state, View(1, 3, 0, ("c01",))).cohort == ("c00",)
    assert strategy.plan(state, View(1, 3, 1, ("c01",))).name == "choose"
