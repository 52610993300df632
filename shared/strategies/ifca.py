"""IFCA and HypoCluster(K): each client trains the one of K models that has its lowest loss.

Papers. Ghosh, Chung, Yin, Ramchandran 2020, An Efficient Framework for Clustered Federated
Learning, algorithm 1, with model or gradient averaging. Mansour, Mohri, Ro, Suresh 2020, Three
Approaches for Personalization, algorithm HypCluster, is the same alternation: `hypocluster` is
another name for it.

Our deviations.
- Initialisation. From random models one hypothesis is often ahead for everybody, gets all the
  training and stays ahead. By default each client therefore keeps a random group for three rounds
  first; the authors' code does so for twenty rounds on FEMNIST. `initial: random` is the paper's.
- Models are weighted by samples unless `weights` is uniform.
- Ties go to the first hypothesis.
- A client that is evaluated chooses again, by its training loss.
- `select_on: test` repeats a published leak of test data and exists to reproduce it only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from covey.shared.numerics.averages import MEAN, Average
from covey.shared.numerics.vectors import Vector
from covey.shared.seeds import generator
from covey.shared.strategies.base import (
    GRADIENT,
    LARGEST,
    MODEL,
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
    Routes,
    Schedule,
    Setup,
    View,
    factor_in,
    trained_report,
)
from covey.shared.strategies.bases.hard import START, Clustered, ManyModels, joined
from covey.shared.strategies.bases.losses import comparable, lowest
from covey.shared.strategies.bases.single import averaged
from covey.shared.strategies.fedsgd import decayed

COLLAPSED = 5  # rounds in which all reporters choose the same hypothesis

# names of phases
SEED = "seed"  # kmeans++: clients train a model that can become a hypothesis
SCORE = "score"  # kmeans++: these clients send their losses
RATE = "rate"  # restarts: clients send their losses at the end of a short run
RESTART = "restart"  # restarts: a round of a short run; the number of the round follows

# keys of a model's parts, where the trunk is shared
HEAD = "head"
TRUNK = "trunk"


@dataclass(frozen=True)
class IfcaState(Clustered):
    """The hypotheses are `models`; the cluster of a client is its latest choice."""

    seed: int = 0
    lr: float = 0.0  # the server's learning rate, where clients send gradients
    schedule: Schedule = ()  # of that rate
    head: tuple[int, int] = (0, 0)  # start and stop of the final layer in a model
    round: int = 0  # rounds that are complete
    idle: tuple[int, ...] = ()  # rounds since each hypothesis was last chosen
    spare: tuple[Vector, ...] = ()  # initial models that are not used yet

    # initial: kmeans++
    candidates: tuple[tuple[ClientId, Vector], ...] = ()  # models that can become hypotheses

    # initial: restarts
    trial: int = 0  # short runs that are complete
    trial_round: int = 0  # complete rounds of the present one
    best: tuple[Vector, ...] = ()  # the hypotheses of the best short run
    best_loss: float | None = None  # their mean loss


class Ifca(ManyModels[IfcaState]):
    """The server clusters nothing: clients choose again in every round."""

    summary: ClassVar[str] = "K models; each client trains the one with its lowest training loss"
    source: ClassVar[str] = "Ghosh et al. 2020, Mansour et al. 2020"

    name: Literal["ifca", "hypocluster"] = "ifca"
    n_clusters: int = Field(2, ge=1, description="K: the number of hypotheses.")
    averaging: Literal["model", "gradient"] = Field(
        "model",
        description="What clients send. gradient: one gradient per client; a hypothesis moves by "
        "the sum of its clients' gradients divided by the number of all reporters.",
    )
    weights: Literal["samples", "uniform"] = Field(
        "samples", description="The weights of the clients in a mean of models."
    )
    initial: Literal["random", "restarts", "kmeans++", "warmup"] = Field(
        "warmup",
        description="The first hypotheses. random: independent random models. restarts: several "
        "short runs from random models, of which the one with the lowest mean loss continues. "
        "kmeans++: models of clients that the other hypotheses serve worst. "
        "warmup: random groups of clients train one hypothesis each.",
    )
    restarts: int = Field(1, ge=1, description="The number of short runs for initial: restarts.")
    restart_rounds: int = Field(
        3, ge=1, description="The rounds of a short run, in addition to the rounds of the run."
    )
    candidates: int = Field(
        20, ge=1, description="The number of clients that train a model for initial: kmeans++."
    )
    warmup_rounds: int = Field(
        3,
        ge=1,
        description="The rounds during which a client keeps its random group. The default is 20 "
        "if initial: warmup is given explicitly.",
    )
    shared_trunk: bool = Field(
        False,
        description="Hypotheses differ only in their final layer; the other layers are shared.",
    )
    dead_after: int = Field(
        10,
        ge=1,
        description="A hypothesis is dead once no client chose it for this many rounds.",
    )
    reseed_dead: bool = Field(
        False, description="Replace a dead hypothesis by the model of the worst served client."
    )
    select_on: Literal["train", "test"] = Field(
        "train",
        description="The data on which a client chooses. test: choose by test accuracy, a leak "
        "that some published results contain.",
    )

    @model_validator(mode="before")
    @classmethod
    def _short_warmup_unless_asked_for(cls, data: Any) -> Any:
        """`initial: warmup` has the 20 rounds of the authors' code; the default is shorter."""
        if not isinstance(data, Mapping) or "warmup_rounds" in data:
            return data
        rounds = 20 if "initial" in data else 3
        return {**data, "warmup_rounds": rounds}

    @model_validator(mode="after")
    def _restarts_are_asked_for(self) -> Self:
        if (self.restarts > 1) != (self.initial == "restarts"):
            raise ValueError(
                "restarts of 2 or more and initial: restarts belong together: set both or neither"
            )
        return self

    @property
    def starts(self) -> int:
        return self.n_clusters * self.restarts

    def init(self, setup: Setup) -> IfcaState:
        final_layer = setup.layout.final_layer
        k = self.n_clusters
        state = IfcaState(
            setup.starts[0],
            seed=setup.seed,
            lr=setup.training.lr,
            schedule=setup.training.schedule(setup.rounds),
            head=(final_layer.start, final_layer.stop),
            idle=(0,) * k,
            spare=setup.starts,
        )
        if self.initial == "kmeans++":
            return state
        models = self._with_one_trunk(state, setup.starts[:k])
        spare = setup.starts[k:] if self.initial == "restarts" else ()
        return replace(state, models=models, spare=spare)

    # -- phases ------------------------------------------------------------------------------------

    def plan(self, state: IfcaState, view: View) -> Phase:
        losses = {"losses": Expected(-self.n_clusters, least=-LARGEST, most=LARGEST)}
        if len(state.models) < self.n_clusters:
            return self._initialising_phase(state, view, losses)
        sizes: dict[str, int] = {self.averaging: state.start.size}
        choice = Expected(most=self.n_clusters - 1, whole=True)
        numbers = {"choice": choice, **losses}
        if not self._is_trying(state):
            return Phase(sizes=sizes, numbers=numbers)
        if state.trial_round == self.restart_rounds:
            return Phase(RATE, ends_round=False, may_be_empty=True, numbers=losses)
        # Each round of a short run has its own name, so its own draws: the same in all restarts.
        name = f"{RESTART}{state.trial_round}"
        return Phase(name, sizes=sizes, ends_round=False, numbers=numbers)

    def _initialising_phase(
        self, state: IfcaState, view: View, losses: Mapping[str, Expected]
    ) -> Phase:
        """kmeans++: clients train candidates, then send their losses until K are chosen."""
        if state.candidates:
            names = tuple(client for client, _ in state.candidates)
            return Phase(SCORE, names, ends_round=False, may_be_empty=True, numbers=losses)
        draw = generator(state.seed, "candidates", view.attempt)
        order = draw.permutation(sorted(view.present)).tolist()
        names = tuple(sorted(order[: self.candidates]))
        return Phase(SEED, names, {MODEL: state.start.size}, ends_round=False)

    def order(self, state: IfcaState, phase: Phase, client: ClientId) -> Order:
        if phase.name == SEED:
            return Order(models=(START,))
        if self.initial == "warmup" and state.round < self.warmup_rounds:
            draw = generator(state.seed, "group", client)
            group = int(draw.integers(self.n_clusters))
            return Order(models=self._keys([group]), numbers={"choice": group})
        return self._choosing_order(state, client)

    def serve(self, state: IfcaState, client: ClientId) -> Order:
        if not state.models:
            return Order(models=(START,))
        return self._choosing_order(state, client)

    def _choosing_order(self, state: IfcaState, client: ClientId) -> Order:
        """All hypotheses, of which the client chooses one."""
        every_model = range(len(state.models))
        return Order(models=self._keys(every_model), cluster=state.assign.get(client))

    def model(self, state: IfcaState, key: str) -> Vector:
        head = slice(*state.head)
        if key == TRUNK:
            return np.delete(state.models[0], head)
        if key.startswith(HEAD):
            k = int(key.removeprefix(HEAD))
            return state.models[k][head]
        return super().model(state, key)

    def _keys(self, numbers: Sequence[int]) -> tuple[str, ...]:
        """The keys of these hypotheses, or of the trunk and their heads."""
        if not self.shared_trunk:
            return tuple(str(k) for k in numbers)
        heads = [f"{HEAD}{k}" for k in numbers]
        return (TRUNK, *heads)

    # -- the client --------------------------------------------------------------------------------

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        if job.phase == SEED:
            return trained_report(local.train(job.models[0]), local), client_state
        models = self._hypotheses(job)
        losses = comparable([local.loss(model) for model in models]).tolist()
        if job.phase in (SCORE, RATE):
            return Report({}, local.examples, {"losses": losses}), client_state
        best = self._best(models, losses, local)
        # during the warm-up the order names the group, and only its hypothesis was sent
        numbers = {"choice": job.numbers.get("choice", best), "losses": losses}
        model = models[best]
        if self.averaging == "gradient":
            gradient = decayed(local.gradient(model), model, job)
            report = Report({GRADIENT: gradient}, local.examples, numbers, 1, losses[best])
            return report, client_state
        result = local.train(model)
        base = None if self.shared_trunk else best
        return trained_report(result, local, numbers, base=base), client_state

    def personal(self, job: Job, local: Local, client_state: ClientState) -> Mixture:
        models = self._hypotheses(job)
        losses = [0.0]
        if len(models) > 1:
            losses = [local.loss(model) for model in models]
        best = self._best(models, losses, local)
        return ((1.0, models[best]),)

    def _hypotheses(self, job: Job) -> tuple[Vector, ...]:
        """Whole models; a shared trunk and the heads travel apart and are put together here."""
        if not self.shared_trunk or len(job.models) == 1:
            return job.models
        trunk, *heads = job.models
        start = job.layout.final_layer.start
        models = [np.concatenate([trunk[:start], head, trunk[start:]]) for head in heads]
        return tuple(models)

    def _best(self, models: Sequence[Vector], losses: Sequence[float], local: Local) -> int:
        """The hypothesis that the client chooses: argmin_j F_i(theta_j)."""
        if self.select_on == "train":
            return lowest(losses)
        truth = local.targets("test")
        if not len(truth) or truth.dtype.kind == "f":
            return lowest(losses)
        hits: list[int] = []
        for model in models:
            predicted = local.predict(model, "test").argmax(axis=1)
            hits.append(int(np.count_nonzero(predicted == truth)))
        return hits.index(max(hits))

    # -- the server --------------------------------------------------------------------------------

    def fold(
        self, state: IfcaState, phase: Phase, reports: Reports, average: Average = MEAN
    ) -> IfcaState:
        match phase.name:
            case "seed":
                return self._first_centre(state, reports)
            case "score":
                return self._next_centre(state, reports)
            case "rate":
                return self._rated(state, reports)
        valid: list[tuple[ClientId, Report]] = []
        chosen: dict[ClientId, int] = {}
        for client, report in reports:
            choice = _choice(report, self.n_clusters)
            if choice is not None:
                valid.append((client, report))
                chosen[client] = choice
        state = self._aggregate(state, valid, average)
        if phase.name.startswith(RESTART):
            return replace(state, trial_round=state.trial_round + 1)
        state = replace(state, idle=_idle(state, set(chosen.values())))
        state = joined(state, chosen)
        if self.reseed_dead:
            state = self._reseeded(state, valid)
        return replace(state, round=state.round + 1)

    def base(
        self, state: IfcaState, phase: Phase, client: ClientId, report: Report, name: str
    ) -> str | None:
        """The hypothesis that the client claims to have trained: always a whole model."""
        if name == GRADIENT:
            return ""
        choice = _choice(report, len(state.models))
        return START if choice is None else str(choice)

    def notes(self, state: IfcaState) -> dict[str, Any]:
        dead = self._dead(state)
        facts = {**super().notes(state), "idle": list(state.idle), "dead": dead}
        if self.dead_after in state.idle:
            facts["warning"] = (
                f"nobody chose hypotheses {dead} for {self.dead_after} rounds: "
                "fewer clusters (strategy.n_clusters), another initialisation (strategy.initial) "
                "or strategy.reseed_dead may help"
            )
        used = [k for k, rounds in enumerate(state.idle) if not rounds]
        if self.n_clusters > 1 and len(used) == 1 and sorted(state.idle)[1] >= COLLAPSED:
            facts["warning_clusters"] = (
                f"all agents choose hypothesis {used[0]} and the others have no effect: "
                "this run is FedAvg. Another initialisation (strategy.initial) may help, "
                "or there are no groups"
            )
        return facts

    def _dead(self, state: IfcaState) -> list[int]:
        """Hypotheses that nobody chose for a long time."""
        return [k for k, rounds in enumerate(state.idle) if rounds >= self.dead_after]

    def _aggregate(self, state: IfcaState, reports: Reports, average: Average) -> IfcaState:
        """Each hypothesis after the reports of those who chose it."""
        reporters = len(reports)
        models: list[Vector] = []
        for k, model in enumerate(state.models):
            own = [(client, report) for client, report in reports if report.numbers["choice"] == k]
            models.append(self._moved(state, model, own, reporters, average))
        if not self.shared_trunk or not reports:
            return replace(state, models=tuple(models))
        # the trunk learns from all reports
        trunk = self._moved(state, state.models[0], reports, reporters, average)
        _, *with_trunk = self._with_one_trunk(state, (trunk, *models))
        return replace(state, models=tuple(with_trunk))

    def _moved(
        self,
        state: IfcaState,
        model: Vector,
        reports: Reports,
        reporters: int,
        average: Average = MEAN,
    ) -> Vector:
        """A hypothesis (d,) after its reports; without any it stays.

        Args:
            state: has the learning rate.
            model: the hypothesis (d,).
            reports: of those who chose it.
            reporters: the number of all reporters of the round.
            average: the rule that makes an average.
        """
        if self.averaging == "model":
            uniform = self.weights == "uniform"
            return averaged(reports, otherwise=model, uniform=uniform, average=average)
        if not reports:
            return model
        rate = state.lr * factor_in(state.schedule, state.round)
        steps = [(report.vectors[GRADIENT], -rate / reporters) for _, report in reports]
        return average.combine([(model, 1.0)], steps)

    def _with_one_trunk(self, state: IfcaState, models: Sequence[Vector]) -> tuple[Vector, ...]:
        """The models; where the trunk is shared, all have that of the first one."""
        if not self.shared_trunk:
            return tuple(models)
        start, stop = state.head
        before = models[0][:start]
        after = models[0][stop:]
        whole = [np.concatenate([before, model[start:stop], after]) for model in models]
        return tuple(whole)

    def _reseeded(self, state: IfcaState, reports: Reports) -> IfcaState:
        """Replace dead hypotheses by models of the clients that are served worst, one each."""

        def worst_first(item: tuple[ClientId, Report]) -> tuple[float, ClientId]:
            client, report = item
            return -_loss(report), client

        models = list(state.models)
        idle = list(state.idle)
        by_loss = sorted(reports, key=worst_first)
        for k, (client, report) in zip(self._dead(state), by_loss, strict=False):
            chosen = models[report.numbers["choice"]]
            models[k] = self._moved(state, chosen, [(client, report)], 1)
            idle[k] = 0
        _, *with_trunk = self._with_one_trunk(state, (state.models[0], *models))
        return replace(state, models=tuple(with_trunk), idle=tuple(idle))

    # -- privacy -----------------------------------------------------------------------------------

    def private_routes(self) -> Routes:
        leaks = {
            "averaging: gradient": self.averaging == "gradient",
            "shared_trunk": self.shared_trunk,
            "reseed_dead": self.reseed_dead,
            f"initial: {self.initial}": self.initial in ("restarts", "kmeans++"),
        }
        named = [name for name, leaks_data in leaks.items() if leaks_data]
        if named:
            raise ValueError(
                f"ifca's {' and '.join(named)} would use models or losses of single agents outside "
                "the account; leave it out (initial: random or warmup is possible)"
            )
        return "chosen"

    def private_choices(self, state: IfcaState, reports: Reports) -> Mapping[ClientId, int]:
        choices: dict[ClientId, int] = {}
        for client, report in reports:
            choice = _choice(report, self.n_clusters)
            if choice is not None:
                choices[client] = choice
        return choices

    def private_fold(
        self, state: IfcaState, models: tuple[Vector, ...], choices: Mapping[ClientId, int]
    ) -> IfcaState:
        idle = _idle(state, set(choices.values()))
        state = replace(state, models=models, idle=idle, round=state.round + 1)
        return joined(state, choices)

    def check_local_privacy(self) -> None:
        raise ValueError(
            "ifca's reports hold the choice of a cluster, which is made from the data "
            "and not by DP-SGD"
        )

    # -- initialisation ----------------------------------------------------------------------------

    def _is_trying(self, state: IfcaState) -> bool:
        """Is a short run under way?"""
        return self.initial == "restarts" and state.trial < self.restarts

    def _rated(self, state: IfcaState, reports: Reports) -> IfcaState:
        """The end of a short run: the better of it and the best so far is kept."""
        loss = _mean_loss(reports)
        if state.best_loss is None or loss < state.best_loss:
            state = replace(state, best=state.models, best_loss=loss)
        k = self.n_clusters
        complete = state.trial + 1
        next_models = state.spare[:k]
        state = replace(state, spare=state.spare[k:], trial=complete, trial_round=0)
        if complete == self.restarts:
            return replace(state, models=state.best, best=())
        return replace(state, models=self._with_one_trunk(state, next_models))

    def _first_centre(self, state: IfcaState, reports: Reports) -> IfcaState:
        """kmeans++: one candidate at random."""
        models = tuple((client, report.vectors[MODEL]) for client, report in reports)
        draw = generator(state.seed, "first centre")
        first = int(draw.integers(len(models)))
        return self._chosen(replace(state, candidates=models), first)

    def _next_centre(self, state: IfcaState, reports: Reports) -> IfcaState:
        """kmeans++: the candidate of the client whom the centres so far serve worst.

        A client that did not answer counts as served best.
        """
        losses = {client: _loss(report) for client, report in reports}
        served = [losses.get(client, -math.inf) for client, _ in state.candidates]
        worst = served.index(max(served))
        return self._chosen(state, worst)

    def _chosen(self, state: IfcaState, place: int) -> IfcaState:
        """Make a candidate a centre. Initial models fill up where too few candidates are left."""
        _, model = state.candidates[place]
        models = (*state.models, model)
        left = state.candidates[:place] + state.candidates[place + 1 :]
        if not left:
            models = (*models, *state.spare)[: self.n_clusters]
        if len(models) < self.n_clusters:
            return replace(state, models=models, candidates=left)
        complete = self._with_one_trunk(state, models)
        return replace(state, models=complete, candidates=(), spare=())


def _idle(state: IfcaState, used: set[int]) -> tuple[int, ...]:
    """Rounds since each hypothesis was last chosen; a round without any choice does not count."""
    idle: list[int] = []
    for k, rounds in enumerate(state.idle):
        if k in used:
            idle.append(0)
        else:
            idle.append(rounds + bool(used))
    return tuple(idle)


def _choice(report: Report, clusters: int) -> int | None:
    """The hypothesis that a client chose; None where there is no such hypothesis."""
    choice = report.numbers.get("choice")
    if isinstance(choice, int) and 0 <= choice < clusters:
        return choice
    return None


def _loss(report: Report) -> float:
    """The lowest of a client's losses; a report without any counts as served well."""
    losses = report.numbers.get("losses")
    if not isinstance(losses, list):
        return 0.0
    numbers = [float(loss) for loss in losses if isinstance(loss, int | float)]
    return min(numbers, default=0.0)


def _mean_loss(reports: Reports) -> float:
    """The mean of the clients' lowest losses by samples; a finite number in any case."""
    total = sum(report.examples for _, report in reports)
    if not total:
        return float(np.finfo(np.float64).max)
    weighted = [_loss(report) * report.examples for _, report in reports]
    mean = math.fsum(weighted) / total
    if math.isfinite(mean):
        return mean
    return float(np.finfo(np.float64).max)
