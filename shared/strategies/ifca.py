"""IFCA and HypoCluster(K): each client trains the one of K models that has its lowest loss.

Papers. Ghosh, Chung, Yin, Ramchandran 2020, An Efficient Framework for Clustered Federated
Learning, algorithm 1, with model or gradient averaging. Mansour, Mohri, Ro, Suresh 2020, Three
Approaches for Personalization, algorithm HypCluster, is the same alternation: `hypocluster` is
another name for it.

Our deviations.
- Initialisation. From random models one hypothesis is often ahead for all, gets all the
  training and stays ahead. By default each client therefore keeps a random group for three rounds
  first; the authors' code does so for twenty rounds on FEMNIST. `initial: random` is the paper's.
- Without `n_clusters` agents send a card first, and K is the number of groups that the cards show;
  one if no test fires, which is FedAvg.
- Models are weighted by samples unless `weights` is uniform.
- Ties go to the first hypothesis.
- A client that is evaluated chooses again, by its training loss.
- Under secure sums clients choose in a phase of their own, and then get the one hypothesis that they
  train.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from covey.shared.numerics.vectors import Vector, combine
from covey.shared.privacy.settings import SecureSettings
from covey.shared.strategies.base import (
    CHOICE,
    GRADIENT,
    GRADIENTS,
    LARGEST,
    SIGNATURE,
    TRAIN,
    Buffering,
    ClientId,
    Expected,
    Facts,
    Order,
    Phase,
    PrivacyFacet,
    Reports,
    Sealed,
    Serves,
    Settings,
    Setup,
    Shown,
    Sums,
    Term,
    Terms,
    View,
    needs_training,
    without,
)
from covey.shared.strategies.bases.cut import (
    CARD_ORDER,
    CARDS_ALONE,
    WHOLE_CARD_ASKED,
    Numbered,
    shift_facts,
    with_card,
    with_tests,
)
from covey.shared.strategies.bases.hard import START, ManyModels, joined
from covey.shared.strategies.bases.hypotheses import (
    SEED,
    SEEDING,
    SHORT_ROUNDS,
    Hypotheses,
    KMeansPlusPlus,
    Models,
    Random,
    Restarts,
    Warmup,
    lowest_loss,
)
from covey.shared.strategies.bases.losses import comparable, lowest
from covey.shared.strategies.bases.single import counted
from covey.shared.strategies.client_half import (
    ClientState,
    Job,
    Local,
    Mixture,
    Received,
    Report,
    trained_report,
)
from covey.shared.strategies.expected import A_MODEL
from covey.shared.strategies.fedsgd import decayed
from covey.shared.strategies.phase_names import CHOOSE
from covey.shared.strategies.server import Server
from covey.shared.strategies.sums import SumsAtHand
from covey.shared.strategies.training import factor_in

DEAD_AFTER = 10  # rounds in which no client chooses a hypothesis
COLLAPSED = 5  # rounds in which all reporters choose the same hypothesis
SHORT_RUNS = 5  # initial: restarts; the papers ask for several

# keys of a model's parts, where the trunk is shared
HEAD = "head"  # the number of the hypothesis follows
TRUNK = "trunk"  # also of the mean of all reports


class Ifca(Numbered, ManyModels[Hypotheses]):
    """The server clusters nothing: clients choose again in every round."""

    facts: ClassVar[Facts] = Facts(
        phases=(*SEEDING, *SHORT_ROUNDS),
        numbers={SIGNATURE: WHOLE_CARD_ASKED, TRAIN: {CHOICE: A_MODEL}},
        sealed=Sealed({SIGNATURE: "signature", CHOOSE: "choice"}),
    )

    summary: ClassVar[str] = "K models; each client trains the one with its lowest training loss"
    source: ClassVar[str] = "Ghosh et al. 2020, Mansour et al. 2020"

    name: Literal["ifca", "hypocluster"] = "ifca"
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
        description="The first hypotheses. random: independent random models. restarts: five "
        "short runs from random models, of three rounds each and before those of the run, of which the one with the lowest mean loss continues. "
        "kmeans++: models of clients that the other hypotheses serve worst, of twenty that train one. "
        "warmup: random groups of clients train one hypothesis each.",
    )
    warmup_rounds: int = Field(
        3,
        ge=1,
        description="The rounds during which a client keeps its random group. The authors' code has 20.",
    )
    shared_trunk: bool = Field(
        default=False,
        description="Hypotheses differ only in their final layer; the other layers are shared.",
    )
    reseed_dead: bool = Field(
        default=False,
        description="Replace a hypothesis that no client chose for ten rounds by the model of the worst served client.",
    )

    @property
    def _short_runs(self) -> int:
        return SHORT_RUNS if self.initial == "restarts" else 1

    @property
    def starts(self) -> int:
        return self.most_clusters * self._short_runs

    def refuses(self, settings: Settings) -> str:
        if isinstance(settings, Server):
            if self.averaging == "gradient":
                return "agents send gradients, and the step is training.lr (averaging: gradient)"
            if self.shared_trunk:
                return "all hypotheses move the shared trunk (shared_trunk)"
        if needs_training(settings) and self.averaging == "gradient":
            return GRADIENTS
        needs_single = self.shared_trunk or self.reseed_dead
        if isinstance(settings, SecureSettings) and (
            needs_single or self.initial in ("restarts", "kmeans++")
        ):
            return (
                "it needs models or losses of single agents; leave out shared_trunk and reseed_dead, and choose "
                "initial: random or warmup"
            )
        return super().refuses(settings)

    def _initial(self, state: Hypotheses) -> Random:
        """How the first hypotheses come about."""
        match self.initial:
            case "random":
                return Random(state.count)
            case "warmup":
                return Warmup(state.count, self.warmup_rounds)
            case "restarts":
                return Restarts(state.count, SHORT_RUNS)
            case "kmeans++":
                return KMeansPlusPlus(state.count)

    def init(self, setup: Setup) -> Hypotheses:
        final_layer = setup.layout.final_layer
        state = Hypotheses(
            setup.starts[0],
            seed=setup.seed,
            lr=setup.training.lr,
            schedule=setup.training.schedule(setup.rounds),
            head=(final_layer.start, final_layer.stop),
            spare=setup.starts,
            asks=self.asks_in(setup),
            chooses_first=setup.secure is not None,
        )
        return state if state.asks else self._begun(state, self.count())

    def _begun(self, state: Hypotheses, count: int) -> Hypotheses:
        """The state with this number of hypotheses, or before the phases in which they come about."""
        spare = state.spare[: count * self._short_runs]
        state = replace(state, count=count, idle=(0,) * count, spare=spare)
        return self._with_one_trunk(self._initial(state).begin(state))

    # -- phases ------------------------------------------------------------------------------------

    def plan(self, state: Hypotheses, view: View) -> Phase:
        if not state.count:
            return CARDS_ALONE
        # a loss for each hypothesis; during the warm-up a client reports that of its group only
        numbers = {
            CHOICE: Expected(most=state.count - 1, whole=True),
            "losses": Expected(-state.count, least=-LARGEST, most=LARGEST),
        }
        round_ = Phase(sizes={self.averaging: state.start.size}, numbers=numbers)
        phase = self._initial(state).plan(state, view, round_) or round_
        if not state.chooses_first or not self._initial(state).is_over(state):
            return phase
        if state.chosen and not view.attempt:
            return replace(phase, cohort=tuple(state.chosen))
        choice = {CHOICE: numbers[CHOICE]}
        return Phase(CHOOSE, ends_round=False, numbers=choice, draw=TRAIN)

    def order(self, state: Hypotheses, phase: Phase, client: ClientId) -> Order:
        if not state.count:
            return CARD_ORDER
        if phase.name == SEED:
            return Order(models=(START,), whole=True)
        named = self._named(state, client)
        order = self._choosing_order(state, client)
        if named is not None and phase.name != CHOOSE:
            order = Order(models=self._keys([named]), numbers={CHOICE: named})
        return replace(order, whole=self._may_reseed(state))

    def serve(self, state: Hypotheses, client: ClientId) -> Order:
        if not state.models:
            return Order(models=(START,))
        return self._choosing_order(state, client)

    def _named(self, state: Hypotheses, client: ClientId) -> int | None:
        """The hypothesis that an order to train names; None where the client chooses while it trains."""
        group = self._initial(state).group(state, client)
        return state.chosen.get(client) if group is None else group

    def _choosing_order(self, state: Hypotheses, client: ClientId) -> Order:
        """All hypotheses, of which the client chooses one."""
        keys = self._keys(range(len(state.models)))
        return Order(models=keys, cluster=state.assign.get(client))

    def model(self, state: Hypotheses, key: str) -> Vector:
        head = slice(*state.head)
        if key == TRUNK:
            return np.delete(state.models[0], head)
        if key.startswith(HEAD):
            hypothesis = state.models[int(key.removeprefix(HEAD))]
            return hypothesis[head]
        return super().model(state, key)

    def _keys(self, numbers: Sequence[int]) -> tuple[str, ...]:
        """The keys of these hypotheses, or of the trunk and their heads."""
        if not self.shared_trunk:
            return tuple(str(k) for k in numbers)
        return (TRUNK, *[f"{HEAD}{k}" for k in numbers])

    # -- the client --------------------------------------------------------------------------------

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        if job.phase == SIGNATURE:
            return with_card(Report({}, local.examples), job, local), client_state
        if job.phase == SEED:
            return trained_report(local.train(job.models[0]), local), client_state
        models = self._hypotheses(job)
        losses = comparable([local.loss(model) for model in models]).tolist()
        if job.phase in SEEDING:
            return Report({}, local.examples, {"losses": losses}), client_state
        best = lowest(losses)
        # during the warm-up the order names the group, and only its hypothesis was sent
        choice = job.numbers.get(CHOICE, best)
        if job.phase == CHOOSE:
            return Report({}, local.examples, {CHOICE: choice}), client_state
        numbers = {CHOICE: choice, "losses": losses}
        model = models[best]
        if self.averaging == "gradient":
            gradient = decayed(local.gradient(model), model, job)
            loss = losses[best]
            report = Report({GRADIENT: gradient}, local.examples, numbers, steps=1, loss=loss)
            return report, client_state
        base = None if self.shared_trunk else best  # a whole model was not sent
        return trained_report(local.train(model), local, numbers, base=base), client_state

    serves: ClassVar[Serves] = "chosen"

    def personal(self, job: Job, local: Local, client_state: ClientState) -> Mixture:
        models = self._hypotheses(job)
        losses = [local.loss(model) for model in models] if len(models) > 1 else [0.0]
        return ((1.0, models[lowest(losses)]),)

    def _hypotheses(self, job: Job) -> Models:
        """Whole models; a shared trunk and the heads travel apart and are put together here."""
        trunk = job.models[0]
        if not self.shared_trunk or trunk.size == job.layout.size:
            return job.models
        start, heads = job.layout.final_layer.start, job.models[1:]
        return Received(np.concatenate([trunk[:start], head, trunk[start:]]) for head in heads)

    # -- the server --------------------------------------------------------------------------------

    def terms(self, state: Hypotheses, phase: Phase, client: ClientId, report: Report) -> Terms:
        if phase.name in (SIGNATURE, *SEEDING, CHOOSE):
            return ()
        return self._counts(state, client, report)

    def _counts(self, state: Hypotheses, client: ClientId, report: Report) -> Terms:
        """How a report counts in the sum of its hypothesis, and in that of the trunk where it is shared."""
        choice = self._choice(state, client, report)
        if choice is None:
            return ()
        keys = [str(choice)]
        if self.shared_trunk:
            keys.append(TRUNK)  # learns from all reports
        if self.averaging == "gradient":
            return tuple(Term(key, 1.0, GRADIENT, base="") for key in keys)
        weight = counted(report, uniform=self.weights == "uniform")
        return tuple(Term(key, weight, base=str(choice)) for key in keys)

    def fold(self, state: Hypotheses, phase: Phase, sums: Sums, reports: Reports) -> Hypotheses:
        if phase.name == SIGNATURE:
            state, cards = with_tests(state, reports)
            return self._begun(state, self.count(state.chances, cards))
        if phase.name in SEEDING:
            return self._with_one_trunk(self._initial(state).fold(state, phase, reports))
        chosen = self._choices(state, reports)
        if phase.name == CHOOSE:
            return replace(state, chosen=chosen)
        state = replace(state, chosen={})
        moved = self._aggregate(state, sums, len(chosen))
        if phase.name in SHORT_ROUNDS:
            return self._initial(state).fold(moved, phase, reports)
        idle = _idle(state, chosen)
        if phase.buffer is not None:
            # reports of one hypothesis say nothing about the idle time of the others
            used = set(chosen.values())
            idle = tuple(0 if k in used else rounds for k, rounds in enumerate(state.idle))
        moved = joined(replace(moved, idle=idle), chosen)
        if self._may_reseed(state):
            valid = [(client, report) for client, report in reports if client in chosen]
            moved = self._reseeded(moved, valid)
        return replace(moved, round=state.round + 1)

    def _may_reseed(self, state: Hypotheses) -> bool:
        """Whether the next round can leave a hypothesis dead that a client's model then replaces."""
        return self.reseed_dead and any(rounds + 1 >= DEAD_AFTER for rounds in state.idle)

    def _choices(self, state: Hypotheses, reports: Reports) -> dict[ClientId, int]:
        """The hypothesis that each client chose; clients without a valid choice are left out."""
        choices: dict[ClientId, int] = {}
        for client, report in reports:
            choice = self._choice(state, client, report)
            if choice is not None:
                choices[client] = choice
        return choices

    def _choice(self, state: Hypotheses, client: ClientId, report: Report) -> int | None:
        """The hypothesis that a client chose, in this report or before; None where there is no such hypothesis."""
        choice = report.numbers.get(CHOICE, self._named(state, client))
        if isinstance(choice, int) and 0 <= choice < state.count:
            return choice
        return None

    def shown(self, state: Hypotheses) -> Shown:
        dead = self._dead(state)
        facts = dict(super().shown(state).notes)
        facts["idle"] = list(state.idle)
        facts["dead"] = dead
        if self.gate == "cards":
            facts |= shift_facts(state, self.gate)
        if DEAD_AFTER in state.idle:
            facts["warning"] = (
                f"no agent chose hypotheses {dead} for {DEAD_AFTER} rounds: "
                "fewer groups (strategy.n_clusters), another initialisation (strategy.initial) "
                "or strategy.reseed_dead may help"
            )
        only = self._only_one_in_use(state)
        if only is not None:
            facts["warning_clusters"] = (
                f"all agents choose hypothesis {only} and the others have no effect: "
                "this run is FedAvg. Another initialisation (strategy.initial) may help, "
                "or there are no groups"
            )
        return Shown(facts)

    def _only_one_in_use(self, state: Hypotheses) -> int | None:
        """The hypothesis that all clients have chosen for several rounds; None without such a one."""
        if state.count <= 1:
            return None
        first, second, *_ = sorted(state.idle)
        if first > 0 or second < COLLAPSED:
            return None
        return state.idle.index(first)

    def _dead(self, state: Hypotheses) -> list[int]:
        """Hypotheses that no agent chose for a long time."""
        return [k for k, rounds in enumerate(state.idle) if rounds >= DEAD_AFTER]

    def _aggregate(self, state: Hypotheses, sums: Sums, reporters: int) -> Hypotheses:
        """Each hypothesis after a round with this number of reports."""
        models = [
            self._moved(state, model, str(k), sums, reporters)
            for k, model in enumerate(state.models)
        ]
        if not self.shared_trunk or not reporters:
            return replace(state, models=tuple(models))
        moved_first = self._moved(state, state.models[0], TRUNK, sums, reporters)
        return replace(state, models=self._with_trunk_of(moved_first, state, models))

    def _moved(
        self, state: Hypotheses, model: Vector, key: str, sums: Sums, reporters: int
    ) -> Vector:
        """A hypothesis (d,) after its reports; without any it stays.

        Args:
            state: has the learning rate.
            model: the hypothesis (d,).
            key: of the sum of its reports.
            sums: of models or gradients.
            reporters: the number of all reporters of the round.
        """
        mean = sums.mean(key, otherwise=model)
        if self.averaging == "model":
            return mean
        count = sums.count(key)
        if not count:
            return model
        rate = state.lr * factor_in(state.schedule, state.round)
        step = -rate * count / reporters
        return combine([(model, 1.0), (mean, step)])

    def _with_trunk_of(self, origin: Vector, state: Hypotheses, models: Sequence[Vector]) -> Models:
        """The models (d,); where the trunk is shared, all have that of `origin` (d,)."""
        if not self.shared_trunk:
            return tuple(models)
        start, stop = state.head
        return tuple(
            np.concatenate([origin[:start], model[start:stop], origin[stop:]]) for model in models
        )

    def _with_one_trunk(self, state: Hypotheses) -> Hypotheses:
        """The state in which all hypotheses have the trunk of the first one, where it is shared."""
        if not self.shared_trunk or not state.models:
            return state
        models = self._with_trunk_of(state.models[0], state, state.models)
        return replace(state, models=models)

    def _reseeded(self, state: Hypotheses, reports: Reports) -> Hypotheses:
        """Replace dead hypotheses by models of the clients that are served worst, one each."""

        def worst_first(item: tuple[ClientId, Report]) -> tuple[float, ClientId]:
            client, report = item
            return -lowest_loss(report), client

        models = list(state.models)
        idle = list(state.idle)
        dead = self._dead(state)
        for k, (client, report) in zip(dead, sorted(reports, key=worst_first), strict=False):
            choice = report.numbers[CHOICE]
            own = SumsAtHand()
            own.add(self._counts(state, client, report), report.vectors)
            models[k] = self._moved(state, models[choice], str(choice), own, reporters=1)
            idle[k] = 0
        with_trunk = self._with_trunk_of(state.models[0], state, models)
        return replace(state, models=with_trunk, idle=tuple(idle))

    # -- buffered rounds ---------------------------------------------------------------------------

    @property
    def buffer(self) -> Buffering:
        refusal = ""
        if self.averaging == "gradient":
            refusal = "a stale gradient does not apply to the current model (averaging: gradient)"
        elif self.shared_trunk:
            refusal = "all groups change the shared trunk (shared_trunk)"
        elif self.reseed_dead:
            refusal = "idle hypotheses are not counted (reseed_dead)"
        # the rounds of an initialisation are drawn for all hypotheses together
        return Buffering(
            refusal,
            lambda state: state.count > 0 and self._initial(state).is_over(state),
            self._buffer_of,
        )

    def _buffer_of(self, state: Hypotheses, client: ClientId, report: Report) -> int:
        """The hypothesis that the client chose."""
        return self._choice(state, client, report) or 0

    # -- privacy -----------------------------------------------------------------------------------

    @property
    def privacy(self) -> PrivacyFacet:
        leaks = {
            "averaging: gradient": self.averaging == "gradient",
            "shared_trunk": self.shared_trunk,
            "reseed_dead": self.reseed_dead,
            f"initial: {self.initial}": self.initial in ("restarts", "kmeans++"),
        }
        named = " and ".join(name for name, leaks_data in leaks.items() if leaks_data)
        if not named:
            return PrivacyFacet(routes="chosen")
        return PrivacyFacet(
            refusal=f"ifca's {named} would use models, losses or choices of single agents outside "
            "the account; leave it out (initial: random or warmup is possible)"
        )

    def forget(self, state: Hypotheses, client: ClientId) -> Hypotheses:
        return replace(super().forget(state, client), chosen=without(state.chosen, client))


def _idle(state: Hypotheses, choices: Mapping[ClientId, int]) -> tuple[int, ...]:
    """Rounds since each hypothesis was last chosen; a round without any choice does not count."""
    used = set(choices.values())
    idle: list[int] = []
    for k, rounds in enumerate(state.idle):
        if k in used:
            idle.append(0)
        elif used:
            idle.append(rounds + 1)
        else:
            idle.append(rounds)
    return tuple(idle)
