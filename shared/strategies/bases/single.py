"""The common ground of methods with one model: FedAvg's server, on which each method changes what it must."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from covey.shared.numerics.averages import MEAN, Average
from covey.shared.numerics.vectors import Vector
from covey.shared.strategies.base import (
    ClientId,
    ClientState,
    Job,
    Local,
    Order,
    Phase,
    Report,
    Reports,
    Routes,
    Setup,
    Strategy,
    View,
)


@dataclass(frozen=True)
class Single:
    """The state of a method with one model (d,)."""

    model: Vector


M = TypeVar("M", bound=Single)


def averaged(
    reports: Reports,
    otherwise: Vector,
    *,
    of: str = "model",
    uniform: bool = False,
    average: Average = MEAN,
) -> Vector:
    """Average of the reported vectors `of` that name, weighted by samples or all alike.

    A report without samples does not count; `otherwise` where none counts.
    """
    counted = [report for _, report in reports if report.examples > 0]
    pairs = [(report.vectors[of], 1.0 if uniform else float(report.examples)) for report in counted]
    return average.mean(pairs) if pairs else otherwise


class SingleModel(Strategy[M], Generic[M]):
    """One model under the key "0", one phase per round, the sample-weighted mean of what came back.

    A method writes `init` if its state holds more than the model, and overrides `work` or `fold`.
    """

    def plan(self, state: M, view: View) -> Phase:
        return Phase(sizes={"model": state.model.size})

    def order(self, state: M, phase: Phase, client: ClientId) -> Order:
        return Order(models=("0",))

    def model(self, state: M, key: str) -> Vector:
        return state.model

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        done = local.train(job.models[0])
        return Report(
            {"model": done.end}, local.examples, {}, done.steps, done.loss, {"model": 0}
        ), client_state

    def fold(self, state: M, phase: Phase, reports: Reports, average: Average = MEAN) -> M:
        return replace(state, model=averaged(reports, otherwise=state.model, average=average))

    def serve(self, state: M, client: ClientId) -> Order:
        return Order(models=("0",))

    def clusters(self, state: M) -> tuple[Vector, ...]:
        return (state.model,)


class PlainSingle(SingleModel[Single]):
    """A single-model method whose state is the model alone."""

    def init(self, setup: Setup) -> Single:
        return Single(setup.starts[0])


class AveragedOnly(PlainSingle):
    """A single-model method whose clients send what local training made, and whose round is the mean of it."""

    def private_routes(self) -> Routes:
        return "assigned"

    def check_local_privacy(self) -> None:
        """A report holds the trained model and nothing else."""
