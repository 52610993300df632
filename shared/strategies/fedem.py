"""FedEM: the data of each client is a mixture, with its own weights, of K shared components.

Paper. Marfoq et al. 2021, Federated Multi-Task Learning under a Mixture of Distributions,
algorithm 1.

Our deviations.
- The mean is over those who reported. `damped` is the authors' code, in which clients that were not
  drawn count with the old components.
- A newcomer fits its weights to the components and trains nothing.
- The weights stay on the client unless `share_memberships` is set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from covey.shared.numerics.averages import MEAN, Average
from covey.shared.numerics.vectors import Vector
from covey.shared.strategies.base import (
    LAST_MODEL,
    ClientId,
    ClientState,
    Expected,
    Job,
    Local,
    Mixture,
    Order,
    Phase,
    Report,
    Reports,
    Setup,
    Strategy,
    TrainingResult,
    View,
)
from covey.shared.strategies.bases.losses import comparable
from covey.shared.strategies.bases.single import averaged
from covey.shared.strategies.bases.soft import merged

# Client state: the mixture weights pi_i (K,). LAST_MODEL is the component with the largest weight.
PI = "pi"
COUNT = "count"  # phase in which clients send their number of samples
COMPONENT = "component-"  # name of a reported vector; the number of the component follows
SMALLEST = 1e-12  # smaller weights count as this, because their logarithm is needed

MixtureWeights = npt.NDArray[np.float64]


@dataclass(frozen=True)
class FedEmState:
    """The components and what clients have reported."""

    components: tuple[Vector, ...]  # K models (d,)
    samples: dict[ClientId, int] = field(default_factory=dict)  # n_i
    weights: dict[ClientId, tuple[float, ...]] = field(default_factory=dict)  # pi_i, if shared
    counted: bool = False  # is the count phase complete?


class FedEm(Strategy[FedEmState]):
    """The most expressive of the soft methods, for K times the traffic and K times the work."""

    summary: ClassVar[str] = "each client predicts with its own mixture of K shared components"
    source: ClassVar[str] = "Marfoq et al. 2021"

    name: Literal["fedem"] = "fedem"
    n_clusters: int = Field(3, ge=1, description="K: the number of components.")
    damped: bool = Field(
        False,
        description="Agents that do not report count with the old components, as in the authors' "
        "code.",
    )
    entry_steps: int = Field(
        1,
        ge=1,
        description="The number of E-steps in which an agent that never trained fits its weights.",
    )
    share_memberships: bool = Field(
        False,
        description="Agents report their mixture weights, which the membership error needs.",
    )

    @property
    def starts(self) -> int:
        """K: components that start alike never separate."""
        return self.n_clusters

    def init(self, setup: Setup) -> FedEmState:
        return FedEmState(setup.starts)

    def plan(self, state: FedEmState, view: View) -> Phase:
        if self.damped and not state.counted:
            # the mean needs the samples of those who do not report
            return Phase(COUNT, "all", ends_round=False, may_be_empty=True)
        sizes = {f"{COMPONENT}{k}": model.size for k, model in enumerate(state.components)}
        if not self.share_memberships:
            return Phase(sizes=sizes)
        weights = Expected(self.n_clusters, most=1.0)
        return Phase(sizes=sizes, numbers={PI: weights})

    def order(self, state: FedEmState, phase: Phase, client: ClientId) -> Order:
        return Order() if phase.name == COUNT else self.serve(state, client)

    def model(self, state: FedEmState, key: str) -> Vector:
        return state.components[int(key)]

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        if job.phase == COUNT:
            return Report({}, local.examples), client_state
        losses = [local.losses(model) for model in job.models]
        # E-step: q (n_i, K), then pi_i as its mean over the samples
        q = _e_step(self._weights(client_state, len(job.models)), losses)
        pi = q.mean(axis=0)
        # M-step: train each component on the samples as far as they belong to it
        results: list[TrainingResult] = []
        for k, model in enumerate(job.models):
            shares = q[:, k].astype(np.float32)
            results.append(self._trained(model, local, losses[k], shares))
        heaviest = int(np.argmax(pi))
        report = Report(
            vectors={f"{COMPONENT}{k}": result.end for k, result in enumerate(results)},
            examples=local.examples,
            numbers={PI: pi.tolist()} if self.share_memberships else {},
            steps=sum(result.steps for result in results),
            # the losses of a sample are weighted by its shares, which sum to 1
            loss=math.fsum(result.loss for result in results),
            bases={f"{COMPONENT}{k}": k for k in range(len(results))},
        )
        return report, {**client_state, PI: pi, LAST_MODEL: results[heaviest].end}

    def fold(
        self, state: FedEmState, phase: Phase, reports: Reports, average: Average = MEAN
    ) -> FedEmState:
        samples = {client: report.examples for client, report in reports}
        state = replace(state, samples=merged(state.samples, samples))
        if phase.name == COUNT:
            return replace(state, counted=True)
        weights: dict[ClientId, tuple[float, ...]] = {}
        for client, report in reports:
            if PI in report.numbers:
                weights[client] = tuple(report.numbers[PI])
        state = replace(state, weights=merged(state.weights, weights))
        components = [self._average(state, k, reports, average) for k in range(self.n_clusters)]
        return replace(state, components=tuple(components))

    def base(
        self, state: FedEmState, phase: Phase, client: ClientId, report: Report, name: str
    ) -> str | None:
        return name.removeprefix(COMPONENT)

    def serve(self, state: FedEmState, client: ClientId) -> Order:
        return Order(models=tuple(str(k) for k in range(self.n_clusters)))

    def personal(self, job: Job, local: Local, client_state: ClientState) -> Mixture:
        pi = self._weights(client_state, len(job.models))
        if PI not in client_state:
            losses = [local.losses(model) for model in job.models]
            for _ in range(self.entry_steps):
                pi = _e_step(pi, losses).mean(axis=0)
        return tuple(zip(pi.tolist(), job.models, strict=True))

    def clusters(self, state: FedEmState) -> tuple[Vector, ...]:
        return state.components

    def memberships(self, state: FedEmState) -> Mapping[ClientId, tuple[float, ...]]:
        return state.weights

    def notes(self, state: FedEmState) -> dict[str, Any]:
        total: list[float] = []
        if state.weights:
            rows = list(state.weights.values())
            total = np.sum(rows, axis=0).tolist()
        return {"components": self.n_clusters, "weights": total}

    def _trained(
        self,
        model: Vector,
        local: Local,
        losses: npt.NDArray[np.float32],
        shares: npt.NDArray[np.float32],
    ) -> TrainingResult:
        """A component after a client's training.

        A component that diverged stays as it is: its gradient is not a number either.

        Args:
            model: the component (d,).
            local: the client's data.
            losses: of each sample (n_i,).
            shares: of the component in each sample (n_i,).
        """
        if not np.isfinite(losses).all():
            return TrainingResult(model, steps=0, loss=0.0)
        return local.train(model, weights=shares)

    def _weights(self, client_state: ClientState, components: int) -> MixtureWeights:
        """pi_i (K,): the client's own, or equal ones for a client that never trained."""
        if PI in client_state:
            return np.asarray(client_state[PI], np.float64)
        return np.full(components, 1 / components)

    def _average(self, state: FedEmState, k: int, reports: Reports, average: Average) -> Vector:
        """Component k after a round: the mean by samples.

        Weights pi_ik are not needed: a component that a client does not use has hardly moved.
        """
        name = f"{COMPONENT}{k}"
        before = state.components[k]
        if not self.damped:
            return averaged(reports, otherwise=before, of=name, average=average)
        everybody = sum(state.samples.values())
        if everybody == 0:
            return before
        moved = [(report.vectors[name], report.examples / everybody) for _, report in reports]
        left = 1 - math.fsum(share for _, share in moved)
        return average.combine([(before, left)], moved)


def _e_step(pi: MixtureWeights, losses: Sequence[npt.NDArray[np.float32]]) -> MixtureWeights:
    """E-step: q_ks, the share (n, K) of each component in each sample.

    q_ks is proportional to pi_k * exp(-loss_k(s)).

    Args:
        pi: the weights of the components (K,).
        losses: for each component the loss of each sample (n,).
    """
    costs = comparable(np.stack(losses, axis=1))
    log_pi = np.log(np.maximum(pi, SMALLEST))
    scores = log_pi - costs
    largest = scores.max(axis=1, keepdims=True)
    powers = np.exp(scores - largest)
    totals = powers.sum(axis=1, keepdims=True)
    return np.asarray(powers / totals)
