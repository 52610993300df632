"""The first methods on bowls whose answers are known by hand. What becomes FedAvg: conformance/test_reductions.py."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from shared.errors import DataError
from shared.seeds import generator
from shared.strategies.fedavg import FedAvg
from shared.strategies.fedclust import FedClust
from shared.strategies.fedprox import FedProx
from shared.strategies.fedsgd import FedSgd
from shared.strategies.fesem import Fesem
from shared.strategies.local import LocalOnly
from shared.strategy import Job, Phase, Report, Setup, Strategy, Training, View
from shared.vectors import Layout, Tensor, Vector
from tests.bowl import Bowl, Softmax, Trainer, bowl_layout, flat, softmax_client
from tests.drive import Run, fingerprint

ONE = Training(epochs=1, batch=10, lr=0.5)  # a bowl of 10 samples: one step, half of the way


def bowls(*minima: tuple[float, ...], examples: int = 10) -> dict[str, Bowl]:
    return {f"c{i:02d}": Bowl(flat(*minimum), examples) for i, minimum in enumerate(minima)}


def two_groups(each: int = 4) -> dict[str, Bowl]:
    """Members alternate: c00, c02, ... around +5, the others around -5."""
    return bowls(*(((-1) ** i * 5.0, (-1) ** i * 5.0 + 0.1 * i) for i in range(2 * each)))


def setup(locals_: Any, training: Training = ONE, *, rounds: int = 10, participation: float = 1.0) -> Setup:
    first = next(iter(locals_.values()))
    layout = first.layout if isinstance(first, Softmax) else bowl_layout(len(first.minimum))
    return Setup((np.zeros(layout.size, np.float32),), layout, 7, rounds, participation, training)


def run(strategy: Strategy[Any], locals_: Any, training: Training = ONE, *, rounds: int = 3, **more: Any) -> Run:
    participation = more.pop("participation", 1.0)
    return Run(strategy, setup(locals_, training, rounds=rounds, participation=participation), locals_, **more).rounds(
        rounds
    )


def softmaxes(n: int = 24) -> dict[str, Softmax]:
    owned = [(0, 1), (2, 3), (0, 1), (2, 3), (0, 1), (2, 3)]
    return {f"c{i}": softmax_client(labels, seed=i, n=n) for i, labels in enumerate(owned)}


def job(model: Vector, training: Training = ONE, *, seed: int = 0, **numbers: Any) -> Job:
    return Job("train", 0, "c", seed, (model,), numbers, None, bowl_layout(len(model)), training)


def trained(strategy: Strategy[Any], the_job: Job, local: Trainer) -> Vector:
    local = replace(local, training=the_job.training, seed=the_job.seed)
    return strategy.work(the_job, local, {})[0].vectors["model"]


# -- single-model methods --------------------------------------------------------------------------


def test_fedavg_weighs_models_by_samples() -> None:
    locals_ = {"a": Bowl(flat(0, 4), 10), "b": Bowl(flat(8, 0), 30)}
    training = Training(epochs=1, batch=100, lr=0.5)
    assert run(FedAvg(), locals_, training, rounds=1).state.model == pytest.approx([3.0, 0.5])


def test_fedavg_without_any_sample_keeps_its_model() -> None:
    strategy = FedAvg()
    state = strategy.init(setup(bowls((1, 1))))
    empty = Report({"model": flat(9, 9)}, 0)
    assert strategy.fold(state, Phase(), [("a", empty)]).model.tolist() == [0, 0]
    assert strategy.fold(state, Phase(), []).model.tolist() == [0, 0]


def test_fedprox_pull_bites_after_the_first_step() -> None:
    two = Training(epochs=2, batch=10, lr=0.5)
    local, start = Bowl(flat(8, 8)), flat(0, 0)
    first = trained(FedProx(mu=0.5), job(start, ONE), local)
    assert first == pytest.approx([4, 4])  # at the anchor the pull is nothing
    # second step: gradient (4 - 8) + 0.5 * (4 - 0) = -2, times 0.5
    assert trained(FedProx(mu=0.5), job(start, two), local) == pytest.approx([5, 5])
    assert trained(FedAvg(), job(start, two), local) == pytest.approx([6, 6])


def test_fedprox_ends_between_the_minimum_and_the_anchor() -> None:
    long = Training(epochs=200, batch=10, lr=0.1)
    end = trained(FedProx(mu=3.0), job(flat(4, 0), long), Bowl(flat(8, 8), curvature=1.0))
    assert end == pytest.approx([(8 + 3 * 4) / 4, 8 / 4], rel=1e-5)


def test_fedprox_stragglers_stop_early_each_on_its_own_draw() -> None:
    five = Training(epochs=5, batch=10, lr=0.1)
    strategy = FedProx(straggler_fraction=0.5)
    local = Bowl(flat(1, 1), training=five)

    def report(client: int, round_: int = 0) -> Report:
        asked = replace(job(flat(0, 0), five), client=f"c{client}", round=round_)
        return strategy.work(asked, local, {})[0]

    drawn = [report(client).numbers["epochs"] for client in range(200)]
    assert drawn == [report(client).numbers["epochs"] for client in range(200)]
    assert drawn != [report(client, round_=1).numbers["epochs"] for client in range(200)]
    assert set(drawn) == {1, 2, 3, 4, 5}
    assert 70 < sum(count < 5 for count in drawn) < 130
    assert report(drawn.index(1)).steps == 1


def test_fedsgd_takes_the_weighted_gradient_step_on_the_server() -> None:
    locals_ = {"a": Bowl(flat(0, 4), 10), "b": Bowl(flat(8, 0), 30, curvature=2.0)}
    # gradients at 0: (0, -4) and (-16, 0); weights 1/4 and 3/4; step 0.1
    state = run(FedSgd(), locals_, Training(lr=0.1, epochs=9), rounds=1).state
    assert state.model == pytest.approx([0.1 * 12, 0.1 * 1])


def test_fedsgd_with_a_batch_uses_so_many_samples() -> None:
    locals_ = softmaxes()
    full, small, again = (run(FedSgd(batch=b), locals_, rounds=2).state.model for b in ("full", 5, 5))
    assert small.tolist() == again.tolist()
    assert not np.allclose(full, small, rtol=0.01)
    whole: Any = run(FedSgd(batch=24), locals_, rounds=2).state.model
    assert whole == pytest.approx(full, rel=1e-6)


def test_local_trains_once_for_the_whole_budget_and_sends_no_model() -> None:
    locals_ = two_groups(each=2)
    training = Training(epochs=2, batch=10, lr=0.1)
    end = run(LocalOnly(), locals_, training, rounds=10, participation=0.5)
    folded = [reporters for _, reporters in end.phases]
    assert folded == [tuple(locals_)] + [()] * 9
    assert all(not phase.sizes for phase, _ in end.phases)
    steps = 10  # 10 rounds * 0.5 * 2 epochs
    for client, local in locals_.items():
        ((weight, model),) = end.personal(client)
        assert weight == 1.0
        assert model == pytest.approx((1 - 0.9**steps) * local.minimum, rel=1e-5)
        assert model is end.memory[client]["held"]
    assert end.strategy.clusters(end.state) == ()


def test_local_takes_in_latecomers_and_those_who_were_cut_off() -> None:
    strategy = LocalOnly(epochs=3, newcomer_epochs=1)
    end = run(
        strategy,
        two_groups(each=2),
        rounds=4,
        joins={"c03": 2},
        drop=lambda phase, round_, client: client == "c01" and round_ == 0,
    )
    assert [reporters for _, reporters in end.phases] == [("c00", "c02"), ("c01",), ("c03",), ()]
    assert end.personal("c00")[0][1] == pytest.approx(end.locals["c00"].minimum * (1 - 0.5**3))  # type: ignore[attr-defined]
    assert end.personal("c03")[0][1] == pytest.approx(end.locals["c03"].minimum * 0.5)  # type: ignore[attr-defined]


def test_local_serves_the_start_before_training_and_says_when_a_model_is_gone() -> None:
    locals_ = two_groups(each=1)
    end = Run(LocalOnly(), setup(locals_), locals_)
    assert end.personal("c00")[0][1].tolist() == [0, 0]
    end.rounds(1)
    end.memory.clear()
    with pytest.raises(DataError, match="c00 has trained in this run but its model is gone"):
        end.personal("c00")


# -- FeSEM -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("distance", ["l2sq", "cosine", "l1"])
@pytest.mark.parametrize("features", ["full", "last_kernel", "last_layer", "sketch"])
def test_fesem_ends_with_a_centre_in_each_group(features: Any, distance: Any) -> None:
    if (features, distance) == ("sketch", "l1"):
        return
    end = run(Fesem(mu=0.1, features=features, distance=distance), two_groups(), rounds=12)
    assert end.state.assign == {client: i % 2 for i, client in enumerate(two_groups())}
    assert end.state.models[0] == pytest.approx([5, 5.3], rel=1e-3)
    assert end.state.models[1] == pytest.approx([-5, -4.6], rel=1e-3)
    assert end.strategy.notes(end.state)["sizes"] == [4, 4]


def test_fesem_refuses_what_a_projection_does_not_keep() -> None:
    with pytest.raises(ValidationError, match="does not keep l1"):
        Fesem(features="sketch", distance="l1")


def test_fesem_centres_are_plain_means_unless_weighted() -> None:
    locals_ = {"a": Bowl(flat(4, 0), 10), "b": Bowl(flat(0, 4), 30)}
    training = Training(epochs=1, batch=100, lr=1.0)
    plain = run(Fesem(n_clusters=1, mu=0.0), locals_, training, rounds=1).state
    weighted = run(Fesem(n_clusters=1, mu=0.0, weighted_centers=True), locals_, training, rounds=1).state
    assert plain.models[0] == pytest.approx([2, 2])
    assert weighted.models[0] == pytest.approx([1, 3])


def test_fesem_pulls_towards_the_centre_and_more_so_those_with_few_samples_by_the_paper() -> None:
    locals_ = {"a": Bowl(flat(4, 0), 10), "b": Bowl(flat(0, 4), 30)}
    for prox, expected in (("constant", (0.3, 0.3)), ("paper", (0.6, 0.2))):
        end = run(Fesem(n_clusters=1, mu=0.3, prox=prox), locals_, rounds=1)
        orders = [end.strategy.order(end.state, Phase(), client) for client in ("a", "b")]
        assert [order.numbers["mu"] for order in orders] == pytest.approx(expected)
    long = Training(epochs=300, batch=10, lr=0.1)
    work = trained(Fesem(), job(flat(0, 0), long, mu=1.0), Bowl(flat(4, 0)))
    assert work == pytest.approx([2, 0], rel=1e-5)


def test_fesem_uses_the_latest_model_of_clients_that_were_not_invited() -> None:
    locals_, absent = bowls((4, 4), (8, 8)), "c01"
    drop = lambda phase, round_, client: phase == "train" and client == absent  # noqa: E731
    everybody = run(Fesem(n_clusters=1, mu=0.0), locals_, rounds=1, drop=drop).state
    # warm-up from 0: 2 and 4; centre 3; c00 trains on to 3.5; c01's model is still 4
    assert everybody.models[0] == pytest.approx([3.75, 3.75])
    reporters = run(Fesem(n_clusters=1, mu=0.0, m_step="participants"), locals_, rounds=1, drop=drop).state
    assert reporters.models[0] == pytest.approx([3.5, 3.5])
    aged = run(Fesem(n_clusters=1, mu=0.0, max_age=0), locals_, rounds=1, drop=drop).state
    assert aged.models[0] == pytest.approx([3.5, 3.5])


def test_fesem_leaves_a_client_whose_model_is_too_old_where_it_is() -> None:
    locals_, absent = two_groups(), "c00"
    drop = lambda phase, round_, client: phase == "train" and client == absent  # noqa: E731
    for max_age, expected in ((0, 1), (None, 0)):
        at = Run(Fesem(mu=0.0, max_age=max_age), setup(locals_), locals_, drop=drop).rounds(2)
        at.state = replace(at.state, assign={**at.state.assign, absent: 1})
        assert at.rounds(3).state.assign[absent] == expected
        assert at.state.assign["c03"] == 1


def test_fesem_participants_and_all_agree_when_everybody_takes_part() -> None:
    ends = [run(Fesem(m_step=m), two_groups(), rounds=4).state for m in ("all", "participants")]
    assert fingerprint(ends[0]) == fingerprint(ends[1])


def test_fesem_moves_clients_only_in_rounds_with_an_e_step() -> None:
    strategy = Fesem(n_clusters=2, mu=0.0, update_center_every=3)
    before = Run(strategy, setup(two_groups()), two_groups()).rounds(1)
    wrong = {client: 1 - k for client, k in before.state.assign.items()}
    before.state = replace(before.state, assign=wrong)
    assert before.rounds(2).state.assign == wrong
    # every client kept training from the other centre; the E-step of round 3 finds the groups again
    after = before.rounds(3).state.assign
    assert len({after["c00"], after["c02"], after["c04"]}) == 1
    assert after["c00"] != after["c01"]


def test_fesem_seeds_an_empty_cluster_with_the_client_farthest_from_its_centre() -> None:
    strategy = Fesem(n_clusters=2, mu=0.0)
    at = Run(strategy, setup(two_groups(2)), bowls((1, 1), (1.2, 1), (0.9, 1), (9, 9))).rounds(0)
    at._phase(0)
    far_away = (at.state.models[0], flat(500, 500))
    at.state = replace(at.state, models=far_away, assign=dict.fromkeys(at.state.assign, 0))
    at.rounds(1)
    assert at.state.assign == {"c00": 0, "c01": 0, "c02": 0, "c03": 1}
    assert strategy.notes(at.state)["reseeded"] == 1
    assert at.state.models[1] == pytest.approx(at.state.stored["c03"])


def test_fesem_warns_when_nearly_everybody_shares_a_cluster() -> None:
    collapsed = run(Fesem(mu=0.0), bowls(*[(1, 1)] * 9, (50, 50)), rounds=1)
    assert "9 of 10 agents share one of 2 clusters" in collapsed.strategy.notes(collapsed.state)["warning"]
    healthy = run(Fesem(), two_groups(), rounds=1)
    assert "warning" not in healthy.strategy.notes(healthy.state)


def test_fesem_starts_with_fewer_clients_than_clusters_and_fills_up_later() -> None:
    joins = dict.fromkeys(list(two_groups())[1:], 1)
    end = run(Fesem(n_clusters=2, mu=0.0), two_groups(), rounds=8, joins=joins)
    assert sorted(end.strategy.notes(end.state)["sizes"]) == [4, 4]


def test_fesem_never_copies_a_stored_model(tmp_path: Path) -> None:
    strategy = Fesem(n_clusters=1)
    mapped = np.memmap(tmp_path / "model", np.float32, "w+", shape=(2,))
    phase = Phase("warmup", ("a",), ends_round=False)
    state = strategy.fold(strategy.init(setup(bowls((1, 1)))), phase, [("a", Report({"model": mapped}, 3))])
    assert state.stored["a"] is mapped


def test_fesem_newcomer_starts_from_the_mean_of_the_centres() -> None:
    for option, expected in (("mean", 4.0), ("start", 0.0)):
        strategy = Fesem(mu=0.0, newcomer_start=option)
        end = run(strategy, bowls((0, 0), (8, 8)), Training(batch=10, lr=1.0), rounds=1)
        (key,) = strategy.order(end.state, Phase("entry"), "stranger").models
        assert strategy.model(end.state, key) == pytest.approx([expected, expected])


# -- FedClust --------------------------------------------------------------------------------------


@pytest.mark.parametrize("linkage", ["average", "single", "complete", "weighted", "ward"])
@pytest.mark.parametrize("cut", [{"n_clusters": 2}, {"lambda": 3.0}, {"lambda_quantile": 0.43}, {}])
def test_fedclust_finds_planted_groups_from_final_layers(cut: dict[str, Any], linkage: Any) -> None:
    # the bodies differ more than the heads: only who looks at the final layer alone finds the groups
    locals_ = bowls(*((100.0 * i, (-1) ** i * 10 + 0.1 * i) for i in range(8)))
    end = run(FedClust(**cut, linkage=linkage), locals_, rounds=1)
    assert end.state.assign == {client: i % 2 for i, client in enumerate(locals_)}
    first, _ = end.phases[0]
    assert (first.name, first.sizes, first.ends_round) == ("signature", {"signature": 1}, False)


def test_fedclust_finds_label_groups_of_real_classifiers_and_trains_them() -> None:
    locals_ = softmaxes()
    training = Training(epochs=3, batch=8, lr=0.1, momentum=0.5)
    end = run(FedClust(n_clusters=2), locals_, training, rounds=5)
    assert end.state.assign == {f"c{i}": i % 2 for i in range(6)}
    single = run(FedAvg(), locals_, training, rounds=5)

    def accuracy(where: Run, client: str) -> float:
        local = locals_[client]
        return float(np.mean(local.predict(where.personal(client)[0][1], "test").argmax(axis=1) == local.y))

    clustered = np.mean([accuracy(end, client) for client in locals_])
    assert clustered > 0.9
    assert clustered >= np.mean([accuracy(single, client) for client in locals_])


def test_fedclust_clusters_start_at_the_common_start_and_end_at_their_groups() -> None:
    locals_ = two_groups()
    at = Run(FedClust(n_clusters=2), setup(locals_), locals_)
    at._phase(0)
    assert [model.tolist() for model in at.state.models] == [[0, 0], [0, 0]]
    at.rounds(20)
    assert at.state.models[0] == pytest.approx([5, 5.3], rel=1e-4)
    assert at.state.models[1] == pytest.approx([-5, -4.6], rel=1e-4)


def test_fedclust_names_the_lambda_that_a_cut_implies() -> None:
    end = run(FedClust(n_clusters=2), two_groups(), rounds=1)
    facts = end.strategy.notes(end.state)
    for threshold in (facts["lambda_from"], (facts["lambda_from"] + facts["lambda_below"]) / 2):
        assert run(FedClust(threshold=threshold), two_groups(), rounds=1).state.assign == end.state.assign
    other = run(FedClust(threshold=facts["lambda_below"]), two_groups(), rounds=1).state
    assert len(other.models) == 1
    assert len(facts["merge_heights"]) == 7


def test_fedclust_trains_for_first_epochs_before_clustering_only() -> None:
    locals_ = two_groups(each=1)
    end = run(FedClust(n_clusters=2, first_epochs=3), locals_, rounds=1)
    assert end.state.signatures["c00"] == pytest.approx([5 * (1 - 0.5**3)])
    assert end.state.models[0] == pytest.approx([2.5, 2.5])


@pytest.mark.parametrize(
    ("normalize", "groups"), [("none", [0, 0, 1, 2]), ("delta", [0, 0, 1, 2]), ("unit", [0, 1, 1, 0])]
)
def test_fedclust_normalisation_takes_out_size_or_leaves_it_in(normalize: Any, groups: list[int]) -> None:
    # two directions, one short and one long each: by plain distance the short ones are alike, by unit the directions
    locals_ = bowls((0, 1, 1), (0, 1, -1), (0, 9, -9), (0, 8, 8))
    strategy = FedClust(n_clusters=max(groups) + 1, normalize=normalize)
    end = Run(strategy, replace(setup(locals_), layout=bowl_layout(3, head=2)), locals_).rounds(1)
    assert [*end.state.assign.values()] == groups


@pytest.mark.parametrize("reference", ["round0", "current"])
def test_fedclust_newcomers_join_their_group_by_their_final_layer(reference: Any) -> None:
    joins = {"c04": 3, "c05": 3}
    end = run(FedClust(n_clusters=2, newcomer_ref=reference), two_groups(), rounds=6, joins=joins)
    assert end.state.assign == {client: i % 2 for i, client in enumerate(two_groups())}
    names = [(phase.name, phase.cohort) for phase, _ in end.phases]
    assert names[4] == ("entry", ("c04", "c05"))
    assert [name for name, _ in names] == ["signature", "train", "train", "train", "entry", "train", "train", "train"]


def test_fedclust_reference_is_the_first_uploads_or_the_current_model() -> None:
    grown = (flat(0, 40), flat(0, 2.6))  # after many rounds: by now a newcomer's 2.4 is nearest to the other cluster
    newcomer = [("new", Report({"signature": flat(2.4)}, 10))]
    for reference, expected in (("round0", 0), ("current", 1)):
        end = run(FedClust(n_clusters=2, newcomer_ref=reference), two_groups(), rounds=1)
        state = replace(end.state, models=grown)
        assert end.strategy.fold(state, Phase("entry", ("new",)), newcomer).assign["new"] == expected


def test_fedclust_newcomers_do_not_move_the_reference_of_their_cluster() -> None:
    before = run(FedClust(n_clusters=2), two_groups(), rounds=2, joins={"c05": 3})
    centroids = fingerprint(before.state.centroids)
    assert "c05" in before.rounds(4).state.assign
    assert fingerprint(before.state.centroids) == centroids


def test_fedclust_clusters_those_who_answered_once_half_of_them_have() -> None:
    end = run(
        FedClust(n_clusters=2), two_groups(), rounds=2, drop=lambda phase, _, c: phase == "signature" and c < "c04"
    )
    assert len(end.phases[0][1]) == 4
    assert end.state.assign == {client: i % 2 for i, client in enumerate(two_groups())}  # the rest came by entry
    with pytest.raises(AssertionError, match="void again and again"):
        run(FedClust(), two_groups(), drop=lambda phase, _, c: phase == "signature" and c < "c05")


def test_fedclust_takes_one_cut_and_says_which_were_given() -> None:
    with pytest.raises(ValidationError, match="n_clusters and lambda cut the same tree"):
        FedClust.model_validate({"name": "fedclust", "lambda": 1, "n_clusters": 2})
    for spelled in ({"lambda": 1.5}, {"threshold": 1.5}):
        assert FedClust.model_validate(spelled).threshold == 1.5


def test_a_cluster_without_reporters_keeps_its_model() -> None:
    end = run(FedClust(n_clusters=2), two_groups(), rounds=2)
    odd = {client for client, k in end.state.assign.items() if k == 1}
    end.drop = lambda phase, round_, client: client in odd
    before = end.state.models
    after = end.rounds(3).state.models
    assert after[1] is before[1]
    assert not np.array_equal(after[0], before[0])


# -- newcomers, for every clustered method -----------------------------------------------------------

CLUSTERED = [FedClust(n_clusters=2), Fesem(mu=0.0), Fesem(mu=0.0, m_step="participants")]


@pytest.mark.parametrize("strategy", CLUSTERED, ids=lambda s: s.name)
def test_a_newcomer_whose_entry_failed_is_asked_again_only_after_a_round(strategy: Any) -> None:
    broken = lambda phase, round_, client: client == "c07" and round_ < 3  # noqa: E731
    end = run(strategy, two_groups(), rounds=4, joins={"c07": 1}, drop=broken)
    entries = [reporters for phase, reporters in end.phases if phase.name == "entry"]
    assert entries == [(), (), ("c07",)]
    assert [phase.name for phase, _ in end.phases][2:] == ["entry", "train"] * 3
    assert end.state.assign["c07"] == end.state.assign["c05"]


@pytest.mark.parametrize("strategy", CLUSTERED, ids=lambda s: s.name)
def test_an_agent_drawn_for_a_round_without_a_cluster_does_its_entry_there(strategy: Any) -> None:
    no_entry = lambda phase, round_, client: phase == "entry"  # noqa: E731
    end = run(strategy, two_groups(), rounds=2, joins={"c07": 1}, drop=no_entry)
    alone = run(strategy, {c: b for c, b in two_groups().items() if c != "c07"}, rounds=2)
    assert end.state.assign["c07"] == end.state.assign["c05"]
    assert fingerprint(end.state.models) == fingerprint(alone.state.models)  # nobody's model took it in
    order = strategy.order(end.state, Phase(), "stranger")
    assert order.cluster is None
    assert strategy.model(end.state, order.models[0]).shape == (2,)


@pytest.mark.parametrize("strategy", CLUSTERED, ids=lambda s: s.name)
def test_who_has_no_cluster_is_served_the_model_with_the_lowest_training_loss(strategy: Any) -> None:
    end = run(strategy, two_groups(), rounds=4)
    end.locals = {**end.locals, "late": Bowl(flat(-4, -4))}
    assert end.personal("late")[0][1] is end.state.models[end.state.assign["c01"]]
    assert end.personal("c00")[0][1] is end.state.models[end.state.assign["c00"]]
    early = Run(strategy, setup(two_groups()), two_groups())
    assert early.personal("c00")[0][1].tolist() == [0, 0]


@pytest.mark.parametrize("strategy", CLUSTERED, ids=lambda s: s.name)
def test_a_first_phase_without_reports_leaves_the_state_alone(strategy: Any) -> None:
    state = strategy.init(setup(two_groups()))
    assert strategy.fold(state, strategy.plan(state, View(0, 3, 0, ("a",))), []) is state


# -- pulls and buffers -----------------------------------------------------------------------------


def test_a_pull_that_is_small_changes_little() -> None:
    """A guard for the reduction to FedAvg: it would hold for a pull that never reaches the gradient."""
    draw = generator(0, "points").normal(0, 1, (4, 2))
    locals_ = bowls(*map(tuple, draw))
    training = Training(epochs=10, batch=10, lr=0.1)
    ends = [run(FedProx(mu=mu), locals_, training, rounds=1).state.model for mu in (0.0, 1e-3, 1.0)]
    assert 0 < math.dist(ends[0], ends[1]) < math.dist(ends[0], ends[2])


def test_buffers_are_averaged_but_are_no_part_of_distances() -> None:
    layout = Layout((Tensor("out.weight", (1,)), Tensor("norm.running_mean", (1,))), 1)
    strategy = Fesem(n_clusters=2, mu=0.0)
    state = strategy.init(replace(setup(bowls((1, 1))), layout=layout))
    rows = {"a": (1, 900), "b": (1.1, -900), "c": (9, 900), "d": (9.1, -900)}
    reports = [(client, Report({"model": flat(*row)}, 1)) for client, row in rows.items()]
    state = strategy.fold(state, Phase("warmup", tuple(rows), ends_round=False), reports)
    assert state.assign == {"a": 0, "b": 0, "c": 1, "d": 1}
    assert state.models[0] == pytest.approx([1.05, 0])
