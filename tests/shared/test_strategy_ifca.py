"""IFCA and HypoCluster on clients whose answers are known by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from covey.shared.privacy.settings import SecureSettings
from covey.shared.strategies import ifca
from covey.shared.strategies.base import Phase, Training, View
from covey.shared.strategies.client_half import Report
from covey.shared.strategies.ifca import Ifca
from covey.shared.strategies.reading import folded
from tests.bowl import Bowl, flat
from tests.drive import Run, fingerprint
from tests.shared.planted import ONE, WHOLE, alternating, bowls, run, setup, two_groups

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


def test_ifca_weighs_by_samples_or_not_at_all() -> None:
    locals_ = {"a": Bowl(flat(0, 4), 10), "b": Bowl(flat(8, 0), 30)}
    for weights, expected in (("samples", [3.0, 0.5]), ("uniform", [2.0, 1.0])):
        assert run(Ifca(n_clusters=1, weights=weights), locals_, rounds=1).state.models[
            0
        ] == pytest.approx(expected)


def test_ifca_divides_gradients_by_all_reporters_not_by_the_cluster() -> None:
    locals_ = bowls((5, 0), (5, 0), (5, 0), (-5, 0))
    end = run(
        Ifca(initial="random", averaging="gradient", n_clusters=2),
        locals_,
        ONE,
        flat(1, 0),
        flat(-1, 0),
        rounds=1,
    )
    assert end.state.models[0] == pytest.approx([1 + 0.5 / 4 * 3 * 4, 0])
    assert end.state.models[1] == pytest.approx([-1 - 0.5 / 4 * 4, 0])


def test_ifca_with_a_shared_trunk_has_one_body_and_several_heads() -> None:
    locals_ = bowls((2.0, 5.0), (4.0, -5.0), (2.0, 5.0), (4.0, -5.0))
    end = run(Ifca(shared_trunk=True), locals_, ONE, flat(0, 1), flat(7, -1), rounds=12)
    assert end.state.models[0] == pytest.approx([3, 5], rel=2e-3)  # the body is everybody's mean
    assert end.state.models[1] == pytest.approx([3, -5], rel=2e-3)
    order = end.strategy.order(end.state, Phase(), "c00")
    assert [end.strategy.model(end.state, key).size for key in order.models] == [
        1,
        1,
        1,
    ]  # trunk and two heads
    assert end.personal("c01")[0][1] == pytest.approx(end.state.models[1])


@pytest.mark.parametrize("initial", ["random", "warmup"])
def test_hypotheses_with_a_shared_trunk_begin_with_that_of_the_first(initial: str) -> None:
    strategy = Ifca.model_validate({"n_clusters": 2, "initial": initial, "shared_trunk": True})
    start = run(strategy, bowls((5, 5), (-5, -5)), ONE, flat(0, 1), flat(7, -1), rounds=0).state
    first, second = (np.delete(model, slice(*start.head)) for model in start.models)
    assert first.tolist() == second.tolist()
    assert start.models[0].tolist() != start.models[1].tolist()


def test_ifca_hypothesis_without_choosers_stays_is_called_dead_and_may_be_seeded_again() -> None:
    locals_ = bowls((5, 5), (5, 5), (-3, -3))
    starts = [flat(1, 1), flat(-90, 90)]
    dead = run(Ifca(initial="random"), locals_, ONE, *starts, rounds=10)
    assert dead.state.models[1].tolist() == [-90, 90]
    assert dead.strategy.shown(dead.state).notes["dead"] == [1]
    assert "no agent chose" in dead.strategy.shown(dead.state).notes["warning"]
    assert dead.strategy.shown(dead.rounds(11).state).notes.get("warning") is None  # said once
    alive = run(Ifca(initial="random", reseed_dead=True), locals_, ONE, *starts, rounds=19)
    assert alive.state.assign == {"c00": 0, "c01": 0, "c02": 1}
    assert alive.state.models[1] == pytest.approx([-3, -3], rel=1e-2)


def test_ifca_round_without_a_valid_choice_does_not_count_against_anybody() -> None:
    at = run(
        Ifca(initial="random"), bowls((5, 5), (-5, -5)), ONE, flat(1, 1), flat(90, 90), rounds=2
    )
    assert at.state.idle == (0, 2)
    assert folded(at.strategy, at.state, Phase(), reports=[]).idle == (0, 2)
    assert at.rounds(3).state.idle == (0, 3)


def test_ifca_hypothesis_that_was_seeded_again_is_given_as_long_as_the_first_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ifca, "DEAD_AFTER", 3)
    locals_ = bowls((5, 5), (5, 5), (-3, -3))
    drop = lambda phase, round_, client: client == "c02" and round_ >= 3  # noqa: E731  who was to use it is gone
    strategy = Ifca(reseed_dead=True)
    ends = [
        run(strategy, locals_, ONE, flat(1, 1), flat(-90, 90), rounds=r, drop=drop).state
        for r in (3, 5, 6)
    ]
    assert [end.idle for end in ends] == [(0, 0), (0, 2), (0, 0)]


def test_ifca_kmeans_plus_plus_takes_the_models_of_those_served_worst() -> None:
    locals_ = bowls((5, 0), (5.2, 0), (-5, 0), (0, 9))
    end = run(
        Ifca(n_clusters=3, initial="kmeans++"),
        locals_,
        Training(epochs=1, batch=100, lr=1.0),
        rounds=1,
    )
    assert [phase.name for phase, _ in end.phases] == ["seed", "score", "score", "train"]
    assert end.state.assign["c00"] == end.state.assign["c01"]
    assert len({end.state.assign[c] for c in ("c00", "c02", "c03")}) == 3
    assert end.state.candidates == ()


def test_ifca_kmeans_plus_plus_makes_do_with_those_who_answer() -> None:
    locals_ = bowls((5, 0), (-5, 0))
    end = run(
        Ifca(n_clusters=3, initial="kmeans++"),
        locals_,
        rounds=2,
        drop=lambda phase, r, c: phase == "score",
    )
    assert len(end.state.models) == 3


def test_ifca_kmeans_plus_plus_passes_over_who_does_not_answer_and_begins_anywhere() -> None:
    locals_ = bowls((1, 0), (2, 0), (3, 0), (4, 0))
    strategy = Ifca(n_clusters=2, initial="kmeans++")
    firsts = set()
    for seed in range(12):
        begun = replace(setup(locals_, WHOLE, count=2), seed=seed)
        at = Run(strategy, begun, locals_)
        at.phase(0)
        firsts.add(float(at.state.models[0][0]))
        silent, there = at.state.candidates[:2]
        answer = Report({}, 10, {"losses": [0.25]})
        assert (
            folded(strategy, at.state, Phase("score"), reports=[(there[0], answer)]).models[1]
            is there[1]
        )
        assert silent[0] != there[0]
    assert len(firsts) > 1


def test_ifca_rates_a_restart_by_samples_and_keeps_the_first_of_two_that_are_as_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ifca, "SHORT_RUNS", 2)
    locals_ = {"a": Bowl(flat(4, 0), 10), "b": Bowl(flat(-4, 0), 30)}
    up, down = flat(0, 8), flat(0, -8)
    for first, second in ((up, down), (down, up)):
        strategy = Ifca(n_clusters=1, initial="restarts")
        at = Run(strategy, setup(locals_, ONE, first, second), locals_)
        for _ in range(8):
            at.phase(0)
        # seven eighths of the way to the mean (4 * 10 - 4 * 30) / 40 = -2, next to the remainder of the start
        assert at.state.models[0].tolist() == [-1.75, first[1] / 8]
        losses = (10 * (5.75**2 + 1) / 2 + 30 * (2.25**2 + 1) / 2) / 40
        assert at.state.best_loss == pytest.approx(losses)


def test_ifca_continues_with_the_restart_of_the_lowest_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ifca, "SHORT_RUNS", 2)
    locals_ = bowls((5, 5), (-5, -5))
    bad = [flat(90, -90), flat(91, -91)]
    for starts in ([*bad, *STARTS], [*STARTS, *bad]):
        end = run(Ifca(n_clusters=2, initial="restarts"), locals_, ONE, *starts, rounds=1)
        # each round of a restart has a name of its own, on which draws are made: equal in all restarts
        names = ["restart0", "restart1", "restart2", "rate"]
        assert [phase.name for phase, _ in end.phases] == [*names, *names, "train"]
        assert end.state.best_loss == pytest.approx(
            2 * (4 * 0.5**3) ** 2 / 2
        )  # of the models as trained
        assert end.state.models[0] == pytest.approx(5 - 4 * 0.5**4)
        assert end.state.models[1] == pytest.approx(-5 + 4 * 0.5**4)
        assert end.state.best == end.state.spare == ()


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


def test_ifca_warns_where_all_choose_the_same_hypothesis() -> None:
    locals_ = bowls((5, 5), (5, 4), (4, 5))
    for rounds, warned in ((4, False), (5, True)):
        end = run(Ifca(initial="random"), locals_, ONE, flat(1, 1), flat(-90, -90), rounds=rounds)
        assert ("warning_clusters" in end.strategy.shown(end.state).notes) == warned


@pytest.mark.parametrize("averaging", ["model", "gradient"])
def test_under_secure_sums_clients_choose_first_and_train_what_they_would_have_chosen(
    averaging: str,
) -> None:
    options: dict[str, Any] = {"initial": "warmup", "warmup_rounds": 1, "averaging": averaging}
    strategy, locals_ = Ifca(**options), two_groups()
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
