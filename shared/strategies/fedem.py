"""FedEM: every client's data is a mixture, with weights of its own, of K components that all clients share.

Marfoq et al. 2021, Federated Multi-Task Learning under a Mixture of Distributions, algorithm 1. Our choices:
the mean is over those who reported; `damped` is the authors' code, in which clients that were not drawn hold the old
components. A newcomer fits its weights to the components and trains nothing.
The weights stay on the client unless `share_memberships` is set.
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

PI = "pi"  # in a client's state: its mixture weights (K,); LAST_MODEL is its heaviest component after training
SMALLEST = 1e-12  # a weight below this counts as this, or its logarithm would be lost

MixtureWeights = npt.NDArray[np.float64]


@dataclass(frozen=True)
class FedEmState:
    """The K components (d,); samples of each client, once told; the weights of those that share them."""

    components: tuple[Vector, ...]
    samples: dict[ClientId, int] = field(default_factory=dict)
    weights: dict[ClientId, tuple[float, ...]] = field(default_factory=dict)
    counted: bool = False


class FedEm(Strategy[FedEmState]):
    """The most expressive of the soft methods, for K times the traffic and K times the work."""

    summary: ClassVar[str] = "each client predicts with its own mixture of K shared components"
    source: ClassVar[str] = "Marfoq et al. 2021"

    name: Literal["fedem"] = "fedem"
    n_clusters: int = Field(3, ge=1, description="K, the number of components")
    damped: bool = Field(
        False,
        description="agents that do not report hold the old components, as in the authors' code",
    )
    entry_steps: int = Field(
        1, ge=1, description="E-steps by which somebody who never trained fits its weights"
    )
    share_memberships: bool = Field(
        False, description="agents tell their mixture weights, for the membership error"
    )

    @property
    def starts(self) -> int:
        """Components must start different, or they never separate."""
        return self.n_clusters

    def init(self, setup: Setup) -> FedEmState:
        return FedEmState(setup.starts)

    def plan(self, state: FedEmState, view: View) -> Phase:
        if self.damped and not state.counted:  # the weight of those who do not report
            return Phase("count", "all", ends_round=False, may_be_empty=True)
        sizes = {f"component-{k}": len(one) for k, one in enumerate(state.components)}
        return Phase(
            sizes=sizes,
            numbers={"pi": Expected(self.n_clusters, most=1.0)} if self.share_memberships else {},
        )

    def order(self, state: FedEmState, phase: Phase, client: ClientId) -> Order:
        return Order() if phase.name == "count" else self.serve(state, client)

    def model(self, state: FedEmState, key: str) -> Vector:
        return state.components[int(key)]

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        if job.phase == "count":
            return Report({}, local.examples), client_state
        pi = self._own(client_state, len(job.models))
        losses = [local.losses(model) for model in job.models]
        shares = _expected(pi, losses)
        pi = shares.mean(axis=0)
        done = [
            self._trained(model, local, losses[k], shares[:, k].astype(np.float32))
            for k, model in enumerate(job.models)
        ]
        report = Report(
            {f"component-{k}": one.end for k, one in enumerate(done)},
            local.examples,
            {"pi": pi.tolist()} if self.share_memberships else {},
            sum(one.steps for one in done),
            math.fsum(
                one.loss for one in done
            ),  # a sample's losses are weighted by its shares, which sum to 1
            {f"component-{k}": k for k in range(len(done))},
        )
        return report, {**client_state, PI: pi, LAST_MODEL: done[int(np.argmax(pi))].end}

    def fold(
        self, state: FedEmState, phase: Phase, reports: Reports, average: Average = MEAN
    ) -> FedEmState:
        told = merged(state.samples, {client: report.examples for client, report in reports})
        if phase.name == "count":
            return replace(state, samples=told, counted=True)
        weights = {
            client: tuple(report.numbers["pi"])
            for client, report in reports
            if "pi" in report.numbers
        }
        state = replace(state, samples=told, weights=merged(state.weights, weights))
        improved = tuple(self._improved(state, k, reports, average) for k in range(self.n_clusters))
        return replace(state, components=improved)

    def base(
        self, state: FedEmState, phase: Phase, client: ClientId, report: Report, name: str
    ) -> str | None:
        return name.removeprefix("component-")

    def serve(self, state: FedEmState, client: ClientId) -> Order:
        return Order(models=tuple(str(k) for k in range(self.n_clusters)))

    def personal(self, job: Job, local: Local, client_state: ClientState) -> Mixture:
        pi = self._own(client_state, len(job.models))
        if PI not in client_state:
            losses = [local.losses(model) for model in job.models]
            for _ in range(self.entry_steps):
                pi = _expected(pi, losses).mean(axis=0)
        return tuple(zip(pi.tolist(), job.models, strict=True))

    def clusters(self, state: FedEmState) -> tuple[Vector, ...]:
        return state.components

    def memberships(self, state: FedEmState) -> Mapping[ClientId, tuple[float, ...]]:
        return state.weights

    def notes(self, state: FedEmState) -> dict[str, Any]:
        spread = np.sum(list(state.weights.values()), axis=0).tolist() if state.weights else []
        return {"components": self.n_clusters, "weights": spread}

    def _trained(
        self,
        model: Vector,
        local: Local,
        losses: npt.NDArray[np.float32],
        shares: npt.NDArray[np.float32],
    ) -> TrainingResult:
        """The component after a client's training. One that diverged stays: its gradient is not a number either."""
        if not np.isfinite(losses).all():
            return TrainingResult(model, steps=0, loss=0.0)
        return local.train(model, weights=shares)

    def _own(self, client_state: ClientState, components: int) -> MixtureWeights:
        return np.asarray(
            client_state[PI] if PI in client_state else np.full(components, 1 / components),
            np.float64,
        )

    def _improved(self, state: FedEmState, k: int, reports: Reports, average: Average) -> Vector:
        """M-step: by samples and not by weights, for a component that nobody uses has hardly moved anyway."""
        name, before = f"component-{k}", state.components[k]
        if not self.damped:
            return averaged(reports, otherwise=before, of=name, average=average)
        everybody = sum(state.samples.values())
        if everybody == 0:
            return before
        moved = [(report.vectors[name], report.examples / everybody) for _, report in reports]
        left = 1 - math.fsum(share for _, share in moved)
        return average.combine([(before, left)], moved)


def _expected(pi: MixtureWeights, losses: Sequence[npt.NDArray[np.float32]]) -> MixtureWeights:
    """E-step: the share (n, K) of each component in each sample, from weights (K,) and K losses (n,)."""
    scores = np.log(np.maximum(pi, SMALLEST)) - comparable(np.stack(losses, axis=1))
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))
