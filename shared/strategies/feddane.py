"""FedDANE: local objectives are tilted so that their gradients at the round's model agree.

Li et al. 2019, FedDANE: A Federated Newton-Type Method, algorithm 2. A round has two phases: "gradient" collects
full local gradients h_i at w_t, "train" minimises F_i(w) + <g - h_i, w> + mu/2 ||w - w_t||^2 from w_t, where g is
the mean of the h_i. We differ from the paper in weighing by samples, and draw one set of clients for both phases by
default, as the authors' code does (theirs by reseeding); `resample` draws the second set independently, as the paper says.
The first set is the one that FedAvg draws in the same round on the same seed, so that rows of a table share their cohorts.
Weight decay has no part in the tilt: its gradient at w_t is the same for everybody.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from covey.shared.errors import DataError
from covey.shared.numerics.averages import MEAN, Average
from covey.shared.numerics.vectors import Vector, combine, dot
from covey.shared.strategies.base import (
    ClientId,
    ClientState,
    GradientCorrection,
    Job,
    Local,
    Order,
    Phase,
    Report,
    Reports,
    Setup,
    View,
)
from covey.shared.strategies.bases.single import Single, SingleModel, averaged

GRADIENT = "gradient"  # the first phase, its vector, and the key of the mean
FEDAVGS, ANOTHER = "train", "resample"  # the names under which cohorts are drawn
ANCHOR, SLOPE, ROUND = (
    "feddane/anchor",
    "feddane/slope",
    "feddane/round",
)  # what a client keeps of the first phase


@dataclass(frozen=True)
class DaneState(Single):
    """The model (d,); between the phases also the mean gradient (d,) and who contributed to it."""

    gradient: Vector | None = None
    gave: tuple[ClientId, ...] = ()


class FedDane(SingleModel[DaneState]):
    """An approximate Newton method; its authors find it behind FedAvg where few clients with unlike data take part."""

    summary: ClassVar[str] = (
        "two exchanges a round: gradients first, then training corrected by their mean"
    )
    source: ClassVar[str] = "Li et al. 2019"

    name: Literal["feddane"] = "feddane"
    mu: float = Field(0.0, ge=0, description="strength of the pull towards the round's model")
    resample: bool = Field(
        False,
        description="draw the second phase's clients independently (the paper); false: those of the first (its code)",
    )

    def init(self, setup: Setup) -> DaneState:
        return DaneState(setup.starts[0])

    def plan(self, state: DaneState, view: View) -> Phase:
        size = state.model.size
        if state.gradient is None:
            return Phase(GRADIENT, sizes={GRADIENT: size}, ends_round=False, draw=FEDAVGS)
        there = tuple(client for client in state.gave if client in view.present)
        # nobody of the first phase came back, or the phase was void: whoever is drawn computes h_i first
        same = there and not self.resample and view.attempt == 0
        draw = ANOTHER if self.resample else FEDAVGS
        return Phase(cohort=there if same else "sample", sizes={"model": size}, draw=draw)

    def order(self, state: DaneState, phase: Phase, client: ClientId) -> Order:
        if state.gradient is None:
            return Order(models=("0",))
        return Order(models=(GRADIENT,) if client in state.gave else (GRADIENT, "0"))

    def model(self, state: DaneState, key: str) -> Vector:
        if key == GRADIENT:
            assert state.gradient is not None  # noqa: S101 - no order names it before
            return state.gradient
        return state.model

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        if job.phase == GRADIENT:
            anchor, slope = job.models[0], local.gradient(job.models[0])
            # kept after training as well: a void second phase is repeated, and the server counts on it
            kept = {**client_state, ANCHOR: anchor, SLOPE: slope, ROUND: np.array([job.round])}
            return Report({GRADIENT: slope}, local.examples), kept
        anchor, slope = _known(job, local, client_state)
        tilt = combine([(job.models[0], 1.0), (slope, -1.0)])
        done = local.train(anchor, GradientCorrection(anchor, self.mu, tilt))
        bases = {"model": 1} if len(job.models) > 1 else {}
        return Report(
            {"model": done.end}, local.examples, {}, done.steps, done.loss, bases
        ), client_state

    def fold(
        self, state: DaneState, phase: Phase, reports: Reports, average: Average = MEAN
    ) -> DaneState:
        if phase.name == GRADIENT:
            slope = averaged(
                reports, otherwise=np.zeros_like(state.model), of=GRADIENT, average=average
            )
            return replace(state, gradient=slope, gave=tuple(client for client, _ in reports))
        return DaneState(averaged(reports, otherwise=state.model, average=average))

    def base(
        self, state: DaneState, phase: Phase, client: ClientId, report: Report, name: str
    ) -> str | None:
        return "" if name == GRADIENT else "0"

    def notes(self, state: DaneState) -> dict[str, Any]:
        """The norm of the mean gradient, after the first phase."""
        return (
            {}
            if state.gradient is None
            else {"gradient_norm": math.sqrt(dot(state.gradient, state.gradient))}
        )


def _known(job: Job, local: Local, client_state: ClientState) -> tuple[Vector, Vector]:
    """w_t and h_i: sent and computed now, or as kept since the round's first phase."""
    if len(job.models) > 1:
        return job.models[1], local.gradient(job.models[1])
    if ROUND not in client_state or int(client_state[ROUND][0]) != job.round:
        raise DataError(
            f"agent {job.client} sent its gradient in round {job.round} but has it no more: was its folder deleted?"
        )
    return client_state[ANCHOR], client_state[SLOPE]
