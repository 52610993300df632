"""The schedule of the learning rate reaches every method, also those whose steps are not local training's."""

from __future__ import annotations

from typing import Any

import pytest

from covey.shared.strategies.base import Phase, Training
from covey.shared.strategies.client_half import Report
from covey.shared.strategies.fedavg import FedAvg
from covey.shared.strategies.fedsgd import FedSgd
from covey.shared.strategies.perfedavg import PerFedAvg
from covey.shared.strategies.reading import folded
from covey.shared.strategies.training import factor_in
from tests.bowl import Bowl, flat
from tests.shared.planted import job, run, setup

SCHEDULE = ((0.5, 0.5), (0.75, 0.2))  # of four rounds: 1, 1, 0.5, 0.1
HALF = Training(epochs=1, batch=100, lr=0.5, lr_steps=SCHEDULE)  # a step goes half of the way
LEFT = (1 - 0.5) * (1 - 0.5) * (1 - 0.25) * (1 - 0.05)  # of the way after four rounds
STEPPING = [FedAvg(), FedSgd(), PerFedAvg(alpha=0.0, beta=0.5)]


@pytest.mark.parametrize("strategy", STEPPING, ids=lambda strategy: str(strategy.name))
def test_the_rate_of_a_step_follows_the_schedule_with_every_method(strategy: Any) -> None:
    end = run(strategy, {"a": Bowl(flat(8.0, 8.0), 20)}, HALF, flat(0, 0), rounds=4)
    (model,) = strategy.clusters(end.state)
    assert 8 - model == pytest.approx([8 * LEFT] * 2)


def test_a_round_without_reports_that_count_is_one_of_the_schedule() -> None:
    begun = FedSgd().init(setup({"a": Bowl(flat(8.0, 8.0), 20)}, HALF, flat(0, 0)))
    after = folded(FedSgd(), begun, Phase(), reports=[("a", Report({"gradient": flat(1, 1)}, 0))])
    assert (after.round, after.model is begun.model) == (1, True)


def test_perfedavgs_order_names_an_outer_rate_only_if_it_differs() -> None:
    """The inner rate stays: a test adapts with it."""
    strategy = PerFedAvg(alpha=0.25, beta=0.5)
    end = run(strategy, {"a": Bowl(flat(8.0), 20)}, HALF, rounds=4)
    first, last = strategy.init(end.setup), end.state
    assert strategy.order(first, end.phases[0][0], "a").numbers == {}
    assert strategy.order(last, end.phases[0][0], "a").numbers == {"beta": pytest.approx(0.05)}
    local = Bowl(flat(8.0), 20, training=HALF)
    report, _ = strategy.work(job(flat(0.0), training=HALF, beta=0.05), local, {})
    assert report.vectors["model"] == pytest.approx([0.05 * 8 * 0.75])


@pytest.mark.parametrize("rounds", [1, 2, 3, 7, 10, 200])
def test_a_schedule_by_rounds_is_the_one_by_shares(rounds: int) -> None:
    training = Training(
        lr=0.3, lr_steps=((0.5, 0.1), (0.75, 0.1), (0.0, 0.9), (1 / 3, 2.0), (1.0, 0.5))
    )
    schedule = training.schedule(rounds)
    for round_ in range(rounds + 1):
        assert 0.3 * factor_in(schedule, round_) == training.in_round(round_, rounds).lr
    assert Training().schedule(rounds) == ()
    assert factor_in((), 3) == 1.0
