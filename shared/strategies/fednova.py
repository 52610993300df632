"""FedNova: updates are divided by the work that went into them before they are averaged.

Wang et al. 2020, Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, equation 12.
We differ from the authors' code in three ways. Reports carry the model and the server forms d_i = (w_t - w_i) / a_i,
so that equal work is FedAvg to the bit that the wire allows. Our pull bends the gradient before momentum, and a_i is
counted for just that, so momentum and pull together are exact and no heuristic. Buffers are averaged, never divided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from covey.shared.numerics.averages import MEAN, Average, lower_median
from covey.shared.numerics.vectors import Vector, combine
from covey.shared.strategies.base import (
    LARGEST,
    ClientState,
    Expected,
    GradientCorrection,
    Job,
    Local,
    Phase,
    Report,
    Reports,
    Setup,
    Training,
    View,
)
from covey.shared.strategies.bases.single import Single, SingleModel

WORK = "a"  # a_i in a report's numbers
FAR = 1e4  # an a_i is within this factor of the steps: a momentum of 0.999 makes it a thousand times as much
ROUNDING = 1e-6  # of an a_i that was summed in floating point
SLACK = 0.1  # with a pull, an a_i below this share of what the others' says is no honest one


@dataclass(frozen=True)
class NovaState(Single):
    """The model (d,), how many of its values are parameters, the server's velocity (P,), if it has any, and the
    momentum of the clients' optimiser."""

    parameters: int
    velocity: Vector | None
    momentum: float = 0.0


class Share(NamedTuple):
    """One report as the server counts it: w_i, n_i, a_i, tau_i."""

    model: Vector
    examples: int
    work: float
    steps: int


def accumulated(steps: int, training: Training, mu: float = 0.0) -> float:
    """a_i, the sum of the weights with which a client's gradients entered its update, in steps of size lr.

    The local optimiser's own recursion with every gradient at 1: tau_i for plain SGD, and the closed forms of
    the paper for momentum alone and for the pull alone.
    """
    velocity = way = 0.0
    for _ in range(steps):
        velocity = training.momentum * velocity + 1.0 - training.lr * mu * way
        way += velocity
    return way


class FedNova(SingleModel[NovaState]):
    """For clients that do unequal numbers of steps; with equal work and mu = 0 it is FedAvg."""

    summary: ClassVar[str] = "FedAvg that counts a client's direction, not how far it went"
    source: ClassVar[str] = "Wang et al. 2020"

    name: Literal["fednova"] = "fednova"
    mu: float = Field(
        0.0, ge=0, description="strength of the pull towards the round's model, as in FedProx"
    )
    server_momentum: float = Field(
        0.0, ge=0, lt=1, description="gamma, momentum of the server's step; 0: none"
    )

    def init(self, setup: Setup) -> NovaState:
        parameters = setup.layout.parameters
        at_rest = np.zeros(parameters, np.float32) if self.server_momentum else None
        return NovaState(setup.starts[0], parameters, at_rest, setup.training.momentum)

    def plan(self, state: NovaState, view: View) -> Phase:
        return replace(super().plan(state, view), numbers={WORK: Expected(most=LARGEST)})

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        done = local.train(job.models[0], GradientCorrection(job.models[0], self.mu))
        numbers = {WORK: accumulated(done.steps, job.training, self.mu)}
        return Report(
            {"model": done.end}, local.examples, numbers, done.steps, done.loss, {"model": 0}
        ), client_state

    def fold(
        self, state: NovaState, phase: Phase, reports: Reports, average: Average = MEAN
    ) -> NovaState:
        shares = self._plausible(
            state, [share for _, report in reports if (share := _share(report)) is not None]
        )
        if not shares:
            return state
        p = state.parameters
        moved, velocity = self._step(state, shares, average)
        buffers = average.mean([(share.model[p:], float(share.examples)) for share in shares])
        return replace(state, model=np.concatenate([moved, buffers]), velocity=velocity)

    def _plausible(self, state: NovaState, shares: Sequence[Share]) -> list[Share]:
        """The reports whose a_i honest training can have: who understates it multiplies its own weight.

        Momentum only adds: a_i lies between the steps and the steps / (1 - momentum). A pull takes away: then a_i is
        held against the cohort's median, at as many steps as the report claims.
        """
        most = (1 + ROUNDING) / (1 - state.momentum)
        if not self.mu:
            return [
                share
                for share in shares
                if share.steps * (1 - ROUNDING) <= share.work <= share.steps * most
            ]
        if not shares:
            return []
        work = lower_median([share.work for share in shares])
        steps = lower_median([float(share.steps) for share in shares])
        kept: list[Share] = []
        for share in shares:
            least = SLACK * work * min(1.0, share.steps / steps)
            if least <= share.work <= share.steps * most:
                kept.append(share)
        return kept

    def _step(
        self, state: NovaState, shares: Sequence[Share], average: Average
    ) -> tuple[Vector, Vector | None]:
        """The parameters (P,) after the round, and the velocity that took them there."""
        p, n = state.parameters, math.fsum(share.examples for share in shares)
        # tau_eff leaves the pull out, or it would shrink with mu, but keeps the momentum that a_i contains
        plain = Training(momentum=state.momentum)
        far = [accumulated(share.steps, plain) if self.mu else share.work for share in shares]
        tau = math.fsum(share.examples / n * each for share, each in zip(shares, far, strict=True))
        weights = [tau * share.examples / n / share.work for share in shares]
        ends = [(share.model[:p], weight) for share, weight in zip(shares, weights, strict=True)]
        here = state.model[:p]
        moved = average.combine([(here, 1.0 - math.fsum(weights))], ends)
        if state.velocity is None:
            return moved, None
        velocity = combine([(state.velocity, self.server_momentum), (here, 1.0), (moved, -1.0)])
        return combine([(here, 1.0), (velocity, -1.0)]), velocity


def _share(report: Report) -> Share | None:
    """None for a report without samples, steps, or an a_i that steps can add up to."""
    work = report.numbers.get(WORK)
    if not isinstance(work, int | float) or report.examples <= 0 or report.steps <= 0:
        return None
    if not report.steps / FAR <= work <= report.steps * FAR:
        return None
    return Share(report.vectors["model"], report.examples, float(work), report.steps)
