"""SCAFFOLD: control variates take the drift of each client out of its steps.

Paper. Karimireddy et al. 2020, SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, algorithm 1 with option II
and a global step size of 1. A client adds c - c_i to each gradient. Afterwards its own variate becomes
c_i - c + (x - y_i) / (K eta_l), the mean gradient of its steps, and it sends the difference to the old one.

Our deviations.
- Means are weighted by samples, as in FedAvg; the paper has equal samples.
- The share |S| / N, by which the mean difference changes c, is the expected one: `rounds.participation`.
- With momentum, K is the sum of the weights with which gradients enter the result (FedNova's a_i).
- Buffers of batch norm are averaged and have no variates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from covey.shared.numerics.vectors import Vector, combine
from covey.shared.strategies.base import (
    MODEL,
    ClientId,
    Facts,
    Order,
    Phase,
    Reports,
    Sealed,
    Setup,
    Sums,
    Term,
    Terms,
    View,
)
from covey.shared.strategies.bases.single import KEY, Single, SingleModel, sample_term
from covey.shared.strategies.client_half import (
    ClientState,
    Drill,
    GradientCorrection,
    Job,
    Local,
    Report,
    taken,
    trained_report,
)
from covey.shared.strategies.fednova import accumulated

CONTROL = (
    "control"  # the variate c among the models, its vector in a report, and the key of its sum
)
OWN = "scaffold/control"  # client state: c_i (d,)


@dataclass(frozen=True)
class ScaffoldState(Single):
    """The model x, and what corrects it."""

    control: Vector  # c (d,), 0 in buffers
    share: float  # |S| / N


class Scaffold(SingleModel[ScaffoldState]):
    """For clients with unlike data that make many steps. It takes twice FedAvg's traffic."""

    facts: ClassVar[Facts] = Facts(sealed=Sealed(begins=slice(0, 1)), server=False)

    summary: ClassVar[str] = "FedAvg with control variates, which correct the drift of each client"
    source: ClassVar[str] = "Karimireddy et al. 2020"

    name: Literal["scaffold"] = "scaffold"

    def init(self, setup: Setup) -> ScaffoldState:
        start = setup.starts[0]
        return ScaffoldState(start, np.zeros_like(start), setup.participation)

    def plan(self, state: ScaffoldState, view: View) -> Phase:
        size = state.model.size
        return Phase(sizes={MODEL: size, CONTROL: size})

    def order(self, state: ScaffoldState, phase: Phase, client: ClientId) -> Order:
        return Order(models=(KEY, CONTROL))

    def model(self, state: ScaffoldState, key: str) -> Vector:
        return state.control if key == CONTROL else state.model

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        x, c = taken(job, 2)
        c_i = client_state.get(OWN, np.zeros_like(c))
        result = local.train(x, Drill(GradientCorrection(drift=combine([(c, 1.0), (c_i, -1.0)]))))
        report = trained_report(result, local)
        far = accumulated(result.steps, job.training) * job.training.lr
        if not far:
            return replace(
                report, vectors={**report.vectors, CONTROL: np.zeros_like(c)}
            ), client_state
        difference = combine([(x, 1 / far), (result.end, -1 / far), (c, -1.0)])
        difference[job.layout.parameters :] = 0
        own = combine([(c_i, 1.0), (difference, 1.0)])
        return replace(report, vectors={**report.vectors, CONTROL: difference}), {
            **client_state,
            OWN: own,
        }

    def terms(self, state: ScaffoldState, phase: Phase, client: ClientId, report: Report) -> Terms:
        [model] = sample_term(report)
        return (model, Term(CONTROL, model.weight, CONTROL, base=""))

    def fold(
        self, state: ScaffoldState, phase: Phase, sums: Sums, reports: Reports
    ) -> ScaffoldState:
        difference = sums.mean(CONTROL, otherwise=np.zeros_like(state.control))
        control = combine([(state.control, 1.0), (difference, state.share)])
        model = sums.mean(KEY, otherwise=state.model)
        return replace(state, model=model, control=control)
