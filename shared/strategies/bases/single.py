"""What methods with one model share: FedAvg's server, on which each method changes what it must."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Generic, TypeVar

from covey.shared.numerics.averages import MEAN, Average
from covey.shared.numerics.vectors import Vector
from covey.shared.strategies.base import (
    GRADIENT,
    MODEL,
    Buffering,
    ClientId,
    Facts,
    Moving,
    Order,
    Phase,
    PrivacyFacet,
    Reports,
    Sealed,
    Setup,
    Strategy,
    Sums,
    Term,
    Terms,
    Trainings,
    View,
)
from covey.shared.strategies.client_half import ClientState, Job, Local, Report, trained_report

KEY = "0"  # of the only model


@dataclass(frozen=True)
class Single(Moving):
    """The state of a method with one model."""

    model: Vector  # w_t (d,)


M = TypeVar("M", bound=Single)


def averaged(
    reports: Reports,
    otherwise: Vector,
    *,
    of: str = MODEL,
    uniform: bool = False,
    average: Average = MEAN,
) -> Vector:
    """The average of one vector of each report.

    Args:
        reports: those that count; a report without samples does not.
        otherwise: the result where none counts.
        of: the name of the vector.
        uniform: True: all count alike; False: each counts by its samples n_i.
        average: the rule that makes the average.
    """
    pairs = []
    for _, report in reports:
        weight = counted(report, uniform=uniform)
        if weight > 0:
            pairs.append((report.vectors[of], weight))
    return average.mean(pairs) if pairs else otherwise


def sample_term(report: Report, key: str = KEY, of: str = MODEL, *, uniform: bool = False) -> Terms:
    """The term of a report in one weighted mean. A report without samples has no weight.

    Args:
        report: what counts.
        key: of the mean.
        of: the name of the vector.
        uniform: True: all count alike; False: each counts by its samples n_i.
    """
    return (Term(key, counted(report, uniform=uniform), of, base="" if of == GRADIENT else None),)


def counted(report: Report, *, uniform: bool = False) -> float:
    """What a report weighs: its samples n_i, or 1 as every report with samples."""
    if report.examples <= 0:
        return 0.0
    return 1.0 if uniform else float(report.examples)


def samples_of(reports: Reports) -> dict[ClientId, int]:
    """The number of samples n_i that each client reports."""
    return {client: report.examples for client, report in reports}


def vectors_of(reports: Reports, name: str = MODEL) -> dict[ClientId, Vector]:
    """The vector of this name that each client reports."""
    return {client: report.vectors[name] for client, report in reports}


class SingleModel(Strategy[M], Generic[M]):
    """One model under the key "0", one phase per round, the sample-weighted mean of the reports.

    A method writes `init`, and overrides `work`, or `terms` and `fold`. `PlainSingle` has an `init`, of a state that is the model alone.
    """

    def continued(self, state: M, fresh: M) -> M:
        return replace(fresh, model=state.model)

    def plan(self, state: M, view: View) -> Phase:
        return Phase(sizes={MODEL: state.model.size})

    def order(self, state: M, phase: Phase, client: ClientId) -> Order:
        return Order(models=(KEY,))

    def model(self, state: M, key: str) -> Vector:
        return state.model

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        return trained_report(local.train(job.models[0]), local), client_state

    def terms(self, state: M, phase: Phase, client: ClientId, report: Report) -> Terms:
        return sample_term(report)

    def fold(self, state: M, phase: Phase, sums: Sums, reports: Reports) -> M:
        return replace(state, model=sums.mean(KEY, otherwise=state.model))

    def serve(self, state: M, client: ClientId) -> Order:
        return Order(models=(KEY,))

    def clusters(self, state: M) -> tuple[Vector, ...]:
        return (state.model,)


class PlainSingle(SingleModel[Single]):
    """A single-model method whose state is the model alone."""

    def init(self, setup: Setup) -> Single:
        return Single(setup.starts[0])


class AveragedOnly(PlainSingle):
    """A single-model method whose clients send the trained model and whose round is their mean."""

    facts: ClassVar[Facts] = Facts(sealed=Sealed())

    @property
    def buffer(self) -> Buffering:
        return Buffering()

    @property
    def privacy(self) -> PrivacyFacet:
        return PrivacyFacet(Trainings(), "assigned")
