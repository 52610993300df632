"""IFCA and HypoCluster(K): K hypotheses; every client takes the one with its lowest training loss and improves it.

Ghosh, Chung, Yin, Ramchandran 2020, An Efficient Framework for Clustered Federated Learning, algorithm 1, with model
or gradient averaging; Mansour, Mohri, Ro, Suresh 2020, Three Approaches for Personalization, algorithm HypCluster,
which is the same alternation: `hypocluster` is another name for it. From random models one hypothesis is often ahead for
everybody, gets all the training and stays ahead. So by default each client keeps a random group for three rounds first, as
for twenty in the authors' code for FEMNIST; `initial: random` is the paper's. Our choices: models are
weighted by samples unless `weights` is uniform, ties go to the first hypothesis, and a client that is evaluated
chooses again, by its training loss. `select_on: test` repeats a published leak and is here to reproduce it only.
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
)
from covey.shared.strategies.bases.hard import Clustered, ManyModels, joined
from covey.shared.strategies.bases.losses import comparable, lowest
from covey.shared.strategies.bases.single import averaged
from covey.shared.strategies.fedsgd import decayed

COLLAPSED = 5  # rounds in which all reporters choose the same hypothesis
RESTART = "restart"  # phase of a short run, with the number of its round
HEAD, TRUNK = "head", "trunk"  # keys of a model's parts, where the trunk is shared


@dataclass(frozen=True)
class IfcaState(Clustered):
    """Besides the hypotheses: the server's learning rate and its `schedule`, where clients send gradients; rounds since
    each was last chosen (`idle`), `head` the span of the final layer, what is left of the start models (`spare`), and
    the state of the initialisation: `candidates` of kmeans++ by client, or the number of restarts done, rounds of this
    one, and the best so far with its mean loss."""

    seed: int = 0
    lr: float = 0.0
    schedule: Schedule = ()
    head: tuple[int, int] = (0, 0)
    round: int = 0
    idle: tuple[int, ...] = ()
    spare: tuple[Vector, ...] = ()
    candidates: tuple[tuple[ClientId, Vector], ...] = ()
    trial: int = 0
    trial_round: int = 0
    best: tuple[Vector, ...] = ()
    best_loss: float | None = None


class Ifca(ManyModels[IfcaState]):
    """No clustering on the server: the clients choose, in every round anew."""

    summary: ClassVar[str] = "K models; each client trains the one with its lowest training loss"
    source: ClassVar[str] = "Ghosh et al. 2020, Mansour et al. 2020"

    name: Literal["ifca", "hypocluster"] = "ifca"
    n_clusters: int = Field(2, ge=1, description="K, the number of hypotheses")
    averaging: Literal["model", "gradient"] = Field(
        "model",
        description="gradient: one gradient per client, summed by choice and divided by all reporters",
    )
    weights: Literal["samples", "uniform"] = Field(
        "samples", description="of the clients in a mean of models"
    )
    initial: Literal["random", "restarts", "kmeans++", "warmup"] = Field(
        "warmup",
        description="random: other models; restarts: short runs, the lowest mean loss goes on; kmeans++: models of clients that the "
        "others serve worst; warmup: random groups of clients first",
    )
    restarts: int = Field(1, ge=1, description="how many short runs")
    restart_rounds: int = Field(
        3, ge=1, description="rounds of a short run (on top of the run's own)"
    )
    candidates: int = Field(
        20, ge=1, description="kmeans++: clients that train a model to choose from"
    )
    warmup_rounds: int = Field(
        3,
        ge=1,
        description="warmup: rounds during which a client keeps its random group; 20 where initial is given",
    )
    shared_trunk: bool = Field(
        False, description="hypotheses differ in their final layer only; the rest is one"
    )
    dead_after: int = Field(
        10, ge=1, description="a hypothesis is dead when nobody chose it for so many rounds"
    )
    reseed_dead: bool = Field(
        False, description="put the worst served client's model in a dead one's place"
    )
    select_on: Literal["train", "test"] = Field(
        "train",
        description="test: choose by test accuracy, a leak that some published numbers contain",
    )

    @model_validator(mode="before")
    @classmethod
    def _short_warmup_unless_asked_for(cls, data: Any) -> Any:
        """`initial: warmup` has the 20 rounds of the authors' code; only as a default it is short."""
        if not isinstance(data, Mapping) or "warmup_rounds" in data:
            return data
        return {**data, "warmup_rounds": 20 if "initial" in data else 3}

    @model_validator(mode="after")
    def _restarts_are_asked_for(self) -> Self:
        if (self.restarts > 1) != (self.initial == "restarts"):
            raise ValueError(
                "several restarts belong to initial: restarts, and it wants restarts of 2 or more"
            )
        return self

    @property
    def starts(self) -> int:
        return self.n_clusters * self.restarts

    def init(self, setup: Setup) -> IfcaState:
        span, k = setup.layout.final_layer, self.n_clusters
        state = IfcaState(
            setup.starts[0],
            seed=setup.seed,
            lr=setup.training.lr,
            schedule=setup.training.schedule(setup.rounds),
            head=(span.start, span.stop),
            idle=(0,) * k,
            spare=setup.starts,
        )
        if self.initial == "kmeans++":
            return state
        spare = setup.starts[k:] if self.initial == "restarts" else ()
        return replace(state, models=self._one_trunk(state, setup.starts[:k]), spare=spare)

    # -- phases ----------------------------------------------------------------------------------------

    def plan(self, state: IfcaState, view: View) -> Phase:
        losses = {"losses": Expected(-self.n_clusters, least=-LARGEST, most=LARGEST)}
        choice = {"choice": Expected(most=self.n_clusters - 1, whole=True), **losses}
        if len(state.models) < self.n_clusters:
            if state.candidates:
                names = tuple(client for client, _ in state.candidates)
                return Phase("score", names, ends_round=False, may_be_empty=True, numbers=losses)
            order = (
                generator(state.seed, "candidates", view.attempt)
                .permutation(sorted(view.present))
                .tolist()
            )
            names = tuple(sorted(order[: self.candidates]))
            return Phase("seed", names, {"model": state.start.size}, ends_round=False)
        sizes: dict[str, int] = {self.averaging: state.start.size}
        if self._trying(
            state
        ):  # names of their own: each of these rounds has its own draws, in all restarts the same
            if state.trial_round == self.restart_rounds:
                return Phase("rate", ends_round=False, may_be_empty=True, numbers=losses)
            return Phase(
                f"{RESTART}{state.trial_round}", sizes=sizes, ends_round=False, numbers=choice
            )
        return Phase(sizes=sizes, numbers=choice)

    def order(self, state: IfcaState, phase: Phase, client: ClientId) -> Order:
        if phase.name == "seed":
            return Order(models=("start",))
        if self.initial == "warmup" and state.round < self.warmup_rounds:
            group = int(generator(state.seed, "group", client).integers(self.n_clusters))
            return Order(models=self._keys([group]), numbers={"choice": group})
        return Order(models=self._keys(range(len(state.models))), cluster=state.assign.get(client))

    def serve(self, state: IfcaState, client: ClientId) -> Order:
        if not state.models:
            return Order(models=("start",))
        return Order(models=self._keys(range(len(state.models))), cluster=state.assign.get(client))

    def model(self, state: IfcaState, key: str) -> Vector:
        head = slice(*state.head)
        if key == TRUNK:
            return np.delete(state.models[0], head)
        if key.startswith(HEAD):
            return state.models[int(key.removeprefix(HEAD))][head]
        return super().model(state, key)

    def _keys(self, numbers: Sequence[int]) -> tuple[str, ...]:
        return (
            (TRUNK, *(f"{HEAD}{k}" for k in numbers))
            if self.shared_trunk
            else tuple(map(str, numbers))
        )

    # -- the client ------------------------------------------------------------------------------------

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        if job.phase == "seed":
            done = local.train(job.models[0])
            return Report(
                {"model": done.end}, local.examples, {}, done.steps, done.loss, {"model": 0}
            ), client_state
        models = self._hypotheses(job)
        losses = comparable([local.loss(model) for model in models]).tolist()
        if job.phase in ("score", "rate"):
            return Report({}, local.examples, {"losses": losses}), client_state
        at = self._best(models, losses, local)
        numbers = {"choice": job.numbers.get("choice", at), "losses": losses}
        if self.averaging == "gradient":
            gradient = decayed(local.gradient(models[at]), models[at], job)
            return Report(
                {"gradient": gradient}, local.examples, numbers, 1, losses[at]
            ), client_state
        done = local.train(models[at])
        bases = {} if self.shared_trunk else {"model": at}
        return Report(
            {"model": done.end}, local.examples, numbers, done.steps, done.loss, bases
        ), client_state

    def personal(self, job: Job, local: Local, client_state: ClientState) -> Mixture:
        models = self._hypotheses(job)
        losses = [local.loss(model) for model in models] if len(models) > 1 else [0.0]
        return ((1.0, models[self._best(models, losses, local)]),)

    def _hypotheses(self, job: Job) -> tuple[Vector, ...]:
        """Whole models, put together from trunk and heads where these travel apart."""
        if not self.shared_trunk or len(job.models) == 1:
            return job.models
        trunk, *heads = job.models
        at = job.layout.final_layer.start
        return tuple(np.concatenate([trunk[:at], head, trunk[at:]]) for head in heads)

    def _best(self, models: Sequence[Vector], losses: Sequence[float], local: Local) -> int:
        truth = local.targets("test") if self.select_on == "test" else np.empty(0)
        if not len(truth) or truth.dtype.kind == "f":
            return lowest(losses)
        right = [
            int(np.count_nonzero(local.predict(model, "test").argmax(axis=1) == truth))
            for model in models
        ]
        return right.index(max(right))

    # -- the server ------------------------------------------------------------------------------------

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
        valid = [
            (client, report)
            for client, report in reports
            if _choice(report, self.n_clusters) is not None
        ]
        state = self._improve(state, valid, average)
        if phase.name.startswith(RESTART):
            return replace(state, trial_round=state.trial_round + 1)
        chosen = {client: int(report.numbers["choice"]) for client, report in valid}
        used = set(chosen.values())
        idle = tuple(0 if k in used else rounds + bool(used) for k, rounds in enumerate(state.idle))
        state = joined(replace(state, idle=idle), chosen)
        state = self._reseeded(state, valid) if self.reseed_dead else state
        return replace(state, round=state.round + 1)

    def base(
        self, state: IfcaState, phase: Phase, client: ClientId, report: Report, name: str
    ) -> str | None:
        """The hypothesis that the client says it trained; a whole model, also where the trunk travels apart."""
        if name == GRADIENT:
            return ""
        choice = _choice(report, len(state.models))
        return "start" if choice is None else str(choice)

    def notes(self, state: IfcaState) -> dict[str, Any]:
        dead = [k for k, rounds in enumerate(state.idle) if rounds >= self.dead_after]
        facts = {**super().notes(state), "idle": list(state.idle), "dead": dead}
        if self.dead_after in state.idle:
            facts["warning"] = (
                f"nobody chose hypotheses {dead} for {self.dead_after} rounds: fewer clusters (strategy.n_clusters), "
                "another start (strategy.initial) or strategy.reseed_dead may help"
            )
        used = [k for k, rounds in enumerate(state.idle) if not rounds]
        if self.n_clusters > 1 and len(used) == 1 and sorted(state.idle)[1] >= COLLAPSED:
            facts["warning_clusters"] = (
                f"all agents choose hypothesis {used[0]}, the others do nothing: this run is FedAvg. Another start "
                "(strategy.initial) may help, or there are no groups"
            )
        return facts

    def _improve(self, state: IfcaState, reports: Reports, average: Average) -> IfcaState:
        models = []
        for k, model in enumerate(state.models):
            own = [(client, report) for client, report in reports if report.numbers["choice"] == k]
            models.append(self._moved(state, model, own, len(reports), average))
        if not self.shared_trunk or not reports:
            return replace(state, models=tuple(models))
        trunk = self._moved(state, state.models[0], reports, len(reports), average)
        return replace(state, models=self._one_trunk(state, (trunk, *models))[1:])

    def _moved(
        self,
        state: IfcaState,
        model: Vector,
        reports: Reports,
        reporters: int,
        average: Average = MEAN,
    ) -> Vector:
        """A hypothesis after its reports: without any it stays."""
        if self.averaging == "model":
            return averaged(
                reports, otherwise=model, uniform=self.weights == "uniform", average=average
            )
        lr = state.lr * factor_in(state.schedule, state.round)
        steps = [(report.vectors["gradient"], -lr / reporters) for _, report in reports]
        return average.combine([(model, 1.0)], steps) if steps else model

    def _one_trunk(self, state: IfcaState, models: Sequence[Vector]) -> tuple[Vector, ...]:
        """The models, all with the first one's trunk where it is shared."""
        if not self.shared_trunk:
            return tuple(models)
        first, last = state.head
        return tuple(
            np.concatenate([models[0][:first], one[first:last], models[0][last:]]) for one in models
        )

    def _reseeded(self, state: IfcaState, reports: Reports) -> IfcaState:
        """Dead hypotheses become the models of the clients that are served worst, one each."""
        dead = [k for k, rounds in enumerate(state.idle) if rounds >= self.dead_after]
        worst = sorted(
            ((_loss(report), client, report) for client, report in reports),
            key=lambda one: (-one[0], one[1]),
        )
        models, idle = list(state.models), list(state.idle)
        for k, (_, _, report) in zip(dead, worst, strict=False):
            own = self._moved(state, models[report.numbers["choice"]], [("", report)], 1)
            models[k], idle[k] = own, 0
        shared = self._one_trunk(state, (state.models[0], *models))[1:]
        return replace(state, models=shared, idle=tuple(idle))

    # -- privacy ---------------------------------------------------------------------------------------

    def private_routes(self) -> Routes:
        wrong = {
            "averaging: gradient": self.averaging == "gradient",
            "shared_trunk": self.shared_trunk,
            "reseed_dead": self.reseed_dead,
            f"initial: {self.initial}": self.initial in ("restarts", "kmeans++"),
        }
        named = [name for name, found in wrong.items() if found]
        if named:
            raise ValueError(
                f"ifca's {' and '.join(named)} would use models or losses of single agents outside the account; leave "
                "it out (initial: random or warmup is possible)"
            )
        return "chosen"

    def private_choices(self, state: IfcaState, reports: Reports) -> Mapping[ClientId, int]:
        found = {client: _choice(report, self.n_clusters) for client, report in reports}
        return {client: choice for client, choice in found.items() if choice is not None}

    def private_fold(
        self, state: IfcaState, models: tuple[Vector, ...], choices: Mapping[ClientId, int]
    ) -> IfcaState:
        used = set(choices.values())
        idle = tuple(0 if k in used else rounds + bool(used) for k, rounds in enumerate(state.idle))
        return joined(replace(state, models=models, idle=idle, round=state.round + 1), choices)

    def check_local_privacy(self) -> None:
        raise ValueError(
            "ifca's reports hold the choice of a cluster, which is made from the data and not by DP-SGD"
        )

    # -- initialisation --------------------------------------------------------------------------------

    def _trying(self, state: IfcaState) -> bool:
        return self.initial == "restarts" and state.trial < self.restarts

    def _rated(self, state: IfcaState, reports: Reports) -> IfcaState:
        """The end of a restart: the better of it and the best so far is kept."""
        total = sum(report.examples for _, report in reports)
        loss = (
            math.fsum(_loss(report) * report.examples for _, report in reports) / total
            if total
            else math.inf
        )
        if not math.isfinite(loss):
            loss = float(np.finfo(np.float64).max)
        if state.best_loss is None or loss < state.best_loss:
            state = replace(state, best=state.models, best_loss=loss)
        done, k = state.trial + 1, self.n_clusters
        models = self._one_trunk(state, state.spare[:k]) if done < self.restarts else state.best
        best = state.best if done < self.restarts else ()
        return replace(
            state, models=models, best=best, spare=state.spare[k:], trial=done, trial_round=0
        )

    def _first_centre(self, state: IfcaState, reports: Reports) -> IfcaState:
        models = tuple((client, report.vectors["model"]) for client, report in reports)
        first = int(generator(state.seed, "first centre").integers(len(models)))
        return self._chosen(replace(state, candidates=models), first)

    def _next_centre(self, state: IfcaState, reports: Reports) -> IfcaState:
        """The model of the candidate whom the centres so far serve worst; who did not answer counts as served best."""
        losses = {client: _loss(report) for client, report in reports}
        served = [losses.get(client, -math.inf) for client, _ in state.candidates]
        return self._chosen(state, served.index(max(served)))

    def _chosen(self, state: IfcaState, at: int) -> IfcaState:
        """The candidate becomes a centre. Where too few are left, the rest are start models."""
        models = (*state.models, state.candidates[at][1])
        left = state.candidates[:at] + state.candidates[at + 1 :]
        if not left:
            models = (*models, *state.spare)[: self.n_clusters]
        if len(models) < self.n_clusters:
            return replace(state, models=models, candidates=left)
        return replace(state, models=self._one_trunk(state, models), candidates=(), spare=())


def _choice(report: Report, clusters: int) -> int | None:
    """The hypothesis that a client chose, if there is such a one."""
    choice = report.numbers.get("choice")
    return choice if isinstance(choice, int) and 0 <= choice < clusters else None


def _loss(report: Report) -> float:
    """The lowest of a client's losses; a report without any counts as served well."""
    losses = report.numbers.get("losses")
    numbers = (
        [float(loss) for loss in losses if isinstance(loss, int | float)]
        if isinstance(losses, list)
        else []
    )
    return min(numbers, default=0.0)
