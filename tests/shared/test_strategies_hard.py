"""Robust, CFL, IFCA and PACFL on clients whose answers are known by hand."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from shared.errors import UserError
from shared.seeds import generator
from shared.strategies.cfl import Cfl
from shared.strategies.fedavg import FedAvg
from shared.strategies.ifca import Ifca
from shared.strategies.pacfl import Pacfl, signature
from shared.strategies.robust import Robust, logistic
from shared.strategy import Phase, Report, Setup, Strategy, Training
from shared.vectors import Vector
from tests.bowl import Bowl, Softmax, bowl_layout, flat, softmax_client
from tests.drive import Run, fingerprint

ONE = Training(epochs=1, batch=100, lr=0.5)  # one step, half of the way


def bowls(*minima: tuple[float, ...], examples: int = 10) -> dict[str, Bowl]:
    return {f"c{i:02d}": Bowl(flat(*minimum), examples) for i, minimum in enumerate(minima)}


def two_groups(each: int = 4) -> dict[str, Bowl]:
    """Members alternate: c00, c02, ... around +5, the others around -5."""
    return bowls(*(((-1) ** i * 5.0, (-1) ** i * 5.0 + 0.1 * i) for i in range(2 * each)))


def softmaxes(count: int = 6, n: int = 24) -> dict[str, Softmax]:
    return {f"c{i}": softmax_client(((0, 1), (2, 3))[i % 2], seed=i, n=n + 4 * i) for i in range(count)}


def run(strategy: Strategy[Any], locals_: Any, training: Training = ONE, *, rounds: int = 3, **more: Any) -> Run:
    first = next(iter(locals_.values()))
    layout = first.layout if isinstance(first, Softmax) else bowl_layout(len(first.minimum))
    starts = more.pop("starts", None) or [
        np.zeros(layout.size, np.float32) if j == 0 else generator(j, "s").normal(0, 1, layout.size).astype(np.float32)
        for j in range(strategy.starts)
    ]
    setup = Setup(tuple(starts), layout, 7, rounds, more.pop("participation", 1.0), training)
    return Run(strategy, setup, locals_, **more).rounds(rounds)


def alternating(locals_: Any) -> dict[str, int]:
    return {client: i % 2 for i, client in enumerate(locals_)}


def close(a: Vector, b: Vector) -> None:
    assert float(np.linalg.norm(a - b)) <= 1e-5 * float(np.linalg.norm(b))


# -- Robust(TKM) -----------------------------------------------------------------------------------


@pytest.mark.parametrize("trim", ["mean", "ball", "median"])
@pytest.mark.parametrize("features", ["full", "last_kernel", "last_layer"])
def test_robust_finds_the_groups_from_locally_trained_models(features: Any, trim: Any) -> None:
    locals_ = two_groups()
    end = run(Robust(features=features, trim=trim), locals_, rounds=12)
    assert end.state.assign == alternating(locals_)
    assert end.state.models[0] == pytest.approx([5, 5.3], rel=2e-3)
    assert end.state.models[1] == pytest.approx([-5, -4.6], rel=2e-3)


@pytest.mark.parametrize("trim", ["mean", "ball", "median"])
def test_robust_is_not_moved_by_a_hostile_client_and_a_plain_mean_is(trim: Any) -> None:
    locals_ = bowls(*([(1.0, 0.0)] * 4), (1e6, -1e6))
    whole = Training(epochs=1, batch=100, lr=1.0)
    robust = Robust(n_clusters=1, trim=trim, beta=0.2, round_beta=0.2)
    assert run(robust, locals_, whole, rounds=2).state.models[0] == pytest.approx([1.0, 0.0], abs=1e-3)
    plain = Robust(n_clusters=1, beta=0.0, round_beta=0.0)
    assert run(plain, locals_, whole, rounds=2).state.models[0][0] > 1e5


@pytest.mark.parametrize(("features", "expected"), [("full", 2.0), ("last_kernel", 2.6)])
def test_robust_starts_a_cluster_at_its_centre_or_where_parts_were_clustered_at_the_plain_mean(
    features: Any, expected: float
) -> None:
    strategy = Robust(n_clusters=1, features=features, beta=0.2)
    start = strategy.init(run(strategy, bowls((0, 0)), rounds=1).setup)
    reports = [(f"c{i}", Report({"model": flat(v, 0)}, 10)) for i, v in enumerate([0, 1, 2, 3, 7])]
    assert strategy.found(start, reports).models[0][0] == pytest.approx(expected)


def test_robust_trims_a_round_only_where_the_share_makes_a_whole_client() -> None:
    strategy = Robust(n_clusters=1, round_beta=0.2)
    state = replace(strategy.init(run(strategy, bowls((0, 0)), rounds=1).setup), models=(flat(0, 0),))
    state = replace(state, assign={f"c{i}": 0 for i in range(5)})
    reports = [(f"c{i}", Report({"model": flat(v, -v)}, 10 + i)) for i, v in enumerate([0, 1, 2, 6, 100])]
    assert strategy.improve(state, reports).models[0] == pytest.approx([3, -3])  # 0 and 100 are dropped, no weights
    assert strategy.improve(state, reports[:4]).models[0] == pytest.approx([9 / 4, -9 / 4])  # 0.2 * 4 is no client
    assert strategy.improve(state, []).models[0].tolist() == [0, 0]


def test_robust_with_gradients_takes_one_step_against_their_trimmed_mean() -> None:
    locals_ = bowls((4.0, 0.0), (2.0, 0.0))
    end = run(Robust(n_clusters=1, averaging="gradient", first_epochs=1), locals_, rounds=1)
    # stage 1: halves of the minima, mean (1.5, 0); mean gradient there 1.5 - 3, times 0.5
    assert end.state.models[0] == pytest.approx([1.5 + 0.75, 0.0])
    assert dict(end.phases[-1][0].sizes) == {"gradient": 2}


def test_robust_stops_training_early_when_the_loss_rests() -> None:
    local = Bowl(flat(8, 0), training=ONE)
    strategy = Robust(first_tolerance=1.0)
    end = run(strategy, {"a": local, "b": local}, rounds=1)
    # losses at the starts of epochs: 32, 8, 2, 0.5, 0.125: 2 - 0.5 is still more than 1, 0.5 - 0.125 is not
    first = strategy._solve(flat(0, 0), local, 10)
    assert first.steps == 5
    assert end.round == 1


@pytest.mark.parametrize("features", ["full", "logreg"])
def test_robust_sends_a_newcomer_through_stage_1_to_the_nearest_centre(features: Any) -> None:
    locals_ = softmaxes(6)
    end = run(
        Robust(features=features, beta=0.0), locals_, Training(batch=8, lr=0.3), rounds=4, joins={"c4": 1, "c5": 2}
    )
    assert end.state.assign == alternating(locals_)
    entries = [(reporters, phase.name) for phase, reporters in end.phases if phase.name == "entry"]
    assert entries == [(("c4",), "entry"), (("c5",), "entry")]


def test_logistic_coefficients_of_absent_classes_are_zero_and_the_rest_predicts() -> None:
    local = softmax_client((1, 3), seed=0, n=60)
    w = logistic(local, np.zeros(local.layout.size, np.float32)).reshape(4, -1)
    assert not w[[0, 2]].any()
    guesses = (local.x @ w.T)[:, [1, 3]].argmax(axis=1)
    assert np.mean(np.array([1, 3])[guesses] == local.y) > 0.85
    scaled = logistic(replace(local, x=local.x * 255), np.zeros(local.layout.size, np.float32)).reshape(4, -1)
    assert scaled * 255 == pytest.approx(w, rel=1e-3, abs=1e-4)  # the scale of the inputs is no matter


def test_logistic_regression_of_values_is_refused() -> None:
    with pytest.raises(UserError, match="logreg needs classes"):
        logistic(Bowl(flat(1, 1)), flat(0, 0))


# -- CFL -------------------------------------------------------------------------------------------


def test_cfl_splits_where_members_disagree_and_the_children_part_in_that_round() -> None:
    locals_ = two_groups()
    end = run(Cfl(warmup=0, eps_1=0.4, eps_2=1.6), locals_, rounds=1)
    assert end.state.assign == alternating(locals_)  # the mean update is about 0, each is half of 5
    assert end.state.models[0] == pytest.approx([2.5, 2.65])
    assert end.state.models[1] == pytest.approx([-2.5, -2.3])
    assert end.state.nodes[0].tolist() == [0, 0]
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


# -- IFCA and HypoCluster --------------------------------------------------------------------------

STARTS = [flat(1, 1), flat(-1, -1)]


@pytest.mark.parametrize("name", ["ifca", "hypocluster"])
def test_ifca_ends_with_a_hypothesis_in_each_group(name: Any) -> None:
    locals_ = two_groups()
    end = run(Ifca(name=name), locals_, rounds=12, starts=STARTS)
    assert end.state.assign == alternating(locals_)
    assert end.state.models[0] == pytest.approx([5, 5.3], rel=2e-3)
    assert end.state.models[1] == pytest.approx([-5, -4.6], rel=2e-3)
    assert end.personal("c01")[0][1] is end.state.models[1]


def test_ifca_ties_go_to_the_first_hypothesis() -> None:
    end = run(Ifca(), bowls((5, 5), (-5, -5)), rounds=1, starts=[flat(0, 0), flat(0, 0)])
    assert set(end.state.assign.values()) == {0}


def test_ifca_weighs_by_samples_or_not_at_all() -> None:
    locals_ = {"a": Bowl(flat(0, 4), 10), "b": Bowl(flat(8, 0), 30)}
    for weights, expected in (("samples", [3.0, 0.5]), ("uniform", [2.0, 1.0])):
        assert run(Ifca(n_clusters=1, weights=weights), locals_, rounds=1).state.models[0] == pytest.approx(expected)


def test_ifca_divides_gradients_by_all_reporters_not_by_the_cluster() -> None:
    locals_ = bowls((5, 0), (5, 0), (5, 0), (-5, 0))
    end = run(Ifca(averaging="gradient"), locals_, rounds=1, starts=[flat(1, 0), flat(-1, 0)])
    assert end.state.models[0] == pytest.approx([1 + 0.5 / 4 * 3 * 4, 0])
    assert end.state.models[1] == pytest.approx([-1 - 0.5 / 4 * 4, 0])


def test_ifca_with_a_shared_trunk_has_one_body_and_several_heads() -> None:
    locals_ = bowls((2.0, 5.0), (4.0, -5.0), (2.0, 5.0), (4.0, -5.0))
    end = run(Ifca(shared_trunk=True), locals_, rounds=12, starts=[flat(0, 1), flat(7, -1)])
    assert end.state.models[0] == pytest.approx([3, 5], rel=2e-3)  # the body is everybody's mean
    assert end.state.models[1] == pytest.approx([3, -5], rel=2e-3)
    order = end.strategy.order(end.state, Phase(), "c00")
    assert [end.strategy.model(end.state, key).size for key in order.models] == [1, 1, 1]  # trunk and two heads
    assert end.personal("c01")[0][1] == pytest.approx(end.state.models[1])


def test_ifca_hypothesis_without_choosers_stays_is_called_dead_and_may_be_seeded_again() -> None:
    locals_ = bowls((5, 5), (5, 5), (-3, -3))
    starts = [flat(1, 1), flat(-90, 90)]
    dead = run(Ifca(dead_after=3), locals_, rounds=3, starts=starts)
    assert dead.state.models[1].tolist() == [-90, 90]
    assert dead.strategy.notes(dead.state)["dead"] == [1]
    assert "nobody chose" in dead.strategy.notes(dead.state)["warning"]
    assert dead.strategy.notes(dead.rounds(4).state).get("warning") is None  # said once
    alive = run(Ifca(dead_after=3, reseed_dead=True), locals_, rounds=12, starts=starts)
    assert alive.state.assign == {"c00": 0, "c01": 0, "c02": 1}
    assert alive.state.models[1] == pytest.approx([-3, -3], rel=1e-2)


def test_ifca_kmeans_plus_plus_takes_the_models_of_those_served_worst() -> None:
    locals_ = bowls((5, 0), (5.2, 0), (-5, 0), (0, 9))
    end = run(Ifca(n_clusters=3, initial="kmeans++"), locals_, Training(epochs=1, batch=100, lr=1.0), rounds=1)
    assert [phase.name for phase, _ in end.phases] == ["seed", "score", "score", "train"]
    assert end.state.assign["c00"] == end.state.assign["c01"]
    assert len({end.state.assign[c] for c in ("c00", "c02", "c03")}) == 3
    assert end.state.candidates == ()


def test_ifca_kmeans_plus_plus_makes_do_with_those_who_answer() -> None:
    locals_ = bowls((5, 0), (-5, 0))
    end = run(Ifca(n_clusters=3, initial="kmeans++"), locals_, rounds=2, drop=lambda phase, r, c: phase == "score")
    assert len(end.state.models) == 3


def test_ifca_goes_on_with_the_restart_of_the_lowest_loss() -> None:
    locals_ = bowls((5, 5), (-5, -5))
    bad = [flat(90, -90), flat(91, -91)]
    for starts in ([*bad, *STARTS], [*STARTS, *bad]):
        end = run(Ifca(initial="restarts", restarts=2, restart_rounds=2), locals_, rounds=1, starts=starts)
        assert [phase.name for phase, _ in end.phases] == ["restart"] * 4 + ["train"]
        assert end.state.models[0] == pytest.approx(5 - 4 * 0.5**3)
        assert end.state.models[1] == pytest.approx(-5 + 4 * 0.5**3)
        assert end.state.best == end.state.spare == ()


def test_ifca_restarts_must_be_asked_for() -> None:
    with pytest.raises(ValidationError, match="initial: restarts"):
        Ifca(restarts=3)


def test_ifca_warmup_trains_random_groups_before_clients_choose() -> None:
    locals_ = two_groups()
    strategy = Ifca(initial="warmup", warmup_rounds=2)
    early, end = (run(strategy, locals_, rounds=r, starts=STARTS) for r in (2, 3))
    assert early.state.assign != alternating(locals_)
    assert set(early.state.assign.values()) == {0, 1}
    sent = [len(early.strategy.order(state, Phase(), "c00").models) for state in (early.state, end.state)]
    assert sent == [2, 2]
    assert len(early.strategy.order(early.strategy.init(early.setup), Phase(), "c00").models) == 1


def test_ifca_ignores_a_choice_that_is_no_hypothesis() -> None:
    end = run(Ifca(), bowls((5, 5), (-5, -5)), rounds=1, starts=STARTS)
    for choice in (2, -1, "0", None):
        wrong = Report({"model": flat(1e9, 1e9)}, 10, {"choice": choice})
        after = end.strategy.fold(end.state, Phase(), [("c00", wrong)])
        assert fingerprint(after.models) == fingerprint(end.state.models)
        assert after.assign == end.state.assign


def test_ifca_chooses_by_training_loss_unless_told_to_leak() -> None:
    class Split(Softmax):
        def targets(self, split: Any) -> Any:
            return self.y if split == "train" else 3 - self.y

    base = softmax_client((0, 3), seed=1)
    local = Split(base.x, base.y, base.classes)
    good = base.descend(np.zeros(base.layout.size, np.float32)).end
    for select_on, expected in (("train", 0), ("test", 1)):
        end = run(Ifca(select_on=select_on), {"a": local}, rounds=1, starts=[good, -good])
        assert end.state.assign == {"a": expected}


# -- PACFL -----------------------------------------------------------------------------------------


def pictures(labels: tuple[int, ...], *, seed: int, turn: float = 0.0, n: int = 30) -> Softmax:
    """Every class is a ray in the first two of five values; `turn` (degrees) turns the rays in their plane."""
    draw = generator(seed, "pictures")
    y = np.sort(draw.choice(labels, n))
    angle = np.radians(turn + 25.0 * y)
    rays = np.stack([np.cos(angle), np.sin(angle), *np.zeros((3, n))], axis=1)
    return Softmax(rays * draw.uniform(1, 2, (n, 1)), y.astype(np.int64), 4)


@pytest.mark.parametrize(
    ("measure", "expected"),
    [("min_entry", 7.0), ("principal", 7.0), ("trace", 7.0)],
)
def test_pacfl_measures_degrees_between_single_rays(measure: Any, expected: float) -> None:
    locals_ = {"a": pictures((1,), seed=1), "b": pictures((1,), seed=2, turn=7.0)}
    end = run(Pacfl(measure=measure), locals_, rounds=1)
    assert end.state.heights == pytest.approx((expected,), abs=1e-3)


def test_pacfl_least_entry_and_smallest_principal_angle_differ_where_bases_are_not_orthogonal() -> None:
    # two rays each, in one plane: the planes are the same, the rays 10 degrees apart at the least
    locals_ = {"a": pictures((0, 1), seed=1), "b": pictures((0, 1), seed=2, turn=10.0)}
    heights = {
        m: run(Pacfl(measure=m), locals_, rounds=1).state.heights[0] for m in ("min_entry", "principal", "trace")
    }
    assert heights["min_entry"] == pytest.approx(10.0, abs=1e-3)
    assert heights["principal"] == pytest.approx(0.0, abs=0.05)
    assert heights["trace"] == pytest.approx(20.0, abs=1e-3)


def test_pacfl_trace_counts_90_degrees_for_a_class_that_one_side_lacks() -> None:
    locals_ = {"a": pictures((0, 1), seed=1), "b": pictures((1, 2), seed=2)}
    assert run(Pacfl(measure="trace"), locals_, rounds=1).state.heights == pytest.approx((180.0,), abs=1e-3)


def test_pacfl_takes_no_notice_of_a_sign_unless_signed() -> None:
    a = pictures((0,), seed=1)
    heights = []
    for signed in (False, True):
        strategy = Pacfl(signed=signed)
        start = strategy.init(run(strategy, {"a": a}, rounds=1).setup)
        v, w = flat(1, 0, 0), flat(-math.cos(0.1), math.sin(0.1), 0)
        reports = [(c, Report({"signature": s}, 5, {"labels": [0]})) for c, s in (("a", v), ("b", w))]
        heights.append(strategy.found(start, reports).heights[0])
    assert heights == pytest.approx([math.degrees(0.1), 180 - math.degrees(0.1)], abs=1e-3)


def test_a_signature_spans_each_class_and_has_as_many_vectors_as_there_are() -> None:
    draw = generator(4, "x")
    x = np.concatenate([draw.normal(0, 1, (9, 6)), np.outer([1.0, 2.0], np.arange(6))])
    y = np.array([5] * 9 + [7] * 2)
    vectors, labels = signature(x, y, 3)
    assert labels == [5, 5, 5, 7]  # the two samples of class 7 lie on one ray
    left = np.linalg.svd(x[:9].T)[0][:, :3]
    assert np.abs(vectors[:3] @ left) == pytest.approx(np.eye(3), abs=1e-5)
    assert vectors[3] == pytest.approx(np.arange(6) / np.linalg.norm(np.arange(6)))
    assert signature(x, np.linspace(0, 1, 11), 2)[1] == [0, 0]  # values: all are one class


def test_pacfl_finds_groups_and_trains_one_model_for_each() -> None:
    locals_ = {f"c{i}": pictures(((0, 1), (2, 3))[i % 2], seed=i) for i in range(6)}
    end = run(Pacfl(threshold=4.9), locals_, rounds=3)
    assert end.state.assign == alternating(locals_)
    assert [phase.name for phase, _ in end.phases] == ["signature", "train", "train", "train"]
    alone = run(FedAvg(), {c: v for c, v in locals_.items() if end.state.assign[c] == 1}, rounds=3)
    close(end.state.models[1], alone.state.model)


@pytest.mark.parametrize("newcomers", ["nearest", "recluster"])
def test_pacfl_newcomer_joins_the_nearest_cluster_or_founds_one_from_its_model(newcomers: Any) -> None:
    locals_ = {f"c{i}": pictures(((0,), (2,))[i % 2], seed=i) for i in range(4)}
    locals_ |= {"n1": pictures((2,), seed=8, turn=2.0), "n2": pictures((3,), seed=9)}
    drop: dict[str, Any] = {"drop": lambda phase, r, c: phase == "train" and c == "n2"}
    end = run(Pacfl(threshold=4.9, newcomers=newcomers), locals_, rounds=3, joins={"n1": 1, "n2": 2}, **drop)
    assert end.state.assign == {"c0": 0, "c1": 1, "c2": 0, "c3": 1, "n1": 1, "n2": 2}
    before = run(Pacfl(threshold=4.9, newcomers=newcomers), locals_, rounds=2, joins={"n1": 1, "n2": 2}, **drop)
    assert end.state.models[2].tolist() == before.state.models[1].tolist()  # the nearest: 25 degrees away, not 75


def test_pacfl_clustering_again_may_part_a_cluster_and_the_parts_start_from_its_model() -> None:
    # complete linkage up to 20 degrees: 0 and 18 are together until 25 comes and takes 18 away
    locals_ = {c: pictures((0,), seed=i, turn=turn) for i, (c, turn) in enumerate({"a": 0, "b": 18, "c": 25}.items())}
    strategy = Pacfl(threshold=20.0, linkage="complete", newcomers="recluster")
    end = run(
        strategy, locals_, rounds=2, joins={"c": 1}, drop=lambda phase, r, c: phase == "train" and r == 1 and c != "a"
    )
    assert end.state.assign == {"a": 0, "b": 1, "c": 1}
    before = run(strategy, locals_, rounds=1, joins={"c": 1})
    assert before.state.assign == {"a": 0, "b": 0}
    assert end.state.models[1].tolist() == before.state.models[0].tolist()


@pytest.mark.parametrize("cut", [{"n_clusters": 2}, {}])
def test_pacfl_newcomer_is_judged_by_the_cut_that_was_made(cut: Any) -> None:
    locals_ = {f"c{i}": pictures(((0,), (2,))[i % 2], seed=i, turn=0.01 * i) for i in range(6)}
    locals_ |= {"n": pictures((3,), seed=9, turn=60.0)}  # 85 degrees from class 2, 45 from class 0 the other way
    end = run(Pacfl(**cut), locals_, rounds=2, joins={"n": 1})
    assert len(end.state.models) == 2
    assert end.state.assign["n"] in (0, 1)


def test_pacfl_keeps_out_a_signature_that_cannot_be_compared() -> None:
    strategy = Pacfl(threshold=5.0)
    start = strategy.init(run(strategy, {"a": pictures((0,), seed=1)}, rounds=1).setup)
    good = {"labels": [0]}
    v = flat(1, 0, 0)
    told: list[tuple[dict[str, Vector], dict[str, Any]]] = [
        ({"signature": flat(1, 0)}, good),
        ({"signature": v}, {"labels": "0"}),
        ({"signature": v}, {"labels": []}),
    ]
    told += [({"signature": flat(1, 0, 0, 1)}, {"labels": [0, 0, 0]}), ({}, good)]
    for vectors, numbers in told:
        reports = [("a", Report({"signature": v}, 5, good)), ("b", Report({"signature": v}, 5, good))]
        state = strategy.found(start, [*reports, ("odd", Report(vectors, 5, numbers))])
        assert set(state.assign) == {"a", "b"}
        assert set(strategy.admit(state, [("odd", Report(vectors, 5, numbers))]).assign) == {"a", "b"}


def test_pacfl_wants_one_cut() -> None:
    with pytest.raises(ValidationError, match="beta and n_clusters cut the same tree"):
        Pacfl(threshold=3.0, n_clusters=2)


def test_pacfl_drawn_stranger_trains_but_no_cluster_takes_it_in() -> None:
    locals_ = {f"c{i}": pictures(((0,), (2,))[i % 2], seed=i) for i in range(4)}
    late: dict[str, Any] = {"drop": lambda phase, r, c: c == "c3" and phase != "train" and r < 2, "joins": {"c3": 1}}
    end = run(Pacfl(threshold=5.0), locals_, rounds=2, **late)
    assert "c3" not in end.state.assign
    without = run(Pacfl(threshold=5.0), {c: v for c, v in locals_.items() if c != "c3"}, rounds=2)
    assert fingerprint(end.state.models) == fingerprint(without.state.models)
    assert end.rounds(3).state.assign["c3"] == 1
