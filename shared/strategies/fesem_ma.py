"""FeSEM-MA: FeSEM whose distances and means put matching hidden units on top of each other first.

Long et al. 2023 (FeSEM) with the layer-wise matching of Wang et al. 2020 (FedMA), mode
`fixed`: widths stay at the architecture's, each model's units are brought into the order of the centre, layer by
layer from the input, and the M-step is the plain mean of the ordered models. One phase per round, and no retraining
between layers. FedMA's own pass, in which widths grow and every layer costs a round trip, is not offered. The
first clusters are found among models ordered like the common start. The FeSEM repository has no working FeSEM-MA.
Plain chains of dense and convolutional layers only: no normalisation, no residual connections, dropout off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from shared.clustering import kmeans, refill
from shared.matching import align, layers_of
from shared.strategies.hard import Clustered, HardClustered
from shared.strategies.soft import merged
from shared.strategy import ClientId, Job, Local, Memory, Order, Phase, Pull, Report, Reports, Setup
from shared.vectors import Layout, Vector, mean, release, squared_distance


@dataclass(frozen=True)
class FesemMaState(Clustered):
    """Besides the clusters: names and shapes of the layout, the latest model W_i (d,) of each client as it was
    uploaded, J, the mean distance to the own centre, and the empty clusters seeded by the last E."""

    tensors: tuple[tuple[str, tuple[int, ...]], ...] = ()
    seed: int = 0
    stored: dict[ClientId, Vector] = field(default_factory=dict)
    spread: float = 0.0
    reseeded: int = 0

    @property
    def layout(self) -> Layout:
        wire = {"trainable": len(self.tensors), "tensors": self.tensors}
        return Layout.from_wire(wire)


class FesemMa(HardClustered[FesemMaState]):
    """Averaging index by index blurs networks whose units stand in different orders; matching does not."""

    summary: ClassVar[str] = "FeSEM with hidden units matched before models are compared and averaged"
    source: ClassVar[str] = "Long et al. 2023, Wang et al. 2020"

    name: Literal["fesem_ma"] = "fesem_ma"
    n_clusters: int = Field(3, ge=1, description="K, the number of centres")
    mu: float = Field(0.1, ge=0, description="strength of the pull towards the centre")
    restarts: int = Field(20, ge=1, description="K-means runs after the warm-up; the tightest is taken")
    warmup_epochs: int | None = Field(None, ge=1, description="epochs before clustering; null: as in a round")
    warmup_quorum: float = Field(0.5, ge=0, le=1, description="share of agents that must report before clustering")
    sweeps: int = Field(1, ge=0, description="how often members are matched again to the mean that they made")

    def init(self, setup: Setup) -> FesemMaState:
        """Raises UserError for a model that is no plain chain of layers."""
        layers_of(setup.layout)
        tensors = tuple((tensor.name, tensor.shape) for tensor in setup.layout.tensors)
        return FesemMaState(setup.starts[0], tensors=tensors, seed=setup.seed)

    def first(self, state: FesemMaState) -> Phase:
        return Phase("warmup", "all", self.entry_sizes(state), ends_round=False, quorum=self.warmup_quorum)

    def entry_sizes(self, state: FesemMaState) -> Mapping[str, int]:
        return {"model": state.start.size}

    def entry_order(self, state: FesemMaState) -> Order:
        key = "mean" if state.models else "start"
        return Order(models=(key,), numbers={"epochs": self.warmup_epochs} if self.warmup_epochs else {})

    def member_order(self, state: FesemMaState, client: ClientId) -> Order:
        k = state.assign[client]
        return Order(models=(str(k),), numbers={"mu": self.mu}, cluster=k)

    def model(self, state: FesemMaState, key: str) -> Vector:
        if key == "mean":
            return mean([(centre, 1.0) for centre in state.models])
        return super().model(state, key)

    def work(self, job: Job, local: Local, memory: Memory) -> tuple[Report, Memory]:
        """The centre has the global order of units: clients need to know nothing of matching."""
        pull = Pull(job.models[0], job.numbers["mu"]) if job.numbers.get("mu") else Pull()
        done = local.descend(job.models[0], pull, epochs=job.numbers.get("epochs"))
        return Report({"model": done.end}, local.examples, {}, done.steps, done.loss, {"model": 0}), memory

    def found(self, state: FesemMaState, reports: Reports) -> FesemMaState:
        state = _kept(state, reports)
        rows = [align(model, state.start, state.layout) for model in state.stored.values()]
        best = kmeans(rows, min(self.n_clusters, len(rows)), n_init=self.restarts, seed=state.seed)
        everybody = (mean([(row, 1.0) for row in rows]),) * self.n_clusters  # there a centre without members stays
        return self._maximise(
            replace(
                state,
                models=(*best.centres, *everybody[len(best.centres) :]),
                assign=dict(zip(state.stored, best.labels.tolist(), strict=True)),
                spread=best.inertia / len(rows),
            )
        )

    def admit(self, state: FesemMaState, reports: Reports) -> FesemMaState:
        """A newcomer joins the centre nearest to its first model, once matched to it."""
        if not reports:
            return state
        state = _kept(state, reports)
        labels, _ = _nearest(state, [client for client, _ in reports])
        joined = {client: int(label) for (client, _), label in zip(reports, labels, strict=True)}
        return replace(state, assign=merged(state.assign, joined))

    def improve(self, state: FesemMaState, reports: Reports) -> FesemMaState:
        return self._maximise(self._expect(_kept(state, reports)))

    def notes(self, state: FesemMaState) -> dict[str, Any]:
        return {**super().notes(state), "J": state.spread, "reseeded": state.reseeded} if state.models else {}

    def _expect(self, state: FesemMaState) -> FesemMaState:
        """E: every client goes to the centre that is nearest once its units are matched to that centre's."""
        labels, apart = _nearest(state, list(state.stored))
        filled = refill(labels, apart, self.n_clusters)
        return replace(
            state,
            assign=dict(zip(state.stored, filled.tolist(), strict=True)),
            spread=float(np.mean(apart)),
            reseeded=int(np.count_nonzero(filled != labels)),
        )

    def _maximise(self, state: FesemMaState) -> FesemMaState:
        """M: the unweighted mean of the members' latest models in the centre's order of units."""
        models = list(state.models)
        for k in range(self.n_clusters):
            members = [state.stored[client] for client in state.stored if state.assign[client] == k]
            for _ in range(1 + self.sweeps if members else 0):
                models[k] = _matched_mean(members, models[k], state.layout)
        return replace(state, models=tuple(models))


def _matched_mean(members: Sequence[Vector], anchor: Vector, layout: Layout) -> Vector:
    """One ordered copy exists at a time, and a sum in float64."""
    total = np.zeros(anchor.size, np.float64)
    for model in members:
        total += align(model, anchor, layout)
        release(model)
    return (total / len(members)).astype(np.float32)


def _nearest(state: FesemMaState, clients: Sequence[ClientId]) -> tuple[Any, Any]:
    """Index of each client's nearest centre after matching, ties to the lowest, and the squared distance to it."""
    table = np.empty((len(clients), len(state.models)))
    for i, client in enumerate(clients):
        for k, centre in enumerate(state.models):
            table[i, k] = squared_distance(align(state.stored[client], centre, state.layout), centre)
        release(state.stored[client])
    labels = table.argmin(axis=1)
    return labels, table[np.arange(len(labels)), labels]


def _kept(state: FesemMaState, reports: Reports) -> FesemMaState:
    """The reports' models as they are: these may be memory-mapped and are not copied."""
    return replace(state, stored=merged(state.stored, {client: report.vectors["model"] for client, report in reports}))
