"""A hypothesis that diverged never wins, and stops nobody: in every method in which clients compare losses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from covey.shared.numerics.vectors import Vector
from covey.shared.strategies.bases.hard import lowest_loss
from covey.shared.strategies.bases.losses import LARGEST_LOSS, comparable, lowest
from covey.shared.strategies.fedem import FedEm
from covey.shared.strategies.fedsoft import FedSoft
from covey.shared.strategies.ifca import Ifca
from covey.shared.wire.messages import ReportContent
from tests.bowl import Bowl, flat
from tests.shared.planted import job

DIVERGED = flat(1e30)  # finite, so that it travels; what a network computes from it is not
GOOD = flat(3.0)


@dataclass(frozen=True)
class Network(Bowl):
    """A bowl whose loss far away is no number, as that of a network whose activations overflow."""

    def losses(self, model: Vector) -> npt.NDArray[np.float32]:
        if np.abs(model).max() > 1e20:
            return np.full(self.examples, math.nan, np.float32)
        return super().losses(model)


CLIENT = Network(flat(4.0), 10)


@pytest.mark.parametrize("diverged", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_never_is_the_lowest(diverged: float) -> None:
    assert lowest([diverged, 5.0]) == 1
    assert lowest([5.0, diverged]) == 0


def test_equal_losses_go_to_the_first() -> None:
    assert lowest([2.0, 1.0, 1.0]) == 1
    assert lowest([math.nan, math.inf]) == 0


def test_losses_that_are_finite_stay_as_they_are() -> None:
    losses = np.array([[0.1, 2.0], [math.nan, math.inf]], np.float32)
    assert comparable(losses).tolist() == [
        losses[0].astype(float).tolist(),
        [LARGEST_LOSS, LARGEST_LOSS],
    ]


def test_a_newcomer_does_not_join_a_cluster_whose_model_diverged() -> None:
    assert lowest_loss([DIVERGED, GOOD], CLIENT) == 1


def test_ifca_trains_the_hypothesis_that_did_not_diverge_and_its_report_can_travel() -> None:
    report, _ = Ifca(n_clusters=2).work(job(DIVERGED, GOOD), CLIENT, {})
    assert report.numbers["choice"] == 1
    assert report.numbers["losses"][0] == LARGEST_LOSS
    assert _travels(report.numbers) == report.numbers


def test_fedsoft_gives_all_samples_to_the_cluster_that_did_not_diverge() -> None:
    strategy = FedSoft(n_clusters=2)
    report, _ = strategy.work(job(DIVERGED, GOOD, phase="estimate"), CLIENT, {})
    assert report.numbers["importance"] == [1e-4, 1.0]


def test_fedem_leaves_a_component_that_diverged_alone_and_trains_the_others() -> None:
    report, client_state = FedEm(n_clusters=2, share_memberships=True).work(
        job(DIVERGED, GOOD), CLIENT, {}
    )
    assert report.numbers["pi"] == [0.0, 1.0]
    assert report.vectors["component-0"] == pytest.approx(DIVERGED)
    assert GOOD[0] < report.vectors["component-1"][0] <= 4.0
    assert math.isfinite(report.loss)
    assert client_state["pi"].tolist() == [0.0, 1.0]


def _travels(numbers: Any) -> Any:
    """The numbers as a coordinator reads them."""
    sent = ReportContent(
        run="r",
        step=1,
        work=bytes(16),
        client="a",
        examples=1,
        steps=1,
        loss=0.0,
        numbers=numbers,
        seconds=0.0,
        vectors={},
    )
    return ReportContent.from_bytes(sent.to_bytes(), verified=True).numbers
