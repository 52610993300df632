"""FedEM: the data of each client is a mixture, with its own weights, of K shared components.

Paper. Marfoq et al. 2021, Federated Multi-Task Learning under a Mixture of Distributions,
algorithm 1.

Our deviations.
- The mean is over those who reported. `damped` is the authors' code, in which clients that were not
  drawn count with the old components.
- A newcomer fits its weights to the components in one E-step and trains nothing.
- The weights stay on the client unless `share_memberships` is set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from covey.shared.numerics.vectors import Vector, combine
from covey.shared.privacy.settings import SecureSettings
from covey.shared.strategies.base import (
    ClientId,
    Expected,
    Facts,
    Models,
    Moving,
    Order,
    Phase,
    Reports,
    Sealed,
    Serves,
    Settings,
    Setup,
    Shares,
    Shown,
    Strategy,
    Sums,
    Term,
    Terms,
    View,
    without,
)
from covey.shared.strategies.bases.losses import comparable
from covey.shared.strategies.bases.single import counted, samples_of
from covey.shared.strategies.bases.soft import merged
from covey.shared.strategies.client_half import (
    LAST_MODEL,
    ClientState,
    Drill,
    Job,
    Local,
    Mixture,
    Report,
    TrainingResult,
    taken,
)
from covey.shared.strategies.server import Server
from covey.shared.written import FIRST

# Client state: the mixture weights pi_i (K,). LAST_MODEL is the component with the largest weight.
PI = "pi"
COUNT = "count"  # phase in which clients send their number of samples
COMPONENT = "component-"  # name of a reported vector; the number of the component follows
SMALLEST = 1e-12  # smaller weights count as this, because their logarithm is needed

MixtureWeights = npt.NDArray[np.float64]
Losses = npt.NDArray[np.float32]  # of each sample (n_i,)


@dataclass(frozen=True)
class FedEmState(Moving):
    """The components and what clients have reported."""

    components: Models  # K models (d,)
    samples: dict[ClientId, int] = field(default_factory=dict)  # n_i
    weights: dict[ClientId, Shares] = field(default_factory=dict)  # pi_i, if shared
    counted: bool = False  # is the count phase complete?


class FedEm(Strategy[FedEmState]):
    """The most expressive of the soft methods, for K times the traffic and K times the work."""

    facts: ClassVar[Facts] = Facts(phases=(COUNT,), sealed=Sealed())

    summary: ClassVar[str] = "each client predicts with its own mixture of K shared components"
    source: ClassVar[str] = "Marfoq et al. 2021"

    name: Literal["fedem"] = "fedem"
    n_clusters: int = Field(
        3, ge=1, json_schema_extra=FIRST, description="K: the number of components."
    )
    damped: bool = Field(
        default=False,
        description="Agents that do not report count with the old components, as in the authors' "
        "code.",
    )
    share_memberships: bool = Field(
        default=False,
        description="Agents report their mixture weights, which the membership error needs.",
    )

    @property
    def starts(self) -> int:
        """K: components that start alike never separate."""
        return self.n_clusters

    def continued(self, state: FedEmState, fresh: FedEmState) -> FedEmState:
        """The components. Shares are estimated again on the devices."""
        return replace(fresh, components=state.components)

    def init(self, setup: Setup) -> FedEmState:
        return FedEmState(setup.starts)

    def refuses(self, settings: Settings) -> str:
        if isinstance(settings, Server) and self.damped:
            return "a damped mean goes a part of the way already (damped)"
        if isinstance(settings, SecureSettings) and (self.damped or self.share_memberships):
            return "damped and share_memberships need numbers of each report; leave them out"
        return super().refuses(settings)

    def plan(self, state: FedEmState, view: View) -> Phase:
        if self.damped and not state.counted:
            # the mean needs the samples of those who do not report
            return Phase(COUNT, "all", ends_round=False, may_be_empty=True)
        sizes: dict[str, int] = {}
        for k, model in enumerate(state.components):
            name = _name(k)
            sizes[name] = model.size
        if not self.share_memberships:
            return Phase(sizes=sizes)
        return Phase(sizes=sizes, numbers={PI: Expected(self.n_clusters, most=1.0)})

    def order(self, state: FedEmState, phase: Phase, client: ClientId) -> Order:
        if phase.name == COUNT:
            return Order()
        return self.serve(state, client)

    def model(self, state: FedEmState, key: str) -> Vector:
        k = int(key)
        return state.components[k]

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        if job.phase == COUNT:
            return Report({}, local.examples), client_state
        before, models = self._weighted(job, client_state)
        losses = [local.losses(model) for model in models]
        # E-step: q (n_i, K), then pi_i as its mean over the samples
        q = _e_step(before, losses)
        pi = q.mean(axis=0)
        # M-step: train each component on the samples as far as they belong to it
        results: list[TrainingResult] = []
        for k, model in enumerate(models):
            of_component = q[:, k]
            shares = of_component.astype(np.float32)
            results.append(self._trained(model, local, losses[k], shares))
        numbers: dict[str, list[float]] = {}
        if self.share_memberships:
            numbers[PI] = pi.tolist()
        heaviest = int(np.argmax(pi))
        last_model = results[heaviest].end
        report = _report(results, local.examples, numbers)
        return report, {**client_state, PI: pi, LAST_MODEL: last_model}

    def terms(self, state: FedEmState, phase: Phase, client: ClientId, report: Report) -> Terms:
        if phase.name == COUNT:
            return ()
        weight = counted(report)
        return tuple(Term(str(k), weight, _name(k)) for k in range(self.n_clusters))

    def fold(self, state: FedEmState, phase: Phase, sums: Sums, reports: Reports) -> FedEmState:
        state = replace(state, samples=merged(state.samples, samples_of(reports)))
        if phase.name == COUNT:
            return replace(state, counted=True)
        weights = {
            client: tuple(report.numbers[PI]) for client, report in reports if PI in report.numbers
        }
        state = replace(state, weights=merged(state.weights, weights))
        components = [self._average(state, k, sums, reports) for k in range(self.n_clusters)]
        return replace(state, components=tuple(components))

    def serve(self, state: FedEmState, client: ClientId) -> Order:
        return Order(models=tuple(str(k) for k in range(self.n_clusters)))

    serves: ClassVar[Serves] = "own"

    def personal(self, job: Job, local: Local, client_state: ClientState) -> Mixture:
        pi, models = self._weighted(job, client_state)
        if PI not in client_state:
            pi = _e_step(pi, [local.losses(model) for model in models]).mean(axis=0)
        return tuple(zip(pi.tolist(), models, strict=True))

    def clusters(self, state: FedEmState) -> Models:
        return state.components

    def _memberships(self, state: FedEmState) -> Mapping[ClientId, Shares]:
        return state.weights

    def shown(self, state: FedEmState) -> Shown:
        total: list[float] = []
        if state.weights:
            total = np.sum(list(state.weights.values()), axis=0).tolist()
        return Shown({"components": self.n_clusters, "weights": total}, self._memberships(state))

    def _trained(
        self, model: Vector, local: Local, losses: Losses, shares: Vector
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
        return local.train(model, Drill(weights=shares))

    def _weighted(self, job: Job, client_state: ClientState) -> tuple[MixtureWeights, Models]:
        """pi_i (K,), the client's own, or equal ones for a client that never trained, and their components."""
        equal = np.full(len(job.models), 1 / max(len(job.models), 1))
        pi = np.asarray(client_state.get(PI, equal), np.float64)
        return pi, taken(job, max(len(pi), 1))

    def _average(self, state: FedEmState, k: int, sums: Sums, reports: Reports) -> Vector:
        """Component k after a round: the mean by samples.

        Weights pi_ik are not needed: a component that a client does not use has hardly moved.
        """
        before = state.components[k]
        mean = sums.mean(str(k), otherwise=before)
        all_samples = sum(state.samples.values())
        if not self.damped or all_samples == 0:
            return mean
        reported = sum(report.examples for _, report in reports)
        share = reported / all_samples
        return combine([(before, 1 - share), (mean, share)])

    def forget(self, state: FedEmState, client: ClientId) -> FedEmState:
        return replace(
            state, samples=without(state.samples, client), weights=without(state.weights, client)
        )


def _name(k: int) -> str:
    """The name of the vector that holds component k in a report."""
    return f"{COMPONENT}{k}"


def _report(
    results: Sequence[TrainingResult], examples: int, numbers: Mapping[str, list[float]]
) -> Report:
    """A client's report after an M-step.

    Args:
        results: of each component.
        examples: n_i.
        numbers: what the report has besides.
    """
    vectors: dict[str, Vector] = {}
    bases: dict[str, int] = {}
    for k, result in enumerate(results):
        name = _name(k)
        vectors[name] = result.end
        bases[name] = k
    steps = sum(result.steps for result in results)
    # the losses of a sample are weighted by its shares, which sum to 1
    loss = math.fsum(result.loss for result in results)
    return Report(vectors, examples, numbers, steps, loss, bases)


def _e_step(pi: MixtureWeights, losses: Sequence[Losses]) -> MixtureWeights:
    """E-step: q_ks, the share (n, K) of each component in each sample.

    q_ks is proportional to pi_k * exp(-loss_k(s)).

    Args:
        pi: the weights of the components (K,).
        losses: for each component the loss of each sample (n,).
    """
    costs = comparable(np.stack(losses, axis=1))
    scores = np.log(np.maximum(pi, SMALLEST)) - costs
    largest = scores.max(axis=1, keepdims=True)
    differences = scores - largest
    powers = np.exp(differences)
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))
