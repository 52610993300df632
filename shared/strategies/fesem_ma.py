"""FeSEM-MA: FeSEM whose distances and means put matching hidden units on top of each other first.

Long et al. 2023 (FeSEM) with the layer-wise matching of Wang et al. 2020 (FedMA). The
first clusters are found among models ordered like the common start. The FeSEM repository has no working FeSEM-MA.
The paper lets all clients begin at one model, whose units need no matching. With `warmup_start: own` each client begins its
warm-up at random weights of its own; the first clusters are then found among models ordered like that of one client,
the one with the most samples, with which FedMA begins too.
Plain chains of dense and convolutional layers only: no normalisation, no residual connections, dropout off.

Mode `fixed`: widths stay at the architecture's, each model's units are brought into the order of the centre, layer by
layer from the input, and the M-step is the plain mean of the ordered models. One phase per round, and no retraining
between layers.

Mode `fedma`: FedMA's own pass in every cluster, in which layers widen. A round of a network of L layers has L phases:
everybody invited trains everything, E follows, and then, for each hidden layer, it is matched, frozen, and what comes
after it is trained again; the last layer is averaged class by class. Our reading: devices have room for the
architecture and the wire knows one layout, so the wide layers stay on the server, and a client gets those global
units that its own were matched to, in its own order. FedMA drops the others too, but only in the next round.
Between rounds nothing wide is left: E and the centres, which newcomers get and which are exported, are those of
`fixed`. Who does not answer, or was not invited, takes part with its stored model; a cluster without any report rests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from covey.shared.numerics.averages import MEAN, Average, Rule
from covey.shared.numerics.clustering import kmeans, refill
from covey.shared.numerics.fedma import Inputs, Prior, average_last, match_layer, raw_inputs
from covey.shared.numerics.matching import Permutation, align, layers_of, random_start
from covey.shared.numerics.vectors import Layout, Vector, mean, release, squared_distance
from covey.shared.seeds import generator
from covey.shared.strategies.base import (
    ClientId,
    ClientState,
    Expected,
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
from covey.shared.strategies.bases.hard import Clustered, HardClustered
from covey.shared.strategies.bases.soft import merged


@dataclass(frozen=True)
class FesemMaState(Clustered):
    """Besides the clusters: names and shapes of the layout, the latest model W_i (d,) of each client as it was
    uploaded, J, the mean distance to the own centre, and the empty clusters seeded by the last E.

    Mode `fedma`: `stored` has the matched layers as each client has them; `counts` weigh a client in each output of
    the last layer. During a pass `frozen` layers are matched, `cohort` goes on training, and `places` are the global
    units of the newest of these layers for all who take part. `widths` by cluster are those of its last pass."""

    tensors: tuple[tuple[str, tuple[int, ...]], ...] = ()
    seed: int = 0
    stored: dict[ClientId, Vector] = field(default_factory=dict)
    spread: float = 0.0
    reseeded: int = 0
    counts: dict[ClientId, tuple[int, ...]] = field(default_factory=dict)
    passes: int = 0
    frozen: int = 0
    cohort: tuple[ClientId, ...] = ()
    places: dict[ClientId, Permutation] = field(default_factory=dict)
    widths: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        wire = {"trainable": len(self.tensors), "tensors": self.tensors}
        return Layout.from_wire(wire)


class FesemMa(HardClustered[FesemMaState]):
    """Averaging index by index blurs networks whose units stand in different orders; matching does not."""

    keeps_models: ClassVar[bool] = True
    summary: ClassVar[str] = (
        "FeSEM with hidden units matched before models are compared and averaged"
    )
    source: ClassVar[str] = "Long et al. 2023, Wang et al. 2020"

    name: Literal["fesem_ma"] = "fesem_ma"
    n_clusters: int = Field(3, ge=1, description="K, the number of centres")
    mu: float = Field(0.1, ge=0, description="strength of the pull towards the centre")
    restarts: int = Field(
        20, ge=1, description="K-means runs after the warm-up; the tightest is taken"
    )
    warmup_epochs: int | None = Field(
        None, ge=1, description="epochs before clustering; null: as in a round"
    )
    warmup_quorum: float = Field(
        0.5, ge=0, le=1, description="share of agents that must report before clustering"
    )
    warmup_start: Literal["common", "own"] = Field(
        "common",
        description="own: each agent begins the warm-up at random weights of its own, so that units need matching",
    )
    sweeps: int = Field(
        1, ge=0, description="how often members are matched again to the mean that they made"
    )
    matching: Literal["fixed", "fedma"] = Field(
        "fixed",
        description="keep the widths, or widen the layers on the server: one phase per layer, few agents only",
    )
    noise: float = Field(
        1.0, gt=0, description="fedma: variance of an agent's unit around its global unit"
    )
    prior: float = Field(
        1.0, gt=0, description="fedma: variance of global units, which are drawn towards zero by it"
    )
    gamma: float = Field(1.0, gt=0, description="fedma: the larger, the more global units")
    rematch: int = Field(
        8, ge=0, description="fedma: how often every agent's layer is taken out and matched again"
    )
    class_counts: bool = Field(
        True,
        description="fedma: agents tell their samples per class, which weigh the last layer; else all samples do",
    )

    def refuses(self, rule: Rule) -> str:
        if rule == "mean" or self.matching == "fixed":
            return ""
        return "matching: fedma makes global layers out of all members' units; take matching: fixed"

    def init(self, setup: Setup) -> FesemMaState:
        """Raises UserError for a model that is no plain chain of layers."""
        layers_of(setup.layout)
        tensors = tuple((tensor.name, tensor.shape) for tensor in setup.layout.tensors)
        return FesemMaState(setup.starts[0], tensors=tensors, seed=setup.seed)

    def clustering_phase(self, state: FesemMaState) -> Phase:
        return Phase(
            "warmup", "all", self.entry_sizes(state), ends_round=False, quorum=self.warmup_quorum
        )

    def entry_sizes(self, state: FesemMaState) -> Mapping[str, int]:
        return {"model": state.start.size}

    def entry_order(self, state: FesemMaState) -> Order:
        numbers = {"epochs": self.warmup_epochs} if self.warmup_epochs else {}
        if state.models:
            return Order(models=("mean",), numbers=numbers)
        return Order(models=() if self.warmup_start == "own" else ("start",), numbers=numbers)

    def base(
        self, state: FesemMaState, phase: Phase, client: ClientId, report: Report, name: str
    ) -> str | None:
        """A model that began at weights of the client's own has no base: its length is compared with that of the others."""
        return (
            ""
            if not self.order(state, phase, client).models
            else super().base(state, phase, client, report, name)
        )

    def plan(self, state: FesemMaState, view: View) -> Phase:
        last = state.frozen == len(layers_of(state.layout)) - 1 or self.matching == "fixed"
        numbers = self._told_numbers(state)
        if not state.frozen:
            phase = replace(super().plan(state, view), numbers=numbers)
            return replace(phase, ends_round=last) if phase.name == "train" else phase
        cohort = tuple(client for client in state.cohort if client in view.present)
        in_vain = not cohort or view.attempt > 0  # stored models do
        return Phase(
            f"layer{state.frozen}",
            cohort,
            self.entry_sizes(state),
            ends_round=last,
            may_be_empty=in_vain,
            numbers=numbers,
        )

    def _told_numbers(self, state: FesemMaState) -> dict[str, Expected]:
        """Samples per class, from agents whose task has classes."""
        if self.matching == "fixed" or not self.class_counts:
            return {}
        outputs = layers_of(state.layout)[-1].units
        return {"classes": Expected(outputs, whole=True, required=False)}

    def member_order(self, state: FesemMaState, client: ClientId) -> Order:
        order = self.serve(state, client)
        return replace(
            order, numbers={"mu": self.mu, **({"frozen": _ends(state)} if state.frozen else {})}
        )

    def serve(self, state: FesemMaState, client: ClientId) -> Order:
        order = super().serve(state, client)
        own = self.matching == "fedma" and client in state.assign
        return replace(order, models=(f"@{client}",)) if own else order

    def model(self, state: FesemMaState, key: str) -> Vector:
        if key.startswith("@"):
            return state.stored[key[1:]]
        if key == "mean":
            return mean([(centre, 1.0) for centre in state.models])
        return super().model(state, key)

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        """What comes has the right order of units: clients need to know nothing of matching."""
        start = (
            job.models[0]
            if job.models
            else random_start(job.layout, generator(job.seed, "own start", job.client))
        )
        pull = (
            GradientCorrection(start, job.numbers["mu"])
            if job.numbers.get("mu")
            else GradientCorrection()
        )
        done = local.train(
            start, pull, epochs=job.numbers.get("epochs"), frozen=job.numbers.get("frozen", 0)
        )
        numbers = self._class_counts(job, local)
        bases = {"model": 0} if job.models else {}
        return Report(
            {"model": done.end}, local.examples, numbers, done.steps, done.loss, bases
        ), client_state

    def form_clusters(
        self, state: FesemMaState, reports: Reports, average: Average = MEAN
    ) -> FesemMaState:
        state = _kept(state, reports)
        anchor = state.start if self.warmup_start == "common" else _largest(reports)
        rows = [align(model, anchor, state.layout) for model in state.stored.values()]
        best = kmeans(rows, min(self.n_clusters, len(rows)), n_init=self.restarts, seed=state.seed)
        everybody = (
            mean([(row, 1.0) for row in rows]),
        ) * self.n_clusters  # there a centre without members stays
        return self._maximise(
            replace(
                state,
                models=(*best.centres, *everybody[len(best.centres) :]),
                assign=dict(zip(state.stored, best.labels.tolist(), strict=True)),
                spread=best.inertia / len(rows),
            ),
            average,
        )

    def assign_newcomers(self, state: FesemMaState, reports: Reports) -> FesemMaState:
        """A newcomer joins the centre nearest to its first model, once matched to it."""
        if not reports:
            return state
        state = _kept(state, reports)
        labels, _ = _nearest(state, [client for client, _ in reports])
        joined = {client: int(label) for (client, _), label in zip(reports, labels, strict=True)}
        return replace(state, assign=merged(state.assign, joined))

    def aggregate(
        self, state: FesemMaState, reports: Reports, average: Average = MEAN
    ) -> FesemMaState:
        state = _kept(state, reports)
        if self.matching == "fixed":
            return self._maximise(self._expect(state), average)
        if not state.frozen:
            state = replace(self._expect(state), cohort=tuple(client for client, _ in reports))
        return self._one_layer(state, average)

    def notes(self, state: FesemMaState) -> dict[str, Any]:
        if not state.models:
            return {}
        widths = (
            {"widths": {k: list(state.widths[k]) for k in sorted(state.widths)}}
            if state.widths
            else {}
        )
        return {**super().notes(state), "J": state.spread, "reseeded": state.reseeded, **widths}

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

    def _maximise(self, state: FesemMaState, average: Average = MEAN) -> FesemMaState:
        """M: the unweighted average of the members' latest models in the centre's order of units."""
        models = list(state.models)
        for k in range(self.n_clusters):
            members = [state.stored[client] for client in state.stored if state.assign[client] == k]
            for _ in range(1 + self.sweeps if members else 0):
                models[k] = _matched_mean(members, models[k], state.layout, average)
        return replace(state, models=tuple(models))

    # -- fedma ---------------------------------------------------------------------------------------

    def _class_counts(self, job: Job, local: Local) -> Mapping[str, Any]:
        targets = local.targets("train")
        if self.matching == "fixed" or not self.class_counts or targets.dtype.kind == "f":
            return {}
        return {"classes": np.bincount(targets, minlength=layers_of(job.layout)[-1].units).tolist()}

    def _one_layer(self, state: FesemMaState, average: Average = MEAN) -> FesemMaState:
        """The next layer of every cluster that has work in it; behind the last hidden one the pass ends."""
        last = state.frozen == len(layers_of(state.layout)) - 1
        stored, widths = dict(state.stored), dict(state.widths)
        places: dict[ClientId, Permutation] = {}
        for k, members in _passing(state).items():
            models = [state.stored[client] for client in members]
            inputs = _inputs(state, k, members)
            if last:
                weights = np.array([state.counts[client] for client in members], np.float64)
                models = average_last(models, state.layout, inputs, weights)
            else:
                draw = generator(state.seed, "fedma", state.passes, k, state.frozen)
                models, found = match_layer(
                    models, state.layout, state.frozen, inputs, self._prior, draw
                )
                places.update(zip(members, found.places, strict=True))
                widths[str(k)] = (*widths.get(str(k), ())[: state.frozen], found.width)
            stored.update(zip(members, models, strict=True))
        state = replace(state, stored=stored, widths=widths)
        if not last:
            return replace(state, frozen=state.frozen + 1, places=merged({}, places))
        rested = replace(state, frozen=0, cohort=(), places={}, passes=state.passes + 1)
        return self._maximise(rested, average)

    @property
    def _prior(self) -> Prior:
        return Prior(self.noise, self.prior, self.gamma, self.rematch)


def _largest(reports: Reports) -> Vector:
    """The model of the client with the most samples, ties to the lowest id."""
    _, report = max(reports, key=lambda one: one[1].examples)
    return report.vectors["model"]


def _passing(state: FesemMaState) -> dict[int, list[ClientId]]:
    """Who takes part, by cluster: all members where a pass begins with a report, later those who were matched."""
    at_work = {state.assign[client] for client in state.cohort}
    known = state.places if state.frozen else state.assign  # a newcomer waits for the next pass
    return {k: [client for client in known if state.assign[client] == k] for k in sorted(at_work)}


def _inputs(state: FesemMaState, k: int, members: Sequence[ClientId]) -> Inputs:
    if not state.frozen:
        return raw_inputs(state.layout, len(members))
    return Inputs(
        state.widths[str(k)][state.frozen - 1], tuple(state.places[client] for client in members)
    )


def _ends(state: FesemMaState) -> int:
    """How many values of a model the frozen layers are."""
    name = layers_of(state.layout)[state.frozen - 1].name
    return int(state.layout.span_of(name)[-1].stop)


def _counts(report: Report, outputs: int) -> tuple[int, ...]:
    """Samples per class, or all samples in each output's place where a report does not tell them."""
    told = report.numbers.get("classes")
    if (
        isinstance(told, list)
        and len(told) == outputs
        and all(isinstance(n, int) and n >= 0 for n in told)
        and any(told)
    ):
        return tuple(told)
    return (max(report.examples, 1),) * outputs


def _matched_mean(
    members: Sequence[Vector], anchor: Vector, layout: Layout, average: Average = MEAN
) -> Vector:
    """One ordered copy exists at a time, and a sum in float64; a rule needs all copies at once."""
    if average.rule != "mean":
        return average.mean([(align(model, anchor, layout), 1.0) for model in members])
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
            table[i, k] = squared_distance(
                align(state.stored[client], centre, state.layout), centre
            )
        release(state.stored[client])
    labels = table.argmin(axis=1)
    return labels, table[np.arange(len(labels)), labels]


def _kept(state: FesemMaState, reports: Reports) -> FesemMaState:
    """The reports' models as they are: these may be memory-mapped and are not copied."""
    outputs = layers_of(state.layout)[-1].units
    return replace(
        state,
        stored=merged(
            state.stored, {client: report.vectors["model"] for client, report in reports}
        ),
        counts=merged(
            state.counts, {client: _counts(report, outputs) for client, report in reports}
        ),
    )
