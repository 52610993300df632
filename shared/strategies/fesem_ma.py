"""FeSEM-MA: FeSEM whose distances and means match hidden units first.

Papers. Long et al. 2023, Multi-center federated learning (FeSEM), with the layer-wise matching of
Wang et al. 2020, Federated Learning with Matched Averaging (FedMA). The FeSEM repository has no
working FeSEM-MA.

Only plain chains of dense and convolutional layers can be matched: no normalisation, no residual
connections, dropout off.

Widths stay those of the architecture. The units of each model are brought into the order of the
centre's, layer by layer from the input, and the M-step is the plain mean of the ordered models. There
is one phase per round and no retraining between layers: FedMA's own pass widens layers, has a phase for
each of them, and serves few agents.

Our deviations.
- The paper lets all clients start from one model, whose units need no matching. The first clusters
  are found among models ordered like that common start. With `warmup_start: own` each client starts
  its warm-up from random weights of its own; the first clusters are then found among models ordered
  like that of the client with the most samples, with which FedMA begins too.
- Without `n_clusters` K is the number of groups that cards show, as in FeSEM.
- A client that does not answer, or was not invited, takes part with its stored model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from covey.shared.numerics.averages import MEAN, Average
from covey.shared.numerics.clustering import Labels, Matrix, kmeans, refill
from covey.shared.numerics.exact_sum import ExactMean
from covey.shared.numerics.matching import align, layers_of, random_start
from covey.shared.numerics.vectors import Layout, Vector, mean, release, squared_distance
from covey.shared.seeds import generator
from covey.shared.strategies.base import (
    MODEL,
    STRENGTH,
    TRAIN,
    ClientId,
    ClientState,
    Drill,
    Facts,
    Job,
    Local,
    Order,
    Report,
    Reports,
    Setup,
    Sums,
    trained_report,
)
from covey.shared.strategies.bases.centres import MEAN_OF_CENTRES, Centred, MultiCentre, pull
from covey.shared.strategies.bases.cut import with_card
from covey.shared.strategies.bases.hard import START
from covey.shared.strategies.bases.single import vectors_of
from covey.shared.strategies.bases.soft import merged

MATCHED = 2  # times that members are matched to the mean that they made last


@dataclass(frozen=True)
class FesemMaState(Centred):
    """Besides the centres, the form of a model."""

    tensors: tuple[tuple[str, tuple[int, ...]], ...] = ()  # names and shapes of the layout

    @property
    def layout(self) -> Layout:
        return Layout.from_wire({"trainable": len(self.tensors), "tensors": self.tensors})


class FesemMa(MultiCentre[FesemMaState]):
    """Averaging by index blurs networks whose units are in different orders; matching does not."""

    facts: ClassVar[Facts] = replace(
        MultiCentre.facts, numbers=MultiCentre.facts.numbers_with({TRAIN: {"mu": STRENGTH}})
    )
    usual: ClassVar[int] = 3

    summary: ClassVar[str] = (
        "FeSEM with hidden units matched before models are compared and averaged"
    )
    source: ClassVar[str] = "Long et al. 2023, Wang et al. 2020"

    name: Literal["fesem_ma"] = "fesem_ma"
    mu: float = Field(
        0.1,
        ge=0,
        description="The strength of the proximal term, which pulls a client's model towards its "
        "centre.",
    )
    warmup_start: Literal["common", "own"] = Field(
        "common",
        description="Where the warm-up starts: at a common model, or at random weights of each "
        "agent's own, so that units need matching.",
    )

    def init(self, setup: Setup) -> FesemMaState:
        """The state at the start.

        Raises:
            UserError: the model is not a plain chain of layers.
        """
        layers_of(setup.layout)
        start = setup.starts[0]
        tensors = [(tensor.name, tensor.shape) for tensor in setup.layout.tensors]
        return FesemMaState(
            start,
            asks=self.asks_in(setup),
            count=self.count(),
            tensors=tuple(tensors),
            seed=setup.seed,
        )

    # -- phases and orders -------------------------------------------------------------------------

    def entry_order(self, state: FesemMaState) -> Order:
        if state.models:
            return Order(models=(MEAN_OF_CENTRES,))
        models = () if self.warmup_start == "own" else (START,)
        return Order(models=models)

    def member_order(self, state: FesemMaState, client: ClientId) -> Order:
        return replace(super().member_order(state, client), numbers={"mu": self.mu})

    # -- the client --------------------------------------------------------------------------------

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        """Train. Models arrive in the client's order of units: it need not know of matching."""
        if job.models:
            start = job.models[0]
            base = 0
        else:
            start = random_start(job.layout, generator(job.seed, "own start", job.client))
            base = None
        result = local.train(start, Drill(pull(start, job.numbers.get("mu"))))
        return with_card(trained_report(result, local, base=base), job, local), client_state

    # -- the server --------------------------------------------------------------------------------

    def form_clusters(
        self, state: FesemMaState, reports: Reports, average: Average = MEAN
    ) -> FesemMaState:
        state = self.keep(state, reports)
        anchor = state.start
        if self.warmup_start == "own":
            anchor = _largest(reports)
        layout = state.layout
        rows = [align(model, anchor, layout) for model in state.stored.values()]
        best = kmeans(rows, min(state.count, len(rows)), n_init=self.restarts, seed=state.seed)
        # a centre that has no members is the mean of all
        everybody = _plain_mean(rows)
        missing = state.count - len(best.centres)
        without_members = (everybody,) * missing
        centres = best.centres + without_members
        assign = dict(zip(state.stored, best.labels.tolist(), strict=True))
        state = replace(state, models=centres, assign=assign, spread=best.inertia / len(rows))
        return self._m_step(state, average)

    def keep(self, state: FesemMaState, reports: Reports) -> FesemMaState:
        return replace(state, stored=merged(state.stored, vectors_of(reports)))

    def nearest_centres(
        self, state: FesemMaState, clients: Sequence[ClientId]
    ) -> tuple[Labels, Matrix]:
        """After matching; the distances are squared."""
        table = np.empty((len(clients), len(state.models)))
        for i, client in enumerate(clients):
            model = state.stored[client]
            for k, centre in enumerate(state.models):
                table[i, k] = squared_distance(align(model, centre, state.layout), centre)
            release(model)
        labels = table.argmin(axis=1)
        every_row = np.arange(len(labels))
        apart = table[every_row, labels]
        return labels, apart

    def aggregate(self, state: FesemMaState, sums: Sums, reports: Reports) -> FesemMaState:
        return self._m_step(self._e_step(self.keep(state, reports)), sums.average)

    def _e_step(self, state: FesemMaState) -> FesemMaState:
        """E-step: r_i is the nearest centre once the units of W_i are matched to the centre's."""
        clients = list(state.stored)
        labels, apart = self.nearest_centres(state, clients)
        filled = refill(labels, apart, state.count)
        assign = dict(zip(clients, filled.tolist(), strict=True))
        spread = np.mean(apart)
        reseeded = np.count_nonzero(filled != labels)
        return replace(state, assign=assign, spread=float(spread), reseeded=int(reseeded))

    def _m_step(self, state: FesemMaState, average: Average = MEAN) -> FesemMaState:
        """M-step: W~_k is the plain average of its members in the centre's order of units."""
        models = list(state.models)
        for k in range(state.count):
            members = [model for client, model in state.stored.items() if state.assign[client] == k]
            if not members:
                continue
            for _ in range(MATCHED):
                models[k] = _matched_mean(members, models[k], state.layout, average)
        return replace(state, models=tuple(models))


def _plain_mean(models: Sequence[Vector]) -> Vector:
    """The mean (d,) of models that count alike."""
    return mean([(model, 1.0) for model in models])


def _largest(reports: Reports) -> Vector:
    """The model of the client with the most samples, ties to the lowest id."""
    _, best = reports[0]
    for _, report in reports:
        if report.examples > best.examples:
            best = report
    return best.vectors[MODEL]


def _matched_mean(
    members: Sequence[Vector], anchor: Vector, layout: Layout, average: Average = MEAN
) -> Vector:
    """The average (d,) of models in the anchor's order of units.

    The mean needs memory for one ordered copy and an exact sum; a rule needs all copies.
    """
    if average.single:
        pairs: list[tuple[Vector, float]] = []
        for model in members:
            ordered = align(model, anchor, layout)
            pairs.append((ordered, 1.0))
        return average.mean(pairs)
    total = ExactMean(anchor.size)
    for model in members:
        ordered = align(model, anchor, layout)
        total.add(ordered, 1.0)
        release(model)
    return total.mean()
