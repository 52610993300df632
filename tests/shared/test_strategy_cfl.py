"""CFL on clients whose answers are known by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from covey.shared.numerics.vectors import Layout, Tensor
from covey.shared.strategies import cfl
from covey.shared.strategies.base import Phase, Setup, Training
from covey.shared.strategies.cfl import Cfl
from covey.shared.strategies.client_half import Report
from covey.shared.strategies.reading import folded
from tests.bowl import Bowl, flat
from tests.shared.planted import ONE, WHOLE, alternating, bowls, run, setup, two_groups


def test_cfl_splits_where_members_disagree_and_the_children_part_in_that_round() -> None:
    locals_ = two_groups()
    end = run(Cfl(warmup=0, eps_1=0.4, eps_2=1.6), locals_, rounds=1)
    assert end.state.assign == alternating(locals_)  # the mean update is about 0, each is half of 5
    assert end.state.models[0] == pytest.approx([2.5, 2.65])
    assert end.state.models[1] == pytest.approx([-2.5, -2.3])
    assert end.state.nodes[0].tolist() == [0, 0]
    assert end.strategy.shown(end.state).notes["cross_similarity"]["0"] == pytest.approx(
        -1, abs=0.01
    )
    assert run(Cfl(warmup=0, eps_1=0.4, eps_2=1.6), locals_, rounds=12).state.models[
        0
    ] == pytest.approx([5, 5.3], rel=2e-3)


@pytest.mark.parametrize(
    "options",
    [
        {"eps_1": 0.1},  # the mean update is longer than that: (0.2, ...) by construction below
        {"eps_2": 9.0},  # no single update is that long
        {"warmup": 3},
    ],
)
def test_cfl_does_not_split_unless_every_condition_holds(options: dict[str, Any]) -> None:
    locals_ = bowls(*((s * 5.0 + 0.4, 0.0) for s in (1, -1) * 4))
    free = {"warmup": 0, "eps_1": 0.9, "eps_2": 1.6}
    assert len(run(Cfl(**free), locals_, rounds=2).state.models) > 1
    assert len(run(Cfl(**{**free, **options}), locals_, rounds=2).state.models) == 1


@pytest.mark.parametrize(("members", "models"), [(2, 1), (3, 2)])
def test_cfl_leaves_a_cluster_of_two_as_it_is(members: int, models: int) -> None:
    locals_ = bowls(*[(5.0, 0.0), (-5.0, 0.0), (5.0, 0.0)][:members])
    end = run(Cfl(warmup=0, eps_1=9.0, eps_2=1.0), locals_, rounds=1)
    assert len(end.state.models) == models


@pytest.mark.parametrize(("there", "models"), [(4, 2), (3, 1)])
def test_cfl_splits_a_cluster_of_which_half_the_invited_members_report(
    there: int, models: int
) -> None:
    locals_ = bowls(*((s * 5.0 + 0.4, 0.0) for s in (1, -1) * 4))
    strategy = Cfl(warmup=0, eps_1=2.0, eps_2=1.6)
    start = strategy.init(setup(locals_))
    reports = [(name, Report({"model": bowl.minimum}, 10)) for name, bowl in locals_.items()]
    after = folded(strategy, start, Phase(cohort=tuple(locals_)), reports=reports[:there])
    assert len(after.models) == models


def test_cfl_asks_all_members_into_the_round_that_splits_when_participation_is_partial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cfl, "MIN_SIZE", 5)
    locals_ = bowls(*((s * 5.0, 0.0) for s in (1, -1) * 5))
    strategy = Cfl(warmup=1, eps_1=2.0, eps_2=1.0)
    end = run(strategy, locals_, participation=0.4, rounds=8)
    invited = [
        (len(phase.cohort), len(before))
        for (phase, _), before in zip(end.phases, [(), *end.phases], strict=False)
    ]
    full = [i for i, (count, _) in enumerate(invited) if count == 10]
    assert len(full) == 1, invited
    assert full[0] >= 2  # after the warm-up and the round whose norms called for it
    assert all(count == 4 for i, (count, _) in enumerate(invited) if i != full[0])
    assert end.state.assign == alternating(locals_)


def test_cfl_sends_who_missed_the_split_and_newcomers_down_the_tree() -> None:
    # four groups: the first split parts left and right, later ones above and below
    corners = [(8.0, 3.0), (-8.0, 3.0), (8.0, -3.0), (-8.0, -3.0)]
    locals_ = bowls(*(corners[i % 4] for i in range(15)))
    strategy = Cfl(warmup=0, eps_1=0.9, eps_2=1.0)
    end = run(
        strategy,
        locals_,
        rounds=14,
        joins={"c12": 12, "c13": 12, "c14": 12},
        drop=lambda phase, round_, client: client == "c11" and round_ < 5,
    )
    together = {
        tuple(sorted({int(c[1:]) % 4 for c, k in end.state.assign.items() if k == j}))
        for j in range(4)
    }
    assert together == {(0,), (1,), (2,), (3,)}
    assert set(end.state.assign) == set(locals_)
    walks = [reporters for phase, reporters in end.phases if phase.name == "entry"]
    assert walks.count(("c12", "c13", "c14")) >= 1
    assert sum("c12" in reporters for reporters in walks) == 2  # two splits deep
    assert end.state.walks == {}


def test_cfl_walks_only_past_the_splits_of_the_cluster_it_stands_in() -> None:
    strategy = Cfl(trigger="norms")
    start = strategy.init(run(strategy, bowls((0, 0)), rounds=1).setup)
    ways: dict[str, Any] = {
        "nodes": (flat(0, 0),) * 3,
        "stays": (flat(1, 0),) * 3,
        "goes": (flat(-1, 0),) * 3,
    }
    state = replace(start, models=(flat(0, 0),) * 4, divided=(0, 1, 0), parts=(1, 2, 3), **ways)
    right, left = Report({"model": flat(2, 1)}, 5), Report({"model": flat(-2, 1)}, 5)
    once = folded(strategy, state, Phase("entry", ("l", "r")), reports=[("l", left), ("r", right)])
    assert once.walks == {"l": 1, "r": 2}  # cluster 1 was divided next, cluster 0 in split 2
    assert strategy.order(once, Phase("entry"), "r").models == ("split2",)
    twice = folded(strategy, once, Phase("entry", ("l", "r")), reports=[("l", left), ("r", right)])
    assert twice.assign == {"l": 2, "r": 0}
    assert twice.walks == {}


def test_cfl_member_who_missed_a_split_walks_from_there_and_not_from_the_root() -> None:
    strategy = Cfl(trigger="norms", warmup=0)
    start = strategy.init(run(strategy, bowls((0, 0)), rounds=1).setup)
    ways: dict[str, Any] = {
        "divided": (0,),
        "nodes": (flat(0, 0),),
        "stays": (flat(1, 0),),
        "goes": (flat(-1, 0),),
    }
    assign = {"a": 1, "b": 1, "c": 1, "late": 1, "z": 0}
    state = replace(start, models=(flat(0, 0),) * 2, assign=assign, **ways)
    moved = [
        (c, Report({"model": flat(0, up)}, n))
        for c, up, n in (("a", 3, 5), ("b", -3, 10), ("c", 3, 5))
    ]
    after = folded(strategy, state, Phase(cohort=("a", "b", "c", "late")), reports=moved)
    assert after.assign == {"a": 1, "b": 2, "c": 1, "z": 0}
    assert after.walks == {"late": 1}


def test_cfl_lets_a_walker_continue_where_it_was_without_delaying_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cfl, "MIN_SIZE", 3)
    locals_ = bowls(*((s * 5.0, 0.0) for s in (1, -1) * 4), (5.0, 0.0))
    strategy = Cfl(trigger="norms", warmup=0)
    broken: dict[str, Any] = {
        "drop": lambda phase, round_, client: client == "c08" and round_ < 4,
        "joins": {"c08": 1},
    }
    end = run(strategy, locals_, rounds=6, **broken)
    assert end.state.assign["c08"] == end.state.assign["c00"]
    empty = [phase for phase, reporters in end.phases if phase.name == "entry" and not reporters]
    assert len(empty) == 3  # once per round, in rounds 1, 2 and 3


def test_cfl_by_rounds_tries_each_node_after_a_number_of_rounds() -> None:
    locals_ = bowls(*((0.0, s * 5.0) for s in (1, -1) * 3))
    strategy = Cfl(
        trigger="rounds", every=3, warmup=0, gamma=0.13, linkage="average", features="last_kernel"
    )
    assert [len(run(strategy, locals_, rounds=r).state.models) for r in (3, 4)] == [1, 2]
    partial = run(strategy, locals_, rounds=4, participation=0.5)
    assert [len(phase.cohort) for phase, _ in partial.phases] == [3, 3, 3, 6]
    assert len(partial.state.models) == 2


@pytest.mark.parametrize(("gamma", "models"), [(0.70, 2), (0.71, 1)])
def test_cfl_accepts_a_split_by_the_angle_across(gamma: float, models: int) -> None:
    locals_ = bowls((6.0, 0.0), (6.0, 0.0), (0.0, 6.0), (0.0, 6.0))  # a right angle: sqrt(1 / 2)
    strategy = Cfl(trigger="rounds", every=1, warmup=0, gamma=gamma)
    assert len(run(strategy, locals_, ONE, rounds=1).state.models) == 1
    still = strategy.model_copy(update={"every": 1})
    end = run(
        still,
        {c: Bowl(b.minimum, 10) for c, b in locals_.items()},
        Training(batch=100, lr=1e-6),
        rounds=2,
    )
    assert len(end.state.models) == models


def test_cfl_refused_split_of_a_full_round_is_not_asked_for_again_at_once() -> None:
    locals_ = bowls(*((s * 5.0, 0.0) for s in (1, -1) * 3))
    strategy = Cfl(warmup=0, eps_1=100.0, gamma=0.9999, linkage="complete", eps_2=0.1)
    crooked = {**locals_, "c05": Bowl(flat(5.0, 5.0))}
    end = run(strategy, crooked, participation=0.5, rounds=26)
    full = [i for i, (phase, _) in enumerate(end.phases) if len(phase.cohort) == 6]
    assert len(end.state.models) == 1
    assert full[0] == 1
    assert np.diff(full).tolist() == [12] * 2  # 10 rounds of rest, one that calls for it


def test_cfl_watches_for_updates_longer_than_1_6_around_a_mean_shorter_than_0_4() -> None:
    for long, off, models in ((1.7, 0.0, 2), (1.5, 0.0, 1), (1.7, 0.38, 2), (1.7, 0.42, 1)):
        locals_ = bowls((long, off), (-long, off), (long, off), (-long, off))
        assert (
            len(run(Cfl(trigger="norms", warmup=0), locals_, WHOLE, rounds=1).state.models)
            == models
        ), (long, off)


def test_cfl_children_are_sample_weighted_means_and_so_is_the_norm_that_is_watched() -> None:
    locals_ = {"a": Bowl(flat(8, 0), 10), "b": Bowl(flat(4, 0), 30), "c": Bowl(flat(-5, 0), 40)}
    end = run(Cfl(warmup=0, eps_1=9.0, eps_2=1.0), locals_, rounds=1)
    assert [model[0] for model in end.state.models] == pytest.approx([2.5, -2.5])


def test_cfl_newcomer_goes_with_the_plain_mean_of_a_half_and_a_tie_to_the_older_child() -> None:
    # who has many samples points elsewhere, which moves the child's model but not the way that is remembered
    locals_ = {
        "a": Bowl(flat(6, 0), 90),
        "b": Bowl(flat(6, 6), 10),
        "c": Bowl(flat(-6, -6), 50),
        "d": Bowl(flat(-6, 0), 50),
    }
    end = run(Cfl(warmup=0, eps_1=9.0, eps_2=1.0), locals_, rounds=1)
    assert end.state.stays[0] == pytest.approx([3.0, 1.5])
    assert end.state.goes[0] == pytest.approx([-3.0, -1.5])
    tie = Report({"model": flat(-1, 2)}, 10)  # at a right angle to both
    after = folded(end.strategy, end.state, Phase("entry", ("new",)), reports=[("new", tie)])
    assert after.assign["new"] == 0


def test_cfl_buffers_have_no_say_in_norms_and_directions() -> None:
    layout = Layout((Tensor("out.weight", (2,)), Tensor("norm.mean", (1,))), 1)
    strategy = Cfl(trigger="norms", warmup=0)
    start = strategy.init(Setup((flat(0, 0, 0),), layout, 7, 10, 1.0, ONE))
    ways = {"a": (2, 0, 900), "b": (-2, 0, 900), "c": (2, 0, -900), "d": (-2, 0, -500)}
    reports = [(client, Report({"model": flat(*way)}, 10)) for client, way in ways.items()]
    state = folded(strategy, start, Phase(cohort=tuple(ways)), reports=reports)
    assert state.assign == {"a": 0, "b": 1, "c": 0, "d": 1}
    assert state.norms["0"] == pytest.approx((0.0, 2.0))


def test_cfl_compares_the_directions_of_the_part_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cfl, "MIN_SIZE", 3)
    # bodies part c00 and c01 from the rest, heads c00 and c02
    locals_ = bowls((9, 1), (9, -1), (-9, 1), (-9, -1))
    for features, expected in (
        ("full", [0, 0, 1, 1]),
        ("last_layer", [0, 1, 0, 1]),
        ("last_kernel", [0, 1, 0, 1]),
    ):
        end = run(Cfl(trigger="norms", warmup=0, features=features), locals_, rounds=1)
        assert [*end.state.assign.values()] == expected


@pytest.mark.parametrize(
    ("linkage", "parted"),
    [("single", 5), ("complete", 4), ("average", 2)],  # a chain of angles, broken at that link
)
def test_cfl_bipartition_is_the_one_that_was_asked_for(linkage: Any, parted: int) -> None:
    angles = np.radians([0, 20, 45, 60, 75, 105])
    locals_ = bowls(*((9 * float(np.cos(a)), 9 * float(np.sin(a))) for a in angles))
    end = run(Cfl(warmup=0, eps_1=99.0, linkage=linkage), locals_, rounds=1)
    assert [*end.state.assign.values()] == [int(i >= parted) for i in range(6)]


def test_cfl_wards_bipartition_takes_directions_as_points_on_the_unit_sphere() -> None:
    """The distance of two such points is sqrt(2 (1 - cosine)). Ward of 1 - cosine would part the first alone."""
    angles = np.radians([1, 55, 72, 113, 119])
    locals_ = bowls(*((9 * float(np.cos(a)), 9 * float(np.sin(a))) for a in angles))
    end = run(Cfl(warmup=0, eps_1=99.0, linkage="ward"), locals_, rounds=1)
    assert [*end.state.assign.values()] == [0, 0, 0, 1, 1]


def test_cfl_full_round_to_which_no_member_came_is_asked_for_again() -> None:
    locals_ = bowls(*((s * 5.0, 0.0) for s in (1, -1) * 3))
    strategy = Cfl(warmup=0, eps_1=9.0, eps_2=1.0)
    at = run(strategy, locals_, participation=0.5, rounds=1)
    assert at.state.due == (0,)
    state = folded(strategy, at.state, Phase(cohort=tuple(locals_)), reports=[])
    assert state.due == (0,)
    assert state.models[0] is at.state.models[0]


def four_ways(each: int = 3) -> dict[str, Bowl]:
    """Agents in turn pull in four directions."""
    pulls = ((5.0, 0.0), (0.0, 5.0), (-5.0, 0.0), (0.0, -5.0))
    return bowls(*((x + 0.1 * i, y) for i in range(each) for x, y in pulls))


def test_cfl_newcomer_walks_down_splits_that_were_made_at_once() -> None:
    locals_ = four_ways(4)
    late = [*locals_][-4:]
    end = run(Cfl(), locals_, WHOLE, rounds=4, joins=dict.fromkeys(late, 2))
    assert [end.state.assign[client] for client in late] == [0, 3, 1, 2]


@pytest.mark.parametrize("trigger", ["norms", "rounds"])
def test_cfl_asks_for_no_cards_by_the_papers_rules(trigger: Any) -> None:
    end = run(Cfl(trigger=trigger), four_ways(), rounds=1)
    assert [phase.name for phase, _ in end.phases] == ["train"]
    assert "shift" not in end.strategy.shown(end.state).notes


def test_cfl_by_rotations_splits_after_three_rounds_whose_updates_fall_into_groups() -> None:
    locals_ = bowls(*((s * 5.0 + 0.1 * i, 0.1 * i) for i, s in enumerate((1, -1) * 4)))
    by_rotations = Cfl(trigger="rotations")
    for rounds, models in ((2, 1), (3, 2)):
        assert len(run(by_rotations, locals_, WHOLE, rounds=rounds).state.models) == models
    end = run(by_rotations, locals_, WHOLE, rounds=3)
    assert [*end.state.assign.values()] == [0, 1] * 4
    assert end.state.streak == {"0": 0}
    assert "warning_clusters" not in end.strategy.shown(end.state).notes


def test_cfl_by_default_asks_all_members_before_it_splits_where_a_part_takes_part() -> None:
    locals_ = bowls(*((s * 5.0 + 0.1 * i, 0.1 * i) for i, s in enumerate((1, -1) * 8)))
    end = run(Cfl(), locals_, participation=0.75, rounds=6)
    assert [*end.state.assign.values()] == [0, 1] * 8
    assert max(len(phase.cohort) for phase, _ in end.phases) == 16


@pytest.mark.parametrize("trigger", ["silhouette", "rotations"])
def test_cfl_splits_off_no_outliers_and_its_groups_are_those_of_the_cut(trigger: Any) -> None:
    """Two groups of six, and two agents whose updates point elsewhere."""
    groups = [(s * 5.0, 0.1 * i, 0.0) for i, s in enumerate((1, -1) * 6)]
    locals_ = bowls(*groups, (0.5, 0.0, 5.0), (-0.5, 0.0, -5.0))
    end = run(Cfl(trigger=trigger, gate="none"), locals_, WHOLE, rounds=3)
    assert [*end.state.assign.values()] == [0, 1] * 7
    alone = bowls(*[(5.0, 0.1 * i, 0.0) for i in range(10)], (0.0, 0.0, 5.0))
    for least, models in ((None, 1), (1, 2)):
        rule = Cfl(trigger="rounds", every=1, warmup=0, min_group=least)
        assert len(run(rule, alone, WHOLE, rounds=2).state.models) == models


def test_cfl_warns_at_the_end_that_nothing_was_split() -> None:
    locals_ = bowls(*((5.0, float(i)) for i in range(3)))
    reasons = {
        "silhouette": "fall into no groups",
        "rotations": "never fell into groups",
        "norms": "eps_1 and eps_2",
    }
    for trigger, why in reasons.items():
        end = run(Cfl.model_validate({"trigger": trigger}), locals_, rounds=2)
        state = replace(end.state, rounds=2)
        assert why in end.strategy.shown(state).notes["warning_clusters"]
        assert "warning_clusters" not in end.strategy.shown(replace(state, rounds=3)).notes


def test_cfl_with_a_threshold_is_the_papers() -> None:
    assert (Cfl().trigger, Cfl().warmup, Cfl().linkage) == ("silhouette", 0, "complete")
    rotations = Cfl(trigger="rotations")
    assert (rotations.warmup, rotations.linkage) == (0, "ward")
    paper = Cfl(eps_1=0.4)
    assert (paper.trigger, paper.warmup, paper.linkage) == ("norms", 20, "single")
    assert paper.gate == "none"
