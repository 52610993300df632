"""Per-FedAvg on clients whose answers are known by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from covey.shared.numerics.vectors import Vector
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import SampleIndices
from covey.shared.strategies.perfedavg import PerFedAvg, groups
from tests.bowl import Bowl, bowl_layout, flat
from tests.shared.planted import SGD, job, run, unequal


def test_perfedavg_takes_the_outer_step_with_the_gradient_after_the_inner_one() -> None:
    """A bowl at 8: the inner step goes alpha of the way, the gradient there is -8 (1 - alpha)."""
    local = {"a": Bowl(flat(8.0), 20)}
    end = run(PerFedAvg(alpha=0.25, beta=0.5), local, Training(batch=10, lr=9.0), rounds=1)
    assert end.state.model == pytest.approx([0.5 * 8 * 0.75])


def test_perfedavg_hessian_free_is_the_exact_gradient_of_the_adapted_loss_on_a_bowl() -> None:
    """f(w - alpha f'(w)) = c/2 (1 - alpha c)^2 (w - m)^2: its slope at 0 is -m c (1 - alpha c)^2."""
    local = {"a": Bowl(flat(8.0), 30, curvature=2.0)}
    end = run(
        PerFedAvg(variant="hf", alpha=0.25, beta=0.1, delta=0.01),
        local,
        Training(batch=10),
        rounds=1,
    )
    assert end.state.model == pytest.approx([0.1 * 8 * 2 * 0.5**2], rel=1e-3)


@pytest.mark.parametrize(("variant", "steps"), [("fo", 2 * 2), ("hf", 2 * 1)])
def test_perfedavg_uses_each_batch_once_and_drops_an_incomplete_group(
    variant: Any, steps: int
) -> None:
    training = Training(epochs=2, batch=10)
    local = Bowl(flat(8.0), 45, training=training)  # five batches: two pairs, one triple
    report, _ = PerFedAvg(variant=variant).work(
        job(flat(0.0), training=training, layout=bowl_layout(1)), local, {}
    )
    assert report.steps == steps


def test_perfedavg_splits_a_single_batch() -> None:
    rows = np.arange(5)
    assert [[part.tolist() for part in group] for group in groups([rows], 2)] == [
        [[0, 1, 2], [3, 4]]
    ]
    assert [[part.tolist() for part in group] for group in groups([np.array([7])], 3)] == [
        [[7], [7], [7]]
    ]
    split = [part.tolist() for part in groups([rows, np.array([8])], 3)[0]]
    assert split == [[0, 1], [2, 3], [4, 8]]


def test_perfedavg_is_evaluated_after_adaptation_on_training_data() -> None:
    local = Bowl(flat(8.0), 20, training=Training(epochs=5, batch=10))
    the_job = job(flat(0.0), training=local.training, layout=bowl_layout(1))

    ((weight, model),) = PerFedAvg(alpha=0.5).personal(the_job, local, {})
    assert weight == 1.0
    assert model == pytest.approx([4.0])  # one step on one batch


def test_perfedavg_adaptation_lowers_the_loss_of_clients_with_unlike_data() -> None:
    end = run(PerFedAvg(alpha=0.6, beta=0.1), unequal(), SGD, rounds=5)
    for client, local in end.locals.items():
        assert local.loss(end.personal(client)[0][1]) < 0.8 * local.loss(end.state.model)


@dataclass(frozen=True)
class Watched(Bowl):
    """A bowl that notes which samples each gradient was taken over."""

    asked: list[list[int]] = field(default_factory=list)

    def gradient(
        self, model: Vector, *, batch: int | None = None, rows: SampleIndices | None = None
    ) -> Vector:
        assert rows is not None
        self.asked.append(sorted(rows.tolist()))
        return super().gradient(model, batch=batch, rows=rows)


def test_perfedavg_hessian_free_takes_the_difference_of_gradients_over_a_third_batch() -> None:
    local = Watched(flat(8.0), 30, training=Training(batch=10))
    PerFedAvg(variant="hf").work(
        job(flat(0.0), training=local.training, layout=bowl_layout(1)), local, {}
    )
    inner, outer, ahead, behind = local.asked
    assert ahead == behind
    assert sorted([*inner, *outer, *ahead]) == list(range(30))
