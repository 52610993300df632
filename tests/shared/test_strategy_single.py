"""FedAvg, FedProx, FedSGD and Local; pulls and buffers. What becomes FedAvg: conformance/test_reductions.py."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from covey.shared.errors import DataError
from covey.shared.numerics.vectors import Layout, Tensor
from covey.shared.seeds import generator
from covey.shared.strategies.base import Phase, Training
from covey.shared.strategies.client_half import Report
from covey.shared.strategies.fedavg import FedAvg
from covey.shared.strategies.fedprox import FedProx
from covey.shared.strategies.fedsgd import FedSgd
from covey.shared.strategies.fesem import Fesem
from covey.shared.strategies.ifca import Ifca
from covey.shared.strategies.local import LocalOnly
from covey.shared.strategies.reading import folded
from covey.shared.strategies.robust import Robust
from tests.bowl import Bowl, flat
from tests.drive import Run
from tests.shared.planted import ONE, bowls, job, run, setup, softmaxes, trained, two_groups


def test_fedavg_weighs_models_by_samples() -> None:
    locals_ = {"a": Bowl(flat(0, 4), 10), "b": Bowl(flat(8, 0), 30)}
    training = Training(epochs=1, batch=100, lr=0.5)
    assert run(FedAvg(), locals_, training, rounds=1).state.model == pytest.approx([3.0, 0.5])


def test_fedavg_without_any_sample_keeps_its_model() -> None:
    strategy = FedAvg()
    state = strategy.init(setup(bowls((1, 1))))
    empty = Report({"model": flat(9, 9)}, 0)
    assert folded(strategy, state, Phase(), reports=[("a", empty)]).model.tolist() == [0, 0]
    assert folded(strategy, state, Phase(), reports=[]).model.tolist() == [0, 0]


def test_fedprox_pull_bites_after_the_first_step() -> None:
    two = Training(epochs=2, batch=10, lr=0.5)
    local, start = Bowl(flat(8, 8)), flat(0, 0)
    first = trained(FedProx(mu=0.5), job(start, training=ONE), local)
    assert first == pytest.approx([4, 4])  # at the anchor the pull is nothing
    # second step: gradient (4 - 8) + 0.5 * (4 - 0) = -2, times 0.5
    assert trained(FedProx(mu=0.5), job(start, training=two), local) == pytest.approx([5, 5])
    assert trained(FedAvg(), job(start, training=two), local) == pytest.approx([6, 6])


def test_fedprox_ends_between_the_minimum_and_the_anchor() -> None:
    long = Training(epochs=200, batch=10, lr=0.1)
    end = trained(FedProx(mu=3.0), job(flat(4, 0), training=long), Bowl(flat(8, 8), curvature=1.0))
    assert end == pytest.approx([(8 + 3 * 4) / 4, 8 / 4], rel=1e-5)


def test_fedsgd_takes_the_weighted_gradient_step_on_the_server() -> None:
    locals_ = {"a": Bowl(flat(0, 4), 10), "b": Bowl(flat(8, 0), 30, curvature=2.0)}
    # gradients at 0: (0, -4) and (-16, 0); weights 1/4 and 3/4; step 0.1
    state = run(FedSgd(), locals_, Training(lr=0.1, epochs=9), rounds=1).state
    assert state.model == pytest.approx([0.1 * 12, 0.1 * 1])


def test_fedsgd_with_a_batch_uses_that_number_of_samples() -> None:
    locals_ = softmaxes(more=0)
    full, small, again = (
        run(FedSgd(batch=b), locals_, rounds=2).state.model for b in ("full", 5, 5)
    )
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
        assert model is end.client_states[client]["held"]
    assert end.strategy.clusters(end.state) == ()


def test_local_takes_in_latecomers_and_those_who_were_cut_off() -> None:
    strategy = LocalOnly(epochs=3)
    end = run(
        strategy,
        two_groups(each=2),
        rounds=4,
        joins={"c03": 2},
        drop=lambda phase, round_, client: client == "c01" and round_ == 0,
    )
    assert [reporters for _, reporters in end.phases] == [("c00", "c02"), ("c01",), ("c03",), ()]
    assert end.personal("c00")[0][1] == pytest.approx(end.locals["c00"].minimum * (1 - 0.5**3))  # type: ignore[attr-defined]
    assert end.personal("c03")[0][1] == pytest.approx(end.locals["c03"].minimum * (1 - 0.5**3))  # type: ignore[attr-defined]


def test_local_serves_the_start_before_training_and_reports_a_missing_model() -> None:
    locals_ = two_groups(each=1)
    end = Run(LocalOnly(), setup(locals_), locals_)
    assert end.personal("c00")[0][1].tolist() == [0, 0]
    end.rounds(1)
    end.client_states.clear()
    with pytest.raises(DataError, match="c00 has trained in this run but its model is missing"):
        end.personal("c00")


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
    state = folded(strategy, state, Phase("warmup", tuple(rows), ends_round=False), reports=reports)
    assert state.assign == {"a": 0, "b": 0, "c": 1, "d": 1}
    assert state.models[0] == pytest.approx([1.05, 0])


@pytest.mark.parametrize(
    "strategy",
    [FedSgd(), Robust(averaging="gradient"), Ifca(n_clusters=1, averaging="gradient")],
    ids=lambda s: s.name,
)
def test_a_gradient_that_is_sent_up_has_the_decay_of_the_parameters_and_of_no_buffer(
    strategy: Any,
) -> None:
    layout = Layout((Tensor("out.weight", (2,)), Tensor("norm.mean", (1,))), 1)
    decaying = Training(weight_decay=0.5)
    local = Bowl(flat(0, 1, 4), training=decaying)
    report, _ = strategy.work(job(flat(2, 3, 4), training=decaying, layout=layout), local, {})
    assert report.vectors["gradient"] == pytest.approx([2 + 1, 2 + 1.5, 0])
