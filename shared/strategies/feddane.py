"""FedDANE: local objectives are tilted so that their gradients at the round's model agree.

Paper. Li et al. 2019, FedDANE: A Federated Newton-Type Method, algorithm 2. A round has two phases.
"gradient" collects full local gradients h_i at w_t, whose mean is g. "train" minimises
F_i(w) + <g - h_i, w> + mu/2 ||w - w_t||^2, starting from w_t.

Our deviations.
- Means are weighted by samples.
- One set of clients takes part in both phases, as in the authors' code (there by seeding again). The
  paper draws the second set independently.
- The first set is the one that FedAvg draws in the same round on the same seed, so that the rows of
  a table share their cohorts.
- Weight decay is not tilted: its gradient at w_t is the same for all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from covey.shared.errors import DataError
from covey.shared.numerics.vectors import Vector, combine, dot
from covey.shared.strategies.base import (
    GRADIENT,
    MODEL,
    TRAIN,
    ClientId,
    Facts,
    Order,
    Phase,
    Reports,
    Sealed,
    Setup,
    Shown,
    Sums,
    Terms,
    View,
    without,
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

# GRADIENT names the first phase, its vector, and the key of the mean gradient g.
FEDAVG_DRAW = TRAIN  # the name under which FedAvg draws its cohorts

# client state: what a client keeps of the first phase
ANCHOR = "feddane/anchor"  # w_t (d,)
SLOPE = "feddane/slope"  # h_i (d,)
ROUND = "feddane/round"  # (1,)


@dataclass(frozen=True)
class DaneState(Single):
    """The model w_t, and what is known between the two phases."""

    gradient: Vector | None = None  # g (d,); None before the first phase of a round
    gave: tuple[ClientId, ...] = ()  # clients whose gradient is in g


class FedDane(SingleModel[DaneState]):
    """An approximate Newton method.

    Its authors find it worse than FedAvg if few clients with unlike data take part.
    """

    facts: ClassVar[Facts] = Facts(
        sealed=Sealed(apart=(GRADIENT,), begins=slice(-1, None)), server=False
    )

    summary: ClassVar[str] = (
        "two exchanges a round: gradients first, then training corrected by their mean"
    )
    source: ClassVar[str] = "Li et al. 2019"

    name: Literal["feddane"] = "feddane"
    mu: float = Field(
        0.0,
        ge=0,
        description="The strength of the proximal term, which pulls a client's model towards the "
        "round's model.",
    )

    def init(self, setup: Setup) -> DaneState:
        return DaneState(setup.starts[0])

    def plan(self, state: DaneState, view: View) -> Phase:
        size = state.model.size
        if state.gradient is None:
            return Phase(GRADIENT, sizes={GRADIENT: size}, ends_round=False, draw=FEDAVG_DRAW)
        sizes = {MODEL: size}
        known = tuple(client for client in state.gave if client in view.present)
        if known and view.attempt == 0:
            return Phase(cohort=known, sizes=sizes, draw=FEDAVG_DRAW)
        # no client of the first phase is left: the clients that are drawn now compute h_i first
        return Phase(sizes=sizes, draw=FEDAVG_DRAW)

    def order(self, state: DaneState, phase: Phase, client: ClientId) -> Order:
        if state.gradient is None:
            return Order(models=(KEY,))
        if client in state.gave:
            return Order(models=(GRADIENT,))
        return Order(models=(GRADIENT, KEY))

    def model(self, state: DaneState, key: str) -> Vector:
        if key == GRADIENT:
            assert state.gradient is not None  # noqa: S101 - an order names it only after phase 1
            return state.gradient
        return state.model

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        if job.phase == GRADIENT:
            (w_t,) = taken(job, 1)
            h_i = local.gradient(w_t)
            # kept after training too: the second phase may be repeated, and the server relies on it
            kept = {ANCHOR: w_t, SLOPE: h_i, ROUND: np.array([job.round])}
            return Report({GRADIENT: h_i}, local.examples), {**client_state, **kept}
        w_t, h_i = _of_first_phase(job, local, client_state)
        g = job.models[0]
        tilt = combine([(g, 1.0), (h_i, -1.0)])
        result = local.train(w_t, Drill(GradientCorrection(w_t, self.mu, tilt)))
        base = 1 if len(job.models) > 1 else None
        return trained_report(result, local, base=base), client_state

    def terms(self, state: DaneState, phase: Phase, client: ClientId, report: Report) -> Terms:
        if phase.name == GRADIENT:
            return sample_term(report, of=GRADIENT)
        return sample_term(report)

    def fold(self, state: DaneState, phase: Phase, sums: Sums, reports: Reports) -> DaneState:
        if phase.name == GRADIENT:
            g = sums.mean(KEY, otherwise=np.zeros_like(state.model))
            return replace(state, gradient=g, gave=tuple(client for client, _ in reports))
        return DaneState(sums.mean(KEY, otherwise=state.model))

    def shown(self, state: DaneState) -> Shown:
        """The norm of the mean gradient, after the first phase."""
        if state.gradient is None:
            return Shown()
        return Shown({"gradient_norm": math.sqrt(dot(state.gradient, state.gradient))})

    def forget(self, state: DaneState, client: ClientId) -> DaneState:
        return replace(state, gave=without(state.gave, client))


def _of_first_phase(job: Job, local: Local, client_state: ClientState) -> tuple[Vector, Vector]:
    """w_t and h_i: sent and computed now, or kept since the first phase of the round."""
    if len(job.models) > 1:
        _, w_t = taken(job, 2)
        return w_t, local.gradient(w_t)
    if ROUND not in client_state or int(client_state[ROUND][0]) != job.round:
        raise DataError(
            f"agent {job.client} sent its gradient in round {job.round} but does not have it any "
            "more: was its folder deleted?"
        )
    return client_state[ANCHOR], client_state[SLOPE]
