"""CFL on clients whose answers are known by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shared.strategies.cfl import Cfl
from shared.strategy import Phase, Report, Training
from tests.bowl import Bowl, flat
from tests.shared.planted import ONE, alternating, bowls, run, two_groups


def test_cfl_splits_where_members_disagree_and_the_children_part_in_that_round() -> None:
    locals_ = two_groups()
    end = run(Cfl(warmup=0, eps_1=0.4, eps_2=1.6), locals_, rounds=1)
    assert end.state.assign == alternating(locals_)  # the mean update is about 0, each is half of 5
    assert end.state.models[0] == pytest.approx([2.5, 2.65])
    assert end.state.models[1] == pytest.approx([-2.5, -2.3])
    assert end.state.nodes[0].tolist() == [0, 0]
    assert end.strategy.notes(end.state)["cross_similarity"]["0"] == pytest.approx(-1, abs=0.01)
    assert run(Cfl(warmup=0, eps_1=0.4, eps_2=1.6), locals_, rounds=12).state.models[0] == pytest.approx(
        [5, 5.3], rel=2e-3
    )


@pytest.mark.parametrize(
    "options",
    [
        {"eps_1": 0.1},  # the mean update is longer than that: (0.2, ...) by construction below
        {"eps_2": 9.0},  # no single update is that long
        {"min_size": 8},
        {"warmup": 3},
        {"full_quorum": 1.0},  # one member is missing
    ],
)
def test_cfl_does_not_split_unless_every_condition_holds(options: dict[str, Any]) -> None:
    locals_ = bowls(*((s * 5.0 + 0.4, 0.0) for s in (1, -1) * 4))
    missing: dict[str, Any] = (
        {"drop": lambda phase, round_, client: client == "c07"} if "full_quorum" in options else {}
    )
    free = {"warmup": 0, "eps_1": 0.9, "eps_2": 1.6}
    assert len(run(Cfl(**free), locals_, rounds=2).state.models) > 1
    assert len(run(Cfl(**{**free, **options}), locals_, rounds=2, **missing).state.models) == 1


def test_cfl_relative_norms_do_not_mind_the_scale() -> None:
    for scale in (1e-3, 1e3):
        locals_ = bowls(*((s * 5.0 * scale + 20 * scale, 0.0) for s in (1, -1) * 3))
        strategy = Cfl(warmup=0, eps_mode="relative")
        end = run(strategy, locals_, rounds=12)
        assert end.state.assign == alternating(locals_)
        assert end.state.divided == (0,)  # once: the groups themselves agree
        # after r rounds the mean moves by 10 * 2^-r; a tenth of the first is 4 rounds away
        assert [len(run(strategy, locals_, rounds=r).state.models) for r in (4, 5)] == [1, 2]


def test_cfl_asks_all_members_into_the_round_that_splits_when_participation_is_partial() -> None:
    locals_ = bowls(*((s * 5.0, 0.0) for s in (1, -1) * 5))
    strategy = Cfl(warmup=1, eps_1=2.0, eps_2=1.0, min_size=5)
    end = run(strategy, locals_, participation=0.4, rounds=8)
    invited = [
        (len(phase.cohort), len(before)) for (phase, _), before in zip(end.phases, [(), *end.phases], strict=False)
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
    strategy = Cfl(warmup=0, eps_1=0.9, eps_2=1.0, min_size=1)
    end = run(
        strategy,
        locals_,
        rounds=14,
        joins={"c12": 12, "c13": 12, "c14": 12},
        drop=lambda phase, round_, client: client == "c11" and round_ < 5,
    )
    together = {tuple(sorted({int(c[1:]) % 4 for c, k in end.state.assign.items() if k == j})) for j in range(4)}
    assert together == {(0,), (1,), (2,), (3,)}
    assert set(end.state.assign) == set(locals_)
    walks = [reporters for phase, reporters in end.phases if phase.name == "entry"]
    assert walks.count(("c12", "c13", "c14")) >= 1
    assert sum("c12" in reporters for reporters in walks) == 2  # two splits deep
    assert end.state.walks == {}


def test_cfl_walks_only_past_the_splits_of_the_cluster_it_stands_in() -> None:
    strategy = Cfl()
    start = strategy.init(run(strategy, bowls((0, 0)), rounds=1).setup)
    ways: dict[str, Any] = {"nodes": (flat(0, 0),) * 3, "stays": (flat(1, 0),) * 3, "goes": (flat(-1, 0),) * 3}
    state = replace(start, models=(flat(0, 0),) * 4, divided=(0, 1, 0), **ways)
    right, left = Report({"model": flat(2, 1)}, 5), Report({"model": flat(-2, 1)}, 5)
    once = strategy.fold(state, Phase("entry", ("l", "r")), [("l", left), ("r", right)])
    assert once.walks == {"l": 1, "r": 2}  # cluster 1 was divided next, cluster 0 in split 2
    assert strategy.order(once, Phase("entry"), "r").models == ("split2",)
    twice = strategy.fold(once, Phase("entry", ("l", "r")), [("l", left), ("r", right)])
    assert twice.assign == {"l": 2, "r": 0}
    assert twice.walks == {}


def test_cfl_member_who_missed_a_split_walks_from_there_and_not_from_the_root() -> None:
    strategy = Cfl(warmup=0)
    start = strategy.init(run(strategy, bowls((0, 0)), rounds=1).setup)
    ways: dict[str, Any] = {"divided": (0,), "nodes": (flat(0, 0),), "stays": (flat(1, 0),), "goes": (flat(-1, 0),)}
    assign = {"a": 1, "b": 1, "c": 1, "late": 1, "z": 0}
    state = replace(start, models=(flat(0, 0),) * 2, assign=assign, **ways)
    moved = [(c, Report({"model": flat(0, up)}, n)) for c, up, n in (("a", 3, 5), ("b", -3, 10), ("c", 3, 5))]
    after = strategy.fold(state, Phase(cohort=("a", "b", "c", "late")), moved)
    assert after.assign == {"a": 1, "b": 2, "c": 1, "z": 0}
    assert after.walks == {"late": 1}


def test_cfl_lets_a_walker_go_on_where_it_stood_and_does_not_hold_up_the_run() -> None:
    locals_ = bowls(*((s * 5.0, 0.0) for s in (1, -1) * 4), (5.0, 0.0))
    strategy = Cfl(warmup=0, min_size=3)
    broken: dict[str, Any] = {"drop": lambda phase, round_, client: client == "c08" and round_ < 4, "joins": {"c08": 1}}
    end = run(strategy, locals_, rounds=6, **broken)
    assert end.state.assign["c08"] == end.state.assign["c00"]
    empty = [phase for phase, reporters in end.phases if phase.name == "entry" and not reporters]
    assert len(empty) == 3  # once per round, in rounds 1, 2 and 3


def test_cfl_by_rounds_tries_each_node_after_so_many_rounds() -> None:
    locals_ = bowls(*((0.0, s * 5.0) for s in (1, -1) * 3))
    strategy = Cfl(trigger="rounds", every=3, warmup=0, gamma=0.13, linkage="average", features="last_kernel")
    assert [len(run(strategy, locals_, rounds=r).state.models) for r in (3, 4)] == [1, 2]
    partial = run(strategy, locals_, rounds=4, participation=0.5)
    assert [len(phase.cohort) for phase, _ in partial.phases] == [3, 3, 3, 6]
    assert len(partial.state.models) == 2


@pytest.mark.parametrize(("gamma", "models"), [(0.70, 2), (0.71, 1)])
def test_cfl_accepts_a_split_by_the_angle_across(gamma: float, models: int) -> None:
    locals_ = bowls((6.0, 0.0), (6.0, 0.0), (0.0, 6.0), (0.0, 6.0))  # a right angle: sqrt(1 / 2)
    strategy = Cfl(trigger="rounds", every=1, warmup=0, gamma=gamma, min_size=2)
    assert len(run(strategy, locals_, ONE, rounds=1).state.models) == 1
    still = strategy.model_copy(update={"every": 1})
    end = run(still, {c: Bowl(b.minimum, 10) for c, b in locals_.items()}, Training(batch=100, lr=1e-6), rounds=2)
    assert len(end.state.models) == models


def test_cfl_refused_split_of_a_full_round_is_not_asked_for_again_at_once() -> None:
    locals_ = bowls(*((s * 5.0, 0.0) for s in (1, -1) * 3))
    strategy = Cfl(warmup=0, eps_1=100.0, gamma=0.9999, linkage="complete", retry=4, eps_2=0.1)
    crooked = {**locals_, "c05": Bowl(flat(5.0, 5.0))}
    end = run(strategy, crooked, participation=0.5, rounds=12)
    full = [i for i, (phase, _) in enumerate(end.phases) if len(phase.cohort) == 6]
    assert len(end.state.models) == 1
    assert full[0] == 1
    assert np.diff(full).tolist() == [6] * (len(full) - 1), full  # 4 rounds of rest, one that calls for it
