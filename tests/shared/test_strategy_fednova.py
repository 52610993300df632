"""FedNova on clients whose answers are known by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from covey.shared.numerics.vectors import Layout, Tensor, Vector
from covey.shared.privacy.settings import SecureSettings
from covey.shared.strategies.base import Phase, Setup, Training, View
from covey.shared.strategies.client_half import Report
from covey.shared.strategies.fedavg import FedAvg
from covey.shared.strategies.fednova import FedNova, accumulated
from covey.shared.strategies.reading import folded
from covey.shared.strategies.server import Server
from tests.bowl import Bowl, bowl_layout, flat
from tests.drive import Run
from tests.shared.planted import ONE, SGD, job, run, setup, unequal


@pytest.mark.parametrize("steps", [1, 2, 7, 40])
def test_a_counts_steps_and_follows_the_closed_forms_of_momentum_and_pull(steps: int) -> None:
    rho, lr, mu = 0.9, 0.1, 0.5
    assert accumulated(steps, Training(lr=lr), 0.0) == steps
    momentum = (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
    assert accumulated(steps, Training(lr=lr, momentum=rho), 0.0) == pytest.approx(momentum)
    pull = (1 - (1 - lr * mu) ** steps) / (lr * mu)
    assert accumulated(steps, Training(lr=lr), mu) == pytest.approx(pull)


@pytest.mark.parametrize(("momentum", "mu"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.7), (0.9, 0.7)])
def test_a_is_the_distance_of_the_optimiser_under_a_constant_gradient(
    momentum: float, mu: float
) -> None:
    """A bowl as flat as a slope: curvature 1e-6 and a minimum a million away give gradient -1 everywhere near 0."""
    slope = Bowl(flat(1e6), curvature=1e-6)
    training = Training(epochs=6, batch=10, lr=0.01, momentum=momentum)
    report, _ = FedNova(mu=mu).work(
        job(flat(0.0), training=training, layout=bowl_layout(1)),
        replace(slope, training=training),
        {},
    )
    assert report.vectors["model"] == pytest.approx([0.01 * report.numbers["a"]], rel=1e-4)


def test_fednova_averages_directions_and_goes_the_mean_way() -> None:
    """a does 1 step of gradient -4, b does 3 steps of half the way to 8: d = 2 * -1 and 7 / 3 of -1, in units of lr."""
    locals_ = {"a": Bowl(flat(4.0), 10), "b": Bowl(flat(8.0), 30)}
    end = run(FedNova(), locals_, Training(epochs=1, batch=10, lr=0.5), rounds=1)
    tau = 0.25 * 1 + 0.75 * 3
    assert end.state.model == pytest.approx([tau * (0.25 * 2 / 1 + 0.75 * 7 / 3)])


def test_fednova_with_a_pull_goes_as_far_as_the_mean_number_of_steps() -> None:
    locals_ = {"a": Bowl(flat(4.0), 10), "b": Bowl(flat(8.0), 30)}
    end = run(FedNova(mu=1.0), locals_, Training(epochs=1, batch=10, lr=0.5), rounds=1)
    # b: 0 -> 4 -> 4 - 0.5 * (-4 + 4) = 4 -> 4; a_b = 1 + 0.5 + 0.25 of pull's decay 1/2
    tau = 0.25 * 1 + 0.75 * 3
    assert end.state.model == pytest.approx([tau * (0.25 * 2 / 1 + 0.75 * 4 / 1.75)])


def test_fednova_with_momentum_is_continuous_where_the_pull_vanishes() -> None:
    training = Training(epochs=10, batch=10, lr=0.001, momentum=0.9)
    without = run(FedNova(), unequal(), training, rounds=1).state.model
    almost_without = run(FedNova(mu=1e-9), unequal(), training, rounds=1).state.model
    assert almost_without == pytest.approx(without, rel=1e-4)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_fednova_with_equal_steps_is_fedavg_whatever_the_momentum(momentum: float) -> None:
    clients = {"a": Bowl(flat(4.0), 10), "b": Bowl(flat(8.0), 10)}
    training = Training(epochs=5, batch=5, lr=0.05, momentum=momentum)
    nova = run(FedNova(), clients, training, rounds=3).state.model
    plain = run(FedAvg(), clients, training, rounds=3).state.model
    assert nova == pytest.approx(plain, rel=1e-6)


def test_fednova_with_a_pull_and_momentum_goes_as_far_as_momentum_alone_would() -> None:
    """One client of 100 steps: tau_eff holds the momentum's factor of about 9.1, which a count of steps leaves out."""
    training = Training(epochs=100, batch=10, lr=0.0001, momentum=0.9)
    client = {"a": Bowl(flat(4.0), 10)}
    pulled = run(FedNova(mu=0.01), client, training, rounds=1).state.model
    free = run(FedNova(), client, training, rounds=1).state.model
    assert pulled == pytest.approx(free, rel=0.01)


def test_a_momentum_of_the_server_adds_the_last_rounds_step() -> None:
    locals_ = {"a": Bowl(flat(8.0), 10)}
    # first round: half of the way to 8; second: 2 more, and half of the first step again
    strategy = FedNova(server=Server(momentum=0.5))
    assert run(strategy, locals_, rounds=1).state.model == pytest.approx([4.0])
    assert run(strategy, locals_, rounds=2).state.model == pytest.approx([4 + 2 + 2])


def test_fednova_with_unequal_steps_or_momentum_is_not_fedavg() -> None:
    apart = (
        run(FedNova(), unequal(), SGD, rounds=1).state.model,
        run(FedAvg(), unequal(), SGD, rounds=1).state.model,
    )
    assert not np.allclose(*apart, rtol=0.01)


def test_fednova_averages_buffers_without_dividing_them() -> None:
    layout = Layout((Tensor("a.weight", (1,)), Tensor("a.running_mean", (1,))), 1)
    strategy = FedNova()
    state = strategy.init(Setup((flat(0, 0),), layout, 0, 1, 1.0, ONE))
    reports = [
        ("a", Report({"model": flat(2, 10)}, 10, {"a": 1.0}, 1)),
        ("b", Report({"model": flat(6, 50)}, 30, {"a": 3.0}, 3)),
    ]
    assert folded(strategy, state, Phase(), reports=reports).model == pytest.approx(
        [2.5 * (0.25 * 2 + 0.75 * 2), 40.0]
    )


@pytest.mark.parametrize("work", [None, 0.0, -1.0, "many", float("nan"), float("inf")])
def test_fednova_leaves_out_a_report_whose_work_cannot_be_divided_by(work: Any) -> None:
    strategy = FedNova()
    state = strategy.init(Setup((flat(0),), Layout((Tensor("a.w", (1,)),), 1), 0, 1, 1.0, ONE))
    good = ("a", Report({"model": flat(2)}, 10, {"a": 1.0}, 1))
    bad = ("b", Report({"model": flat(9)}, 10, {} if work is None else {"a": work}, 1))
    assert folded(strategy, state, Phase(), reports=[good, bad]).model == pytest.approx([2.0])
    assert folded(strategy, state, Phase(), reports=[bad]) is state


def divided(strategy: FedNova, training: Training, clip: float = 100.0) -> Vector:
    """The model after two rounds whose clients divide their updates themselves, as under secure sums."""
    begun = replace(setup(unequal(), training), secure=SecureSettings(clip=clip, cap=100))
    model: Vector = Run(strategy, begun, unequal()).rounds(2).state.model
    return model


def test_under_secure_sums_fednova_refuses_a_step_of_the_server() -> None:
    """The average there is one of updates, which the optimiser would leave as it is."""
    strategy = FedNova(server=Server(momentum=0.5))
    assert "leave server out" in strategy.refuses(SecureSettings())
    assert not FedNova().refuses(SecureSettings())


@pytest.mark.parametrize("strategy", [FedNova(), FedNova(mu=0.7)], ids=repr)
def test_clients_that_divide_their_updates_under_secure_sums_come_to_the_same_model(
    strategy: FedNova,
) -> None:
    training = SGD.model_copy(update={"momentum": 0.5})
    plain = run(strategy, unequal(), training, rounds=2).state.model
    assert divided(strategy, training) == pytest.approx(plain, rel=1e-4, abs=1e-6)


def test_under_secure_sums_no_claimed_work_moves_the_model_further_than_the_clip() -> None:
    begun = replace(setup(unequal(), SGD), secure=SecureSettings(clip=0.5, cap=100))
    strategy = FedNova()
    state = strategy.init(begun)
    update = np.full(state.model.size, 0.01, np.float32)
    report = Report({"divided": update, "a": np.array([0.5], np.float32)}, 10)
    after = folded(
        strategy, state, strategy.plan(state, View(0, 1, 0, ())), reports=[("a", report)]
    )
    assert np.linalg.norm(after.model - state.model) == pytest.approx(0.5)
