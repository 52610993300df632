"""FeSEM-MA: FeSEM whose distances and means match hidden units first.

Papers. Long et al. 2023, Multi-center federated learning (FeSEM), with the layer-wise matching of
Wang et al. 2020, Federated Learning with Matched Averaging (FedMA). The FeSEM repository has no
working FeSEM-MA.

Only plain chains of dense and convolutional layers can be matched: no normalisation, no residual
connections, dropout off.

Mode `fixed`. Widths stay those of the architecture. The units of each model are brought into the
order of the centre's, layer by layer from the input, and the M-step is the plain mean of the
ordered models. There is one phase per round and no retraining between layers.

Mode `fedma`. FedMA's own pass runs in every cluster, and layers become wider. A round of a network
of L layers has L phases. First all invited agents train everything and the E-step follows. Then
each hidden layer is matched and frozen, and the layers after it are trained again. The last layer
is averaged class by class.

Our deviations.
- The paper lets all clients start from one model, whose units need no matching. The first clusters
  are found among models ordered like that common start. With `warmup_start: own` each client starts
  its warm-up from random weights of its own; the first clusters are then found among models ordered
  like that of the client with the most samples, with which FedMA begins too.
- In mode `fedma` devices have room for the architecture and the wire knows one layout. So the wide
  layers stay on the server, and a client gets those global units to which its own were matched, in
  its own order. FedMA drops the others too, but only in the next round.
- Between rounds nothing is wide: the E-step, and the centres that newcomers get and that are
  exported, are those of `fixed`.
- Without `n_clusters` K is the number of groups that cards show, as in FeSEM.
- A client that does not answer, or was not invited, takes part with its stored model. A cluster
  without any report rests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from covey.shared.numerics.averages import MEAN, Average
from covey.shared.numerics.clustering import RUNS, Labels, Matrix, kmeans, refill
from covey.shared.numerics.exact_sum import ExactMean
from covey.shared.numerics.fedma import (
    Inputs,
    Permutation,
    Prior,
    align,
    average_last,
    layers_of,
    match_layer,
    random_start,
    raw_inputs,
)
from covey.shared.numerics.figures import kind_of
from covey.shared.numerics.vectors import Layout, Vector, mean, release, squared_distance
from covey.shared.seeds import generator
from covey.shared.strategies.base import (
    MODEL,
    TRAIN,
    ClientId,
    Expected,
    Facts,
    Order,
    Phase,
    Reports,
    Settings,
    Setup,
    Shown,
    Sums,
    View,
    without,
)
from covey.shared.strategies.bases.centres import MEAN_OF_CENTRES, Centred, MultiCentre, pull
from covey.shared.strategies.bases.cut import with_card
from covey.shared.strategies.bases.hard import START
from covey.shared.strategies.bases.single import vectors_of
from covey.shared.strategies.bases.soft import merged
from covey.shared.strategies.client_half import (
    ClientState,
    Drill,
    Job,
    Local,
    Report,
    trained_report,
)
from covey.shared.strategies.expected import A_COUNT, STRENGTH

PULLED = {"mu": STRENGTH, "frozen": A_COUNT}
MOST_FROZEN = 256  # layers
LAYER = (
    "layer"  # phase in which the layers behind the frozen ones are trained; their number follows
)
LAYERS = tuple(f"{LAYER}{number}" for number in range(1, MOST_FROZEN + 1))
SWEEPS = 1  # members are matched again to the mean that they have just made
OWN = "@"  # key of a client's own model; its id follows


@dataclass(frozen=True)
class FesemMaState(Centred):
    """In mode `fedma` the models stored have the matched layers as their clients have them."""

    tensors: tuple[tuple[str, tuple[int, ...]], ...] = ()  # names and shapes of the layout
    # mode `fedma`
    counts: dict[ClientId, tuple[int, ...]] = field(default_factory=dict)  # samples per class
    passes: int = 0  # passes that are complete
    frozen: int = 0  # layers that this pass has matched; 0 between passes
    cohort: tuple[ClientId, ...] = ()  # clients that continue to train in this pass
    # the global unit of each own unit in the layer matched last, of all clients in the pass
    places: dict[ClientId, Permutation] = field(default_factory=dict)
    widths: dict[str, tuple[int, ...]] = field(default_factory=dict)  # by cluster, of its last pass

    @property
    def layout(self) -> Layout:
        return Layout.from_wire({"trainable": len(self.tensors), "tensors": self.tensors})


class FesemMa(MultiCentre[FesemMaState]):
    """Averaging by index blurs networks whose units are in different orders; matching does not."""

    facts: ClassVar[Facts] = replace(
        MultiCentre.facts,
        numbers=MultiCentre.facts.numbers_with(dict.fromkeys((TRAIN, *LAYERS), PULLED)),
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
    matching: Literal["fixed", "fedma"] = Field(
        "fixed",
        description="fixed: keep the widths of the layers. fedma: widen the layers on the server, "
        "with one phase per layer; for few agents only.",
    )
    noise: float = Field(
        1.0,
        gt=0,
        description="The variance of an agent's unit around its global unit (matching: fedma).",
    )
    gamma: float = Field(
        1.0, gt=0, description="The larger, the more global units there are (matching: fedma)."
    )

    def refuses(self, settings: Settings) -> str:
        if isinstance(settings, Average) and settings.single and self.matching == "fedma":
            return "matching: fedma makes global layers out of all members' units; take matching: fixed"
        return super().refuses(settings)

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

    def plan(self, state: FesemMaState, view: View) -> Phase:
        hidden = _hidden_layers(state)
        is_last = self.matching == "fixed" or state.frozen == hidden
        numbers = self._expected_numbers(state)
        if not state.frozen:
            phase = super().plan(state, view)
            phase = replace(phase, numbers={**phase.numbers, **numbers})
            if phase.name == TRAIN:
                return replace(phase, ends_round=is_last)
            return phase
        cohort = [client for client in state.cohort if client in view.present]
        # the stored models do if no agent is left or an attempt failed
        may_be_empty = not cohort or view.attempt > 0
        return Phase(
            LAYERS[state.frozen - 1],
            tuple(cohort),
            self.entry_sizes(state),
            ends_round=is_last,
            may_be_empty=may_be_empty,
            numbers=numbers,
        )

    def _expected_numbers(self, state: FesemMaState) -> dict[str, Expected]:
        """Samples per class, from agents whose task has classes."""
        if self.matching == "fixed":
            return {}
        counts = Expected(_outputs(state.layout), whole=True, required=False)
        return {"classes": counts}

    def entry_order(self, state: FesemMaState) -> Order:
        if state.models:
            return Order(models=(MEAN_OF_CENTRES,))
        models = () if self.warmup_start == "own" else (START,)
        return Order(models=models)

    def member_order(self, state: FesemMaState, client: ClientId) -> Order:
        numbers: dict[str, Any] = {"mu": self.mu}
        if state.frozen:
            numbers["frozen"] = _frozen_values(state)
        return replace(self.serve(state, client), numbers=numbers)

    def serve(self, state: FesemMaState, client: ClientId) -> Order:
        order = super().serve(state, client)
        if self.matching == "fedma" and client in state.assign:
            return replace(order, models=(f"{OWN}{client}",))
        return order

    def model(self, state: FesemMaState, key: str) -> Vector:
        if key.startswith(OWN):
            return state.stored[key.removeprefix(OWN)]
        return super().model(state, key)

    # -- the client --------------------------------------------------------------------------------

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        """Train. Models arrive in the client's order of units: it need not know of matching."""
        if job.models:
            start = job.models[0]
            base = 0
        else:
            start = random_start(job.layout, generator(job.seed, "own start", job.client))
            base = None
        trained = None
        if frozen := job.numbers.get("frozen"):
            trained = np.arange(start.size) >= frozen
        result = local.train(start, Drill(pull(start, job.numbers.get("mu")), trained=trained))
        numbers = self._class_counts(job, local)
        report = trained_report(result, local, numbers, base=base)
        return with_card(report, job, local), client_state

    def _class_counts(self, job: Job, local: Local) -> Mapping[str, Any]:
        targets = local.targets("train")
        has_classes = kind_of(targets) == "classes"
        if self.matching == "fixed" or not has_classes:
            return {}
        counts = np.bincount(targets, minlength=_outputs(job.layout))
        return {"classes": counts.tolist()}

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
        best = kmeans(rows, min(state.count, len(rows)), n_init=RUNS, seed=state.seed)
        # a centre that has no members is the mean of all
        everybody = _plain_mean(rows)
        missing = state.count - len(best.centres)
        without_members = (everybody,) * missing
        centres = best.centres + without_members
        assign = dict(zip(state.stored, best.labels.tolist(), strict=True))
        state = replace(state, models=centres, assign=assign, spread=best.inertia / len(rows))
        return self._m_step(state, average)

    def keep(self, state: FesemMaState, reports: Reports) -> FesemMaState:
        outputs = _outputs(state.layout)
        models = vectors_of(reports)
        counts = {client: _counts(report, outputs) for client, report in reports}
        return replace(
            state, stored=merged(state.stored, models), counts=merged(state.counts, counts)
        )

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
        state = self.keep(state, reports)
        if self.matching == "fixed":
            state = self._e_step(state)
            return self._m_step(state, sums.average)
        if not state.frozen:
            state = self._e_step(state)
            state = replace(state, cohort=tuple(client for client, _ in reports))
        return self._next_layer(state, sums.average)

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
            for _ in range(1 + SWEEPS):
                models[k] = _matched_mean(members, models[k], state.layout, average)
        return replace(state, models=tuple(models))

    def shown(self, state: FesemMaState) -> Shown:
        if not state.models:
            return Shown()
        facts = dict(super().shown(state).notes)
        if state.widths:
            widths = {k: list(of_cluster) for k, of_cluster in sorted(state.widths.items())}
            facts["widths"] = widths
        return Shown(facts)

    # -- mode `fedma` ------------------------------------------------------------------------------

    def _next_layer(self, state: FesemMaState, average: Average = MEAN) -> FesemMaState:
        """Match the next layer in every cluster of the pass; the pass ends with the last layer."""
        if state.frozen == _hidden_layers(state):
            return self._end_of_pass(state, average)
        stored = dict(state.stored)
        widths = dict(state.widths)
        places: dict[ClientId, Permutation] = {}
        passing = _members_in_pass(state)
        for k, members in passing.items():
            models = [state.stored[client] for client in members]
            inputs = _inputs(state, k, members)
            draw = generator(state.seed, "fedma", state.passes, k, state.frozen)
            prior = Prior(self.noise, mass=self.gamma)
            matched, units = match_layer(
                models, state.layout, state.frozen, inputs=inputs, prior=prior, draw=draw
            )
            stored.update(zip(members, matched, strict=True))
            places.update(zip(members, units.places, strict=True))
            key = str(k)
            matched_before = widths.get(key, ())[: state.frozen]
            widths[key] = (*matched_before, units.width)
        return replace(
            state, stored=stored, widths=widths, frozen=state.frozen + 1, places=merged({}, places)
        )

    def _end_of_pass(self, state: FesemMaState, average: Average) -> FesemMaState:
        """Average the last layer class by class; then the M-step makes the centres."""
        stored = dict(state.stored)
        passing = _members_in_pass(state)
        for k, members in passing.items():
            models = [state.stored[client] for client in members]
            inputs = _inputs(state, k, members)
            counts = [state.counts[client] for client in members]
            averaged = average_last(models, state.layout, inputs, np.array(counts, np.float64))
            stored.update(zip(members, averaged, strict=True))
        state = replace(
            state, stored=stored, frozen=0, cohort=(), places={}, passes=state.passes + 1
        )
        return self._m_step(state, average)

    def forget(self, state: FesemMaState, client: ClientId) -> FesemMaState:
        return replace(
            super().forget(state, client),
            counts=without(state.counts, client),
            cohort=without(state.cohort, client),
            places=without(state.places, client),
        )


def _hidden_layers(state: FesemMaState) -> int:
    return len(layers_of(state.layout)) - 1


def _outputs(layout: Layout) -> int:
    """The number of units in the last layer."""
    last = layers_of(layout)[-1]
    return last.units


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


def _members_in_pass(state: FesemMaState) -> dict[int, list[ClientId]]:
    """The members of each cluster that takes part in the pass.

    A cluster with a report takes part with all its members, later in the pass with those that were
    matched: a newcomer waits for the next pass.
    """
    known = list(state.assign)
    if state.frozen:
        known = list(state.places)
    clusters: set[int] = set()
    for client in state.cohort:
        cluster = state.assign[client]
        clusters.add(cluster)
    members: dict[int, list[ClientId]] = {k: [] for k in sorted(clusters)}
    for client in known:
        cluster = state.assign[client]
        if cluster in members:
            members[cluster].append(client)
    return members


def _inputs(state: FesemMaState, k: int, members: Sequence[ClientId]) -> Inputs:
    """What the next layer of cluster k reads."""
    if not state.frozen:
        return raw_inputs(state.layout, len(members))
    width = state.widths[str(k)][state.frozen - 1]
    return Inputs(width, tuple(state.places[client] for client in members))


def _frozen_values(state: FesemMaState) -> int:
    """The number of a model's values that belong to frozen layers."""
    layout = state.layout
    last = layout.span_of(layers_of(layout)[state.frozen - 1].name)[-1]
    return int(last.stop)


def _counts(report: Report, outputs: int) -> tuple[int, ...]:
    """Samples per class (outputs,); all samples for each class where a report has none."""
    counts = report.numbers.get("classes")
    fallback = (max(report.examples, 1),) * outputs
    if not isinstance(counts, list) or len(counts) != outputs:
        return fallback
    for count in counts:
        if not isinstance(count, int) or count < 0:
            return fallback
    if not any(counts):
        return fallback
    return tuple(counts)


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
