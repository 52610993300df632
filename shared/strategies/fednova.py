"""FedNova: updates are divided by the work that went into them before they are averaged.

Paper. Wang et al. 2020, Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization, equation 12: w_(t+1) = w_t - tau_eff * sum_i p_i d_i with d_i = (w_t - w_i) / a_i.

Our deviations, from the authors' code.
- Reports carry the model w_i and the server forms d_i, so equal work gives the bytes of FedAvg.
- The proximal term is added to the gradient before momentum, and a_i is counted for just that.
  Momentum and proximal term together are therefore exact and not a heuristic.
- Buffers are averaged, never divided.
- Reports with an a_i that honest training cannot have are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from covey.shared.numerics.averages import MEAN, Average, fair_weights, lower_median
from covey.shared.numerics.vectors import Vector, combine
from covey.shared.strategies.base import (
    LARGEST,
    MODEL,
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
    trained_report,
)
from covey.shared.strategies.bases.single import Single, SingleModel

WORK = "a"  # a_i in a report's numbers
# a_i is within this factor of the steps: a momentum of 0.999 makes it a thousand times as large
MAX_FACTOR = 1e4
ROUNDING = 1e-6  # of an a_i that was summed in floating point
SLACK = 0.1  # with a proximal term, a_i must reach this share of what others' reports suggest


@dataclass(frozen=True)
class NovaState(Single):
    """The model and the server's momentum."""

    parameters: int  # P
    velocity: Vector | None  # (P,), of the server's step; None without server momentum
    momentum: float = 0.0  # of the clients' optimiser


class Share(NamedTuple):
    """One report as the server counts it."""

    model: Vector  # w_i (d,)
    examples: float  # n_i, without what is more than a fair share
    work: float  # a_i
    steps: int  # tau_i


def accumulated(steps: int, training: Training, mu: float = 0.0) -> float:
    """a_i: the sum of the weights with which a client's gradients enter its update.

    This is the recursion of the local optimiser with every gradient at 1, in units of lr. It gives
    tau_i for plain SGD, and the closed forms of the paper for momentum alone and for the proximal
    term alone.

    Args:
        steps: tau_i.
        training: momentum and learning rate.
        mu: strength of the proximal term.
    """
    velocity = 0.0
    way = 0.0
    for _ in range(steps):
        velocity = training.momentum * velocity + 1.0 - training.lr * mu * way
        way += velocity
    return way


class FedNova(SingleModel[NovaState]):
    """For clients with unequal numbers of steps. With equal work and mu = 0 it is FedAvg."""

    summary: ClassVar[str] = "FedAvg that counts a client's direction, not how far it went"
    source: ClassVar[str] = "Wang et al. 2020"

    name: Literal["fednova"] = "fednova"
    mu: float = Field(
        0.0,
        ge=0,
        description="The strength of the proximal term, which pulls a client's model towards the "
        "round's model, as in FedProx.",
    )
    server_momentum: float = Field(
        0.0, ge=0, lt=1, description="gamma: the momentum of the server's step; 0: none."
    )

    def init(self, setup: Setup) -> NovaState:
        start = setup.starts[0]
        parameters = setup.layout.parameters
        momentum = setup.training.momentum
        at_rest: Vector | None = None
        if self.server_momentum:
            at_rest = np.zeros(parameters, np.float32)
        return NovaState(start, parameters, at_rest, momentum)

    def plan(self, state: NovaState, view: View) -> Phase:
        phase = super().plan(state, view)
        work = Expected(most=LARGEST)
        return replace(phase, numbers={WORK: work})

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        w_t = job.models[0]
        result = local.train(w_t, GradientCorrection(w_t, self.mu))
        a_i = accumulated(result.steps, job.training, self.mu)
        return trained_report(result, local, {WORK: a_i}), client_state

    def fold(
        self, state: NovaState, phase: Phase, reports: Reports, average: Average = MEAN
    ) -> NovaState:
        claimed: list[Share] = []
        for _, report in reports:
            share = _share(report)
            if share is not None:
                claimed.append(share)
        shares = self._plausible(state, claimed)
        if not shares:
            return state
        fair = fair_weights([share.examples for share in shares], average.share)
        shares = [share._replace(examples=fair[i]) for i, share in enumerate(shares)]
        parameters, velocity = self._step(state, shares, average)
        p = state.parameters
        reported: list[tuple[Vector, float]] = []
        for share in shares:
            reported.append((share.model[p:], share.examples))
        buffers = average.mean(reported)
        return replace(state, model=np.concatenate([parameters, buffers]), velocity=velocity)

    def _plausible(self, state: NovaState, shares: Sequence[Share]) -> list[Share]:
        """The reports whose a_i honest training can have: a small a_i gives a report more weight.

        Momentum only adds: a_i is between the steps and the steps / (1 - momentum). A proximal term
        takes away: then a_i is compared with the cohort's median, at as many steps as the report
        claims.
        """
        if not shares:
            return []
        most = (1 + ROUNDING) / (1 - state.momentum)
        work = lower_median([share.work for share in shares])
        steps = lower_median([float(share.steps) for share in shares])
        kept: list[Share] = []
        for share in shares:
            if self.mu:
                least = SLACK * work * min(1.0, share.steps / steps)
            else:
                least = share.steps * (1 - ROUNDING)
            if least <= share.work <= share.steps * most:
                kept.append(share)
        return kept

    def _step(
        self, state: NovaState, shares: Sequence[Share], average: Average
    ) -> tuple[Vector, Vector | None]:
        """The parameters (P,) after the round, and the velocity (P,) of the server."""
        p = state.parameters
        n = math.fsum(share.examples for share in shares)
        tau_eff = math.fsum(share.examples / n * self._far(state, share) for share in shares)
        weights: list[float] = []
        ends: list[tuple[Vector, float]] = []
        for share in shares:
            weight = tau_eff * share.examples / n / share.work  # tau_eff * p_i / a_i
            end = share.model[:p]
            weights.append(weight)
            ends.append((end, weight))
        w_t = state.model[:p]
        left = 1.0 - math.fsum(weights)
        moved = average.combine([(w_t, left)], ends)
        if state.velocity is None:
            return moved, None
        before = (state.velocity, self.server_momentum)
        step = [(w_t, 1.0), (moved, -1.0)]
        velocity = combine([before, *step])
        parameters = combine([(w_t, 1.0), (velocity, -1.0)])
        return parameters, velocity

    def _far(self, state: NovaState, share: Share) -> float:
        """What a report adds to tau_eff: a_i without the proximal term, but with momentum.

        With it tau_eff would shrink as mu grows.
        """
        if not self.mu:
            return share.work
        return accumulated(share.steps, Training(momentum=state.momentum))


def _share(report: Report) -> Share | None:
    """None for a report without samples, without steps, or with an impossible a_i."""
    work = report.numbers.get(WORK)
    if not isinstance(work, int | float) or report.examples <= 0 or report.steps <= 0:
        return None
    least = report.steps / MAX_FACTOR
    most = report.steps * MAX_FACTOR
    if not least <= work <= most:
        return None
    return Share(report.vectors[MODEL], report.examples, float(work), report.steps)
