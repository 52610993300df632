"""Where the K hypotheses of IFCA come from: phases of their own before the first round, or groups in the first rounds.

Each initialisation begins with the initial models as `spare`, plans the phases that it needs, and folds them. `random` needs
none: the initial models are the hypotheses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from covey.shared.numerics.vectors import Vector
from covey.shared.seeds import generator
from covey.shared.strategies.base import MODEL, ClientId, Expected, Phase, Reports, View
from covey.shared.strategies.bases.cut import Tested
from covey.shared.strategies.client_half import Report
from covey.shared.strategies.training import Schedule

# names of phases
SEED = "seed"  # kmeans++: clients train a model that can become a hypothesis
SCORE = "score"  # kmeans++: these clients send their losses
RATE = "rate"  # restarts: clients send their losses at the end of a short run
RESTART = "restart"  # restarts: a round of a short run; the number of the round follows
SEEDING = (SEED, SCORE, RATE)  # phases whose reports change no hypothesis by a mean

RESTART_ROUNDS = 3  # restarts: the rounds of a short run
# each has its own name, so its own draws: the same in all restarts
SHORT_ROUNDS = tuple(f"{RESTART}{number}" for number in range(RESTART_ROUNDS))
CANDIDATES = 20  # kmeans++: clients that train a model

Models = tuple[Vector, ...]  # (d,) each
Candidate = tuple[ClientId, Vector]  # a model (d,) that can become a hypothesis, and who trained it


@dataclass(frozen=True)
class Hypotheses(Tested):
    """The hypotheses are `models`; the cluster of a client is its latest choice."""

    count: int = 0  # K; 0 until the cards have come, if agents are asked for them
    seed: int = 0
    lr: float = 0.0  # the server's learning rate, where clients send gradients
    schedule: Schedule = ()  # of that rate
    head: tuple[int, int] = (0, 0)  # start and stop of the final layer in a model
    round: int = 0  # rounds that are complete
    chooses_first: bool = False  # clients choose in a phase of their own
    chosen: dict[ClientId, int] = field(default_factory=dict)  # in that of the present round
    idle: tuple[int, ...] = ()  # rounds since each hypothesis was last chosen
    spare: Models = ()  # initial models that are not used yet

    # initial: kmeans++
    candidates: tuple[Candidate, ...] = ()  # those that are no hypothesis yet

    # initial: restarts
    trial: int = 0  # short runs that are complete
    trial_round: int = 0  # complete rounds of the present one
    best: Models = ()  # the hypotheses of the best short run
    best_loss: float | None = None  # their mean loss


@dataclass(frozen=True)
class Random:
    """Independent random models, as in the paper."""

    clusters: int  # K

    def begin(self, state: Hypotheses) -> Hypotheses:
        """The state before the first phase; its `spare` are all initial models."""
        k = self.clusters
        return replace(state, models=state.spare[:k], spare=state.spare[k:])

    def is_over(self, state: Hypotheses) -> bool:
        """Whether clients choose among K hypotheses in rounds of the run."""
        return len(state.models) == self.clusters

    def plan(self, state: Hypotheses, view: View, round_: Phase) -> Phase | None:
        """The next phase; None for a round of the run, which is `round_`."""
        return None

    def group(self, state: Hypotheses, client: ClientId) -> int | None:
        """The hypothesis that a client trains without a choice; None where it chooses."""
        return None

    def fold(self, state: Hypotheses, phase: Phase, reports: Reports) -> Hypotheses:
        """The state after a phase that `plan` has named. A round of a short run has moved the hypotheses already."""
        return state


@dataclass(frozen=True)
class Warmup(Random):
    """In the first rounds each client trains the hypothesis of a random group."""

    rounds: int

    def is_over(self, state: Hypotheses) -> bool:
        return state.round >= self.rounds

    def group(self, state: Hypotheses, client: ClientId) -> int | None:
        if self.is_over(state):
            return None
        return int(generator(state.seed, "group", client).integers(self.clusters))


@dataclass(frozen=True)
class Restarts(Random):
    """Several short runs from random models, of which the one with the lowest mean loss continues."""

    runs: int

    def is_over(self, state: Hypotheses) -> bool:
        return state.trial >= self.runs

    def plan(self, state: Hypotheses, view: View, round_: Phase) -> Phase | None:
        if self.is_over(state):
            return None
        if state.trial_round == RESTART_ROUNDS:
            return Phase(RATE, ends_round=False, may_be_empty=True, numbers=_losses(round_))
        return replace(round_, name=SHORT_ROUNDS[state.trial_round], ends_round=False)

    def fold(self, state: Hypotheses, phase: Phase, reports: Reports) -> Hypotheses:
        if phase.name != RATE:
            return replace(state, trial_round=state.trial_round + 1)
        loss = _mean_loss(reports)
        if state.best_loss is None or loss < state.best_loss:
            state = replace(state, best=state.models, best_loss=loss)
        state = replace(self.begin(state), trial=state.trial + 1, trial_round=0)
        return replace(state, models=state.best, best=()) if self.is_over(state) else state


@dataclass(frozen=True)
class KMeansPlusPlus(Random):
    """Models of clients that the other hypotheses serve worst."""

    def begin(self, state: Hypotheses) -> Hypotheses:
        return state

    def plan(self, state: Hypotheses, view: View, round_: Phase) -> Phase | None:
        """Clients train candidates, then send their losses until K are chosen."""
        if self.is_over(state):
            return None
        if state.candidates:
            cohort = tuple(client for client, _ in state.candidates)
            return Phase(
                SCORE, cohort, ends_round=False, may_be_empty=True, numbers=_losses(round_)
            )
        draw = generator(state.seed, "candidates", view.attempt)
        order = draw.permutation(sorted(view.present)).tolist()
        cohort = tuple(sorted(order[:CANDIDATES]))
        return Phase(SEED, cohort, {MODEL: state.start.size}, ends_round=False)

    def fold(self, state: Hypotheses, phase: Phase, reports: Reports) -> Hypotheses:
        """One candidate at random, then that of the client whom the centres so far serve worst.

        A client that did not answer counts as served best.
        """
        if phase.name == SEED:
            candidates = tuple((client, report.vectors[MODEL]) for client, report in reports)
            first = generator(state.seed, "first centre").integers(len(candidates))
            return self._chosen(replace(state, candidates=candidates), int(first))
        losses = {client: lowest_loss(report) for client, report in reports}
        served = [losses.get(client, -math.inf) for client, _ in state.candidates]
        return self._chosen(state, served.index(max(served)))

    def _chosen(self, state: Hypotheses, place: int) -> Hypotheses:
        """Make a candidate a centre. Initial models fill up where too few candidates are left."""
        _, model = state.candidates[place]
        models = (*state.models, model)
        left = state.candidates[:place] + state.candidates[place + 1 :]
        if not left:
            models = (*models, *state.spare)[: self.clusters]
        if len(models) < self.clusters:
            return replace(state, models=models, candidates=left)
        return replace(state, models=models, candidates=(), spare=())


def lowest_loss(report: Report) -> float:
    """The lowest of a client's losses; a report without any counts as served well."""
    losses = report.numbers.get("losses")
    if not isinstance(losses, list):
        return 0.0
    return min([float(loss) for loss in losses if isinstance(loss, int | float)], default=0.0)


def _losses(round_: Phase) -> dict[str, Expected]:
    """The losses alone, of the numbers that a round asks for."""
    return {"losses": round_.numbers["losses"]}


def _mean_loss(reports: Reports) -> float:
    """The mean of the clients' lowest losses by samples; a finite number in any case."""
    total = sum(report.examples for _, report in reports)
    worst = float(np.finfo(np.float64).max)
    if not total:
        return worst
    mean = math.fsum([lowest_loss(report) * report.examples for _, report in reports]) / total
    return mean if math.isfinite(mean) else worst
