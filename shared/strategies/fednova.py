"""FedNova: updates are divided by the work that went into them before they are averaged.

Paper. Wang et al. 2020, Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization, equation 12: w_(t+1) = w_t - tau_eff * sum_i p_i d_i with d_i = (w_t - w_i) / a_i.

Our deviations, from the authors' code.
- Reports carry the model w_i and the server forms d_i, so equal work gives the bytes of FedAvg.
- The proximal term is added to the gradient before momentum, and a_i is counted for just that.
  Momentum and proximal term together are therefore exact and not a heuristic.
- Buffers are averaged, never divided.
- Reports with an a_i that honest training cannot have are left out.

The parameters' sum weighs a model with n_i / a_i, that of the buffers with n_i. With W = sum_i n_i / a_i and
n = sum_i n_i the equation is w_(t+1) = w_t + tau_eff * W / n * (mean - w_t).

Under secure sums the server sees no a_i. Then a client divides its update, sends work * (w_i - w_t) / a_i and a_i, and both
are averaged by n_i; `work` is the tau_eff of the round before, so that these updates are about as long as those of FedAvg.
Nothing checks a single a_i there: the server's step is shortened to the `clip` of the sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from covey.shared.numerics.averages import fair_weights
from covey.shared.numerics.vectors import combine
from covey.shared.privacy.settings import SecureSettings
from covey.shared.strategies.base import (
    LARGEST,
    TRAIN,
    ClientId,
    Expected,
    Facts,
    Order,
    Phase,
    Reports,
    Sealed,
    Settings,
    Setup,
    Sums,
    Term,
    Terms,
    Training,
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
    trained_report,
)

WORK = "a"  # a_i in a report's numbers; under secure sums in a vector (1,)
BUFFERS = "buffers"  # key of their sum
# a_i is within this factor of the steps: a momentum of 0.999 makes it a thousand times as large
MAX_FACTOR = 1e4
ROUNDING = 1e-6  # of an a_i that was summed in floating point
SLACK = 0.1  # with a proximal term, a_i must reach this share of what the first rate gives
MOST_STEPS = 10_000  # that are counted for this: a claim of more costs no more time

# under secure sums
DIVIDED = "divided"  # the vector (d,) of a report, and the key of its sum
SUMMED = "summed"  # number of an order: the work that updates are brought to, and the unit of a_i
SHARE = 0.25  # of the clip that the largest a_i takes


@dataclass(frozen=True)
class NovaState(Single):
    """The model, and the settings of its clients."""

    parameters: int  # P
    momentum: float = 0.0  # of the clients' optimiser
    lr: float = 0.0  # of the clients' optimiser in the first round

    # under secure sums; 0.0 without
    work: float = 0.0  # tau_eff of the round before
    unit: float = 0.0  # of an a_i in a sum
    clip: float = 0.0  # the longest step


class Share(NamedTuple):
    """One report as the server counts it."""

    examples: float  # n_i
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

    facts: ClassVar[Facts] = Facts(
        numbers={TRAIN: {SUMMED: Expected(2, most=LARGEST)}}, sealed=Sealed()
    )

    summary: ClassVar[str] = "FedAvg that counts a client's direction, not how far it went"
    source: ClassVar[str] = "Wang et al. 2020"

    name: Literal["fednova"] = "fednova"
    mu: float = Field(
        0.0,
        ge=0,
        description="The strength of the proximal term, which pulls a client's model towards the "
        "round's model, as in FedProx.",
    )

    def init(self, setup: Setup) -> NovaState:
        start = setup.starts[0]
        training, sums = setup.training, setup.secure
        state = NovaState(start, setup.layout.parameters, training.momentum, training.lr)
        if sums is None:
            return state
        steps = training.epochs * math.ceil(sums.cap / training.batch)
        most = steps / (1 - training.momentum)
        work = accumulated(training.epochs, training)
        return replace(state, work=work, unit=SHARE * sums.clip / most, clip=sums.clip)

    def refuses(self, settings: Settings) -> str:
        if isinstance(settings, SecureSettings) and self.server is not None:
            return "its clients divide their updates themselves, so leave server out"
        return super().refuses(settings)

    def plan(self, state: NovaState, view: View) -> Phase:
        if state.work:
            return Phase(sizes={DIVIDED: state.model.size, WORK: 1})
        phase = super().plan(state, view)
        work = Expected(most=LARGEST)
        return replace(phase, numbers={WORK: work})

    def order(self, state: NovaState, phase: Phase, client: ClientId) -> Order:
        numbers = {SUMMED: [state.work, state.unit]} if state.work else {}
        return replace(super().order(state, phase, client), numbers=numbers)

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        w_t = job.models[0]
        result = local.train(w_t, Drill(GradientCorrection(w_t, self.mu)))
        a_i = accumulated(result.steps, job.training, self.mu)
        if SUMMED not in job.numbers:
            return trained_report(result, local, {WORK: a_i}), client_state
        work, unit = job.numbers[SUMMED]
        update = combine([(result.end, 1.0), (w_t, -1.0)])
        if a_i:
            update[: job.layout.parameters] *= np.float32(work / a_i)
        far = self._far(Share(local.examples, a_i, result.steps), job.training.momentum)
        vectors = {DIVIDED: update, WORK: np.array([far * unit], np.float32)}
        return Report(vectors, local.examples), client_state

    def terms(self, state: NovaState, phase: Phase, client: ClientId, report: Report) -> Terms:
        if state.work:
            [divided] = sample_term(report, DIVIDED, DIVIDED)
            divided = replace(divided, base="")
            return (divided, replace(divided, key=WORK, vector=WORK))
        share = self._share(state, report)
        if share is None:
            return ()
        p = state.parameters
        d = state.model.size
        parameters = Term(KEY, share.examples / share.work, span=(0, p))
        if p == d:
            return (parameters,)
        return (parameters, Term(BUFFERS, share.examples, base=KEY, span=(p, d)))

    def fold(self, state: NovaState, phase: Phase, sums: Sums, reports: Reports) -> NovaState:
        if state.work:
            return self._with_divided(state, sums)
        shares = [
            share for _, report in reports if (share := self._share(state, report)) is not None
        ]
        if not shares:
            return state
        fair = fair_weights([share.examples for share in shares], sums.average.share)
        n = math.fsum(fair)
        tau_eff = math.fsum(
            examples / n * self._far(share, state.momentum)
            for examples, share in zip(fair, shares, strict=True)
        )
        way = math.fsum(
            tau_eff * examples / n / share.work
            for examples, share in zip(fair, shares, strict=True)
        )
        w_t, buffers = np.split(state.model, [state.parameters])
        parameters = sums.moved(KEY, w_t, way)
        buffers = sums.mean(BUFFERS, otherwise=buffers)
        return replace(state, model=np.concatenate([parameters, buffers]))

    def _with_divided(self, state: NovaState, sums: Sums) -> NovaState:
        """The state after updates that clients have divided by their work."""
        tau_eff = float(sums.mean(WORK, otherwise=np.zeros(1, np.float32))[0]) / state.unit
        if tau_eff <= 0:  # no sum
            return state
        update = sums.mean(DIVIDED, otherwise=np.zeros_like(state.model)).astype(np.float64)
        update[: state.parameters] *= tau_eff / state.work
        update *= min(1.0, state.clip / max(float(np.linalg.norm(update)), state.clip))
        model = (state.model + update).astype(np.float32)
        return replace(state, model=model, work=max(tau_eff, 1.0))

    def _share(self, state: NovaState, report: Report) -> Share | None:
        """None for a report without samples or steps, and for an a_i that honest training cannot have.

        A small a_i gives a report more weight. Momentum only adds: a_i is between the steps and the
        steps / (1 - momentum). A proximal term takes away: then a_i is compared with that of the
        first round's rate.
        """
        work = report.numbers.get(WORK)
        if not isinstance(work, int | float) or report.examples <= 0 or report.steps <= 0:
            return None
        least = report.steps * (1 - ROUNDING)
        if self.mu:
            training = Training(momentum=state.momentum, lr=state.lr)
            usual = accumulated(min(report.steps, MOST_STEPS), training, self.mu)
            least = max(SLACK * usual, report.steps / MAX_FACTOR)
        most = min(report.steps * (1 + ROUNDING) / (1 - state.momentum), report.steps * MAX_FACTOR)
        if not least <= work <= most:
            return None
        return Share(float(report.examples), float(work), report.steps)

    def _far(self, share: Share, momentum: float) -> float:
        """What a report adds to tau_eff: a_i without the proximal term, but with momentum.

        With it tau_eff would shrink as mu grows.
        """
        if not self.mu:
            return share.work
        return accumulated(share.steps, Training(momentum=momentum))
