"""Methods with one model, and their personalised relatives, with answers known by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broker.memory import MemoryBroker
from coordinator.inprocess import InProcess
from coordinator.launch import setup_of
from shared.errors import DataError, UserError
from shared.strategies.ditto import Ditto
from shared.strategies.fedavg import FedAvg
from shared.strategies.feddane import FedDane
from shared.strategies.feddist import FedDist
from shared.strategies.feddws import FedDws
from shared.strategies.fednova import FedNova, accumulated
from shared.strategies.fedprox import FedProx
from shared.strategies.lg import LgFedAvg
from shared.strategies.perfedavg import PerFedAvg, groups
from shared.strategy import Job, Phase, Report, Setup, Strategy, Training, View
from shared.vectors import Layout, Tensor, Vector
from tests import clock
from tests.bowl import Bowl, Softmax, bowl_layout, flat, softmax_client
from tests.drive import Run
from tests.small_fleet import Fleet
from tests.small_run import clients, local_for, rules, scenario

ONE = Training(epochs=1, batch=10, lr=0.5)  # a bowl of 10 samples: one step, half of the way
SGD = Training(epochs=2, batch=8, lr=0.1)


def unequal() -> dict[str, Softmax]:
    """Two groups of labels, different numbers of samples and so of steps."""
    owned = [(0, 1), (2, 3)] * 2
    return {f"c{i}": softmax_client(labels, seed=i, n=12 + 8 * i) for i, labels in enumerate(owned)}


def equal() -> dict[str, Softmax]:
    return {f"c{i}": softmax_client(labels, seed=i) for i, labels in enumerate([(0, 1), (2, 3)] * 2)}


def run(strategy: Strategy[Any], locals_: Any, training: Training = ONE, *, rounds: int = 1, **more: Any) -> Run:
    first: Any = next(iter(locals_.values()))
    layout = first.layout if isinstance(first, Softmax) else bowl_layout(len(first.minimum))
    start = more.pop("start", np.zeros(layout.size, np.float32))
    participation = more.pop("participation", 1.0)
    setup = Setup((start,), layout, 7, rounds, participation, training)
    return Run(strategy, setup, locals_, **more).rounds(rounds)


def job(
    *models: Vector,
    training: Training = ONE,
    phase: str = "train",
    round_: int = 0,
    layout: Layout | None = None,
    seed: int = 3,
) -> Job:
    return Job(phase, round_, "c", seed, models, {}, None, layout or bowl_layout(len(models[0])), training)


def same(a: Run, b: Run) -> None:
    np.testing.assert_allclose(a.state.model, b.state.model, rtol=1e-5, atol=1e-7)


# -- FedNova -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 7, 40])
def test_a_counts_steps_and_follows_the_closed_forms_of_momentum_and_pull(steps: int) -> None:
    rho, lr, mu = 0.9, 0.1, 0.5
    assert accumulated(steps, Training(lr=lr), 0.0) == steps
    momentum = (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
    assert accumulated(steps, Training(lr=lr, momentum=rho), 0.0) == pytest.approx(momentum)
    pull = (1 - (1 - lr * mu) ** steps) / (lr * mu)
    assert accumulated(steps, Training(lr=lr), mu) == pytest.approx(pull)


@pytest.mark.parametrize(("momentum", "mu"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.7), (0.9, 0.7)])
def test_a_is_how_far_the_optimiser_goes_on_a_constant_gradient(momentum: float, mu: float) -> None:
    """A bowl as flat as a slope: curvature 1e-6 and a minimum a million away give gradient -1 everywhere near 0."""
    slope = Bowl(flat(1e6), curvature=1e-6)
    training = Training(epochs=6, batch=10, lr=0.01, momentum=momentum)
    report, _ = FedNova(mu=mu).work(
        job(flat(0.0), training=training, layout=bowl_layout(1)), replace(slope, training=training), {}
    )
    assert report.vectors["model"] == pytest.approx([0.01 * report.numbers["a"]], rel=1e-4)


def test_fednova_averages_directions_and_goes_the_mean_way() -> None:
    """a does 1 step of gradient -4, b does 3 steps of half the way to 8: d = 2 * -1 and 7 / 3 of -1, in units of lr."""
    locals_ = {"a": Bowl(flat(4.0), 10), "b": Bowl(flat(8.0), 30)}
    end = run(FedNova(), locals_, Training(epochs=1, batch=10, lr=0.5))
    tau = 0.25 * 1 + 0.75 * 3
    assert end.state.model == pytest.approx([tau * (0.25 * 2 / 1 + 0.75 * 7 / 3)])


def test_fednova_with_a_pull_goes_as_far_as_the_mean_number_of_steps() -> None:
    locals_ = {"a": Bowl(flat(4.0), 10), "b": Bowl(flat(8.0), 30)}
    end = run(FedNova(mu=1.0), locals_, Training(epochs=1, batch=10, lr=0.5))
    # b: 0 -> 4 -> 4 - 0.5 * (-4 + 4) = 4 -> 4; a_b = 1 + 0.5 + 0.25 of pull's decay 1/2
    tau = 0.25 * 1 + 0.75 * 3
    assert end.state.model == pytest.approx([tau * (0.25 * 2 / 1 + 0.75 * 4 / 1.75)])


def test_fednova_server_momentum_adds_the_last_rounds_step() -> None:
    locals_ = {"a": Bowl(flat(8.0), 10)}
    # first round: half of the way to 8; second: 2 more, and half of the first step again
    assert run(FedNova(server_momentum=0.5), locals_, rounds=1).state.model == pytest.approx([4.0])
    assert run(FedNova(server_momentum=0.5), locals_, rounds=2).state.model == pytest.approx([4 + 2 + 2])


def test_fednova_with_unequal_steps_or_momentum_is_not_fedavg() -> None:
    apart = run(FedNova(), unequal(), SGD).state.model, run(FedAvg(), unequal(), SGD).state.model
    assert not np.allclose(*apart, rtol=0.01)


def test_fednova_averages_buffers_without_dividing_them() -> None:
    layout = Layout((Tensor("a.weight", (1,)), Tensor("a.running_mean", (1,))), 1)
    strategy = FedNova()
    state = strategy.init(Setup((flat(0, 0),), layout, 0, 1, 1.0, ONE))
    reports = [
        ("a", Report({"model": flat(2, 10)}, 10, {"a": 1.0}, 1)),
        ("b", Report({"model": flat(6, 50)}, 30, {"a": 3.0}, 3)),
    ]
    assert strategy.fold(state, Phase(), reports).model == pytest.approx([2.5 * (0.25 * 2 + 0.75 * 2), 40.0])


@pytest.mark.parametrize("work", [None, 0.0, -1.0, "many", float("nan"), float("inf")])
def test_fednova_leaves_out_a_report_whose_work_cannot_be_divided_by(work: Any) -> None:
    strategy = FedNova()
    state = strategy.init(Setup((flat(0),), Layout((Tensor("a.w", (1,)),), 1), 0, 1, 1.0, ONE))
    good = ("a", Report({"model": flat(2)}, 10, {"a": 1.0}, 1))
    bad = ("b", Report({"model": flat(9)}, 10, {} if work is None else {"a": work}, 1))
    assert strategy.fold(state, Phase(), [good, bad]).model == pytest.approx([2.0])
    assert strategy.fold(state, Phase(), [bad]) is state


# -- FedDANE -------------------------------------------------------------------------------------------------------------


def test_feddane_corrects_the_first_step_to_the_mean_gradient() -> None:
    """Gradients at 0 are -4 and -16, their mean -7 by samples: both first steps go 0.1 * 7, the bowls then bend them."""
    locals_ = {"a": Bowl(flat(4.0), 30), "b": Bowl(flat(8.0), 10, curvature=2.0)}
    assert run(FedDane(), locals_, Training(batch=100, lr=0.1)).state.model == pytest.approx([0.7])
    two = run(FedDane(), locals_, Training(epochs=2, batch=100, lr=0.1)).state.model
    ends = [0.7 - 0.1 * (curvature * 0.7 - 7) for curvature in (1.0, 2.0)]
    assert two == pytest.approx([0.75 * ends[0] + 0.25 * ends[1]])


def test_feddane_pulls_towards_the_rounds_model() -> None:
    locals_ = {"a": Bowl(flat(8.0))}
    end = run(FedDane(mu=0.5), locals_, Training(epochs=2, batch=10, lr=0.5))
    assert end.state.model == pytest.approx([5.0])  # as FedProx: 4, then 4 + 0.5 * (4 - 0.5 * 4)


def test_feddane_of_one_client_with_pull_is_fedprox() -> None:
    one = {"c0": unequal()["c0"]}
    same(run(FedDane(mu=0.3), one, SGD, rounds=3), run(FedProx(mu=0.3), one, SGD, rounds=3))


def test_feddane_trains_those_who_gave_their_gradient_and_are_still_there() -> None:
    end = run(
        FedDane(),
        equal(),
        SGD,
        rounds=2,
        drop=lambda phase, round_, client: (phase, round_, client) == ("gradient", 1, "c1"),
    )
    assert [(phase.name, who) for phase, who in end.phases] == [
        ("gradient", ("c0", "c1", "c2", "c3")),
        ("train", ("c0", "c1", "c2", "c3")),
        ("gradient", ("c0", "c2", "c3")),
        ("train", ("c0", "c2", "c3")),
    ]


def test_feddane_sends_the_model_only_to_those_who_do_not_have_it() -> None:
    strategy = FedDane()
    state = strategy.init(Setup((flat(1, 1),), bowl_layout(), 0, 1, 1.0, ONE))
    gave = strategy.fold(state, Phase("gradient"), [("a", Report({"gradient": flat(2, 0)}, 5))])
    assert strategy.order(gave, Phase(), "a").models == ("gradient",)
    assert strategy.order(gave, Phase(), "b").models == ("gradient", "0")
    assert strategy.model(gave, "gradient").tolist() == [2, 0]
    assert strategy.notes(gave) == {"gradient_norm": 2.0}


def test_feddane_draws_anew_when_those_of_the_first_phase_are_gone_or_the_phase_was_void() -> None:
    strategy = FedDane()
    state = strategy.init(Setup((flat(1, 1),), bowl_layout(), 0, 1, 1.0, ONE))
    gave = strategy.fold(state, Phase("gradient"), [(c, Report({"gradient": flat(2, 0)}, 5)) for c in ("a", "b")])

    def cohort(method: FedDane, attempt: int, *present: str) -> Any:
        return method.plan(gave, View(0, 1, attempt, present)).cohort

    assert cohort(strategy, 0, "b", "c") == ("b",)
    assert cohort(strategy, 1, "b", "c") == "sample"
    assert cohort(strategy, 0, "c") == "sample"
    assert cohort(FedDane(resample=True), 0, "a", "b", "c") == "sample"


def test_feddane_clients_new_in_the_second_phase_compute_their_gradient_first() -> None:
    strategy, local = FedDane(), Bowl(flat(8.0), training=ONE)
    layout = bowl_layout(1)
    _, memory = strategy.work(job(flat(0.0), phase="gradient", layout=layout), local, {})
    kept, _ = strategy.work(job(flat(-2.0), layout=layout), local, memory)
    fresh, _ = strategy.work(job(flat(-2.0), flat(0.0), layout=layout), local, {})
    assert kept.vectors["model"] == pytest.approx([1.0])  # one step of 0.5 along the mean gradient -2
    assert fresh.vectors["model"].tolist() == kept.vectors["model"].tolist()
    assert (kept.bases, fresh.bases) == ({}, {"model": 1})


def test_feddane_refuses_to_train_on_a_gradient_of_another_round() -> None:
    strategy, local, layout = FedDane(), Bowl(flat(8.0), training=ONE), bowl_layout(1)
    _, memory = strategy.work(job(flat(0.0), phase="gradient", layout=layout), local, {})
    with pytest.raises(DataError, match="round 1"):
        strategy.work(job(flat(-2.0), round_=1, layout=layout), local, memory)
    with pytest.raises(DataError, match="folder"):
        strategy.work(job(flat(-2.0), layout=layout), local, {})


def test_feddane_resampling_draws_two_different_sets_in_a_round(tmp_path: Path) -> None:
    def sets(**options: Any) -> list[set[tuple[str, ...]]]:
        rows: list[Any] = []
        scene = scenario("feddane", strategy=options)
        driver = InProcess(tmp_path / str(options), scene, setup_for(scene), rules(scene), local_for(clients()))
        driver.watch = rows.append
        driver.complete(dict.fromkeys(clients(), (24, 24)))
        trained = [row for row in rows if row["event"] == "phase" and row["phase"] != "evaluate"]
        return [{tuple(row["invited"]) for row in trained if row["round"] == r} for r in range(3)]

    assert [len(of_round) for of_round in sets(resample=False)] == [1, 1, 1]
    assert any(len(of_round) == 2 for of_round in sets(resample=True))


# -- FedDist and FedDWS --------------------------------------------------------------------------------------------------


def test_feddist_goes_part_of_the_way_to_the_uniform_mean_and_feddws_to_the_weighted() -> None:
    locals_ = {"a": Bowl(flat(4.0), 10), "b": Bowl(flat(16.0), 30)}
    training = Training(batch=100, lr=0.5)  # ends: 2 and 8
    assert run(FedDist(epsilon=0.6), locals_, training).state.model == pytest.approx([0.6 * 5])
    assert run(FedDws(epsilon=0.6), locals_, training).state.model == pytest.approx([0.6 * 6.5])


def test_feddist_annealing_shrinks_the_step_by_equal_amounts() -> None:
    locals_ = {"a": Bowl(flat(8.0))}
    training = Training(batch=10, lr=1.0)  # every round ends at 8
    end = run(FedDist(epsilon=0.5, anneal="linear"), locals_, training, rounds=2)
    assert end.state.model == pytest.approx([4 + 0.25 * 4])
    assert run(FedDist(epsilon=0.5), locals_, training, rounds=2).state.model == pytest.approx([6.0])


# -- LG-FedAvg -----------------------------------------------------------------------------------------------------------


def test_lg_shares_the_last_layer_and_leaves_the_others_alone() -> None:
    locals_ = {"a": Bowl(flat(4, 4), 10), "b": Bowl(flat(-4, 8), 30)}
    end = run(LgFedAvg(shared_layers=1), locals_, Training(batch=100, lr=0.5), rounds=2)
    # head: 0 -> mean(2, 4, 4, 4) = 3.5 -> mean(3.75, 5.75 thrice); body of each: half of the way, twice
    assert end.state.shared == pytest.approx([5.25])
    for client, body in (("a", 3.0), ("b", -3.0)):
        ((_, model),) = end.personal(client)
        assert model == pytest.approx([body, 5.25])
    assert end.strategy.clusters(end.state)[0] == pytest.approx([0.0, 5.25])


def test_lg_sends_own_layers_initial_values_to_newcomers_alone() -> None:
    end = run(LgFedAvg(shared_layers=1), {"a": Bowl(flat(4, 4))}, start=flat(1, 2))
    serve = {client: end.strategy.serve(end.state, client).models for client in ("a", "new")}
    assert serve == {"a": ("0",), "new": ("0", "start")}
    assert [end.strategy.model(end.state, key).tolist() for key in ("0", "start")] == [[3.0], [1.0]]
    assert end.phases[0][0].sizes == {"shared": 1}


def test_lg_weighs_all_alike_where_told() -> None:
    locals_ = {"a": Bowl(flat(4, 4), 10), "b": Bowl(flat(-4, 8), 30)}
    end = run(LgFedAvg(shared_layers=1, weights="uniform"), locals_, Training(batch=100, lr=0.5))
    assert end.state.shared == pytest.approx([3.0])


def test_lg_with_no_layer_shared_sends_no_model_and_exports_none() -> None:
    lg = run(LgFedAvg(shared_layers=0), unequal(), SGD, rounds=3)
    assert lg.strategy.clusters(lg.state) == ()
    assert all(not phase.sizes for phase, _ in lg.phases)


def test_lg_shares_the_buffers_of_shared_layers() -> None:
    tensors = ("low.weight", "top.weight", "low.running_mean", "top.running_mean")
    layout = Layout(tuple(Tensor(name, (1,)) for name in tensors), 2)
    state = LgFedAvg(shared_layers=1).init(Setup((flat(1, 2, 3, 4),), layout, 0, 1, 1.0, ONE))
    assert (state.start.tolist(), state.shared.tolist()) == ([1, 3], [2, 4])
    assert LgFedAvg(shared_layers=1).clusters(state)[0].tolist() == [1, 2, 3, 4]


def test_lg_names_the_layers_when_more_are_to_be_shared_than_there_are() -> None:
    with pytest.raises(UserError, match=r"shared_layers is 3.*2 parametrised modules \(body, head\)"):
        LgFedAvg(shared_layers=3).init(Setup((flat(1, 1),), bowl_layout(), 0, 1, 1.0, ONE))


def test_lg_says_when_own_layers_are_gone() -> None:
    strategy = LgFedAvg(shared_layers=1)
    with pytest.raises(DataError, match="own layers are gone"):
        strategy.personal(job(flat(1.0), layout=bowl_layout()), Bowl(flat(0, 0)), {})


TWO_LAYERS = ("body.weight", "head.bias")


def two_layered() -> dict[str, Softmax]:
    return {client: replace(local, names=TWO_LAYERS) for client, local in clients().items()}


def setup_for(scene: Any, names: tuple[str, str] = ("out.weight", "out.bias")) -> Setup:
    layout = replace(softmax_client((0, 1), seed=0), names=names).layout
    return setup_of(scene, [np.zeros(layout.size, np.float32)], layout)


def test_lg_moves_only_shared_values_and_own_layers_once(tmp_path: Path) -> None:
    scene = scenario("lg", rounds={"participation": 1.0, "count": 3})
    driver = InProcess(
        tmp_path, scene, setup_for(scene, TWO_LAYERS), rules(scene, participation=1.0), local_for(two_layered())
    )
    end = driver.complete(dict.fromkeys(two_layered(), (24, 24)))
    agents, shared, own = 8, 4, 20
    assert end.traffic["up_vectors"] == agents * 3 * shared
    assert end.traffic["down_vectors"] == agents * ((3 + 1) * shared + own)  # the evaluation takes the shared part too


def test_lg_over_the_wire_gives_the_bytes_of_the_run_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = scenario("lg", wire={"part_bytes": 1024})
    patient = {"absence_s": 3600.0, "rollcall_s": 3600.0, "deadline_s": 36_000.0}
    monkeypatch.setattr("tests.small_fleet.setup", lambda scene: setup_for(scene, TWO_LAYERS))

    async def whole() -> Any:
        broker = MemoryBroker(seed=5, duplicate=0.2, reorder=0.2, drop_session=0.005)
        async with Fleet(tmp_path / "wire", scene, rules(scene, **patient), broker, two_layered()) as fleet:
            return await fleet.serve()

    driver = InProcess(tmp_path / "calm", scene, setup_for(scene, TWO_LAYERS), rules(scene), local_for(two_layered()))
    calm, wired = driver.complete(dict.fromkeys(two_layered(), (24, 24))), clock.run(whole())
    assert wired.state.shared.tobytes() == calm.state.shared.tobytes()
    assert wired.state.trained == calm.state.trained
    assert wired.facts.evaluation == calm.facts.evaluation  # own layers survived as well


@pytest.mark.parametrize("wire", [{"codec": "int8"}, {"codec": "topk", "keep": 0.5}, {"down": "float16"}])
def test_a_part_of_a_model_can_be_the_base_of_a_difference(tmp_path: Path, wire: dict[str, Any]) -> None:
    scene = scenario("lg", wire={"delta": True, **wire})
    driver = InProcess(tmp_path, scene, setup_for(scene, TWO_LAYERS), rules(scene), local_for(two_layered()))
    end = driver.complete(dict.fromkeys(two_layered(), (24, 24)))
    assert len(end.facts.evaluation) == 8
    assert np.isfinite(end.state.shared).all()
    assert end.state.shared.any()


# -- Per-FedAvg ----------------------------------------------------------------------------------------------------------


def test_perfedavg_takes_the_outer_step_with_the_gradient_after_the_inner_one() -> None:
    """A bowl at 8: the inner step goes alpha of the way, the gradient there is -8 (1 - alpha)."""
    local = {"a": Bowl(flat(8.0), 20)}
    end = run(PerFedAvg(alpha=0.25, beta=0.5), local, Training(batch=10, lr=9.0))
    assert end.state.model == pytest.approx([0.5 * 8 * 0.75])


def test_perfedavg_hessian_free_is_the_exact_gradient_of_the_adapted_loss_on_a_bowl() -> None:
    """f(w - alpha f'(w)) = c/2 (1 - alpha c)^2 (w - m)^2: its slope at 0 is -m c (1 - alpha c)^2."""
    local = {"a": Bowl(flat(8.0), 30, curvature=2.0)}
    end = run(PerFedAvg(variant="hf", alpha=0.25, beta=0.1, delta=0.01), local, Training(batch=10))
    assert end.state.model == pytest.approx([0.1 * 8 * 2 * 0.5**2], rel=1e-3)


@pytest.mark.parametrize(("variant", "steps"), [("fo", 2 * 2), ("hf", 2 * 1)])
def test_perfedavg_uses_each_batch_once_and_drops_an_incomplete_group(variant: Any, steps: int) -> None:
    training = Training(epochs=2, batch=10)
    local = Bowl(flat(8.0), 45, training=training)  # five batches: two pairs, one triple
    report, _ = PerFedAvg(variant=variant).work(job(flat(0.0), training=training, layout=bowl_layout(1)), local, {})
    assert report.steps == steps


def test_perfedavg_splits_a_single_batch() -> None:
    rows = np.arange(5)
    assert [[part.tolist() for part in group] for group in groups([rows], 2)] == [[[0, 1, 2], [3, 4]]]
    assert [[part.tolist() for part in group] for group in groups([np.array([7])], 3)] == [[[7], [7], [7]]]
    split = [part.tolist() for part in groups([rows, np.array([8])], 3)[0]]
    assert split == [[0, 1], [2, 3], [4, 8]]


def test_perfedavg_weighs_all_alike_where_told() -> None:
    locals_ = {"a": Bowl(flat(4.0), 10), "b": Bowl(flat(8.0), 30)}
    training = Training(batch=100)
    ends = [
        run(PerFedAvg(alpha=0, beta=0.5, weights=weights), locals_, training).state.model
        for weights in ("samples", "uniform")
    ]
    assert ends == [pytest.approx([0.25 * 2 + 0.75 * 4]), pytest.approx([3.0])]


def test_perfedavg_is_evaluated_after_adaptation_on_training_data() -> None:
    local = Bowl(flat(8.0), 20, training=Training(epochs=5, batch=10))
    the_job = job(flat(0.0), training=local.training, layout=bowl_layout(1))

    def adapted(**options: Any) -> Any:
        ((weight, model),) = PerFedAvg(alpha=0.5, **options).personal(the_job, local, {})
        assert weight == 1.0
        return model

    assert adapted() == pytest.approx([4.0])  # one step on one batch
    assert adapted(adapt_epochs=0) == pytest.approx([0.0])
    assert adapted(adapt_epochs=1) == pytest.approx([6.0])  # two batches
    assert adapted(adapt_epochs=2) == pytest.approx([7.5])


def test_perfedavg_adaptation_lowers_the_loss_of_clients_with_unlike_data() -> None:
    end = run(PerFedAvg(alpha=0.3, beta=0.1, adapt_epochs=1), unequal(), SGD, rounds=5)
    for client, local in end.locals.items():
        assert local.loss(end.personal(client)[0][1]) < 0.8 * local.loss(end.state.model)


# -- Ditto -----------------------------------------------------------------------------------------


def test_dittos_global_model_is_fedavgs_whatever_the_pull() -> None:
    training = Training(epochs=2, batch=8, lr=0.1)
    ours, plain = (run(s, unequal(), training, rounds=3).state.model for s in (Ditto(lam=0.7), FedAvg()))
    assert ours.tolist() == plain.tolist()


def test_dittos_personal_model_lies_between_the_own_minimum_and_the_global_model() -> None:
    locals_ = {"a": Bowl(flat(4, 0)), "b": Bowl(flat(-4, 0))}  # alike many samples: the global model ends at 0
    done = run(Ditto(lam=3.0), locals_, Training(epochs=50, batch=10, lr=0.1), rounds=10)
    assert done.state.model == pytest.approx([0, 0], abs=1e-4)
    ((_, own),) = done.personal("a")
    assert own == pytest.approx([4 / (1 + 3), 0], abs=1e-3)


def test_a_client_of_ditto_that_never_trained_uses_the_global_model() -> None:
    done = run(Ditto(), {"a": Bowl(flat(4, 0)), "b": Bowl(flat(-4, 0))}, Training(lr=0.1), rounds=1, participation=0.5)
    stranger = next(client for client in ("a", "b") if client not in done.phases[0][1])
    ((_, model),) = done.personal(stranger)
    assert model.tolist() == done.state.model.tolist()
