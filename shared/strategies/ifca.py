"""IFCA and HypoCluster(K): each client trains the one of K models that has its lowest loss.

Papers. Ghosh, Chung, Yin, Ramchandran 2020, An Efficient Framework for Clustered Federated
Learning, algorithm 1, with model averaging. Mansour, Mohri, Ro, Suresh 2020, Three
Approaches for Personalization, algorithm HypCluster, is the same alternation: `hypocluster` is
another name for it.

Our deviations.
- Initialisation. From random models one hypothesis is often ahead for all, gets all the
  training and stays ahead. By default each client therefore keeps a random group for three rounds
  first; the authors' code does so for twenty rounds on FEMNIST. `initial: random` is the paper's.
- Without `n_clusters` agents send a card first, and K is the number of groups that the cards show;
  one if no test fires, which is FedAvg.
- Models are weighted by samples.
- Ties go to the first hypothesis.
- A client that is evaluated chooses again, by its training loss.
- Under secure sums clients choose in a phase of their own, and then get the one hypothesis that they
  train.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from covey.shared.seeds import generator
from covey.shared.strategies.base import (
    A_MODEL,
    CHOICE,
    CHOOSE,
    EVALUATE,
    LARGEST,
    MODEL,
    SIGNATURE,
    TRAIN,
    Buffering,
    ClientId,
    ClientState,
    Exchange,
    Expected,
    Facts,
    Job,
    Local,
    Mixture,
    Models,
    Order,
    Phase,
    PrivacyFacet,
    Report,
    Reports,
    Sealed,
    Setup,
    Shown,
    Sums,
    Term,
    Terms,
    View,
    trained_report,
    without,
)
from covey.shared.strategies.bases.cut import (
    CARD_ORDER,
    CARDS_ALONE,
    WHOLE_CARD_ASKED,
    Numbered,
    Tested,
    cards_of,
    sampled,
    shift_facts,
    with_card,
    with_tests,
)
from covey.shared.strategies.bases.hard import START, ManyModels, joined
from covey.shared.strategies.bases.losses import comparable, lowest
from covey.shared.strategies.bases.single import counted

DEAD_AFTER = 10  # rounds in which no client chooses a hypothesis
COLLAPSED = 5  # rounds in which all reporters choose the same hypothesis
DEFAULT_WARMUP_ROUNDS = 3
AUTHORS_WARMUP_ROUNDS = 20  # of the authors' code, on FEMNIST


@dataclass(frozen=True)
class Hypotheses(Tested):
    """The hypotheses are `models`; the cluster of a client is its latest choice."""

    count: int = 0  # K; 0 until the cards have come, if agents are asked for them
    seed: int = 0
    round: int = 0  # rounds that are complete
    chooses_first: bool = False  # clients choose in a phase of their own
    chosen: dict[ClientId, int] = field(default_factory=dict)  # in that of the present round
    idle: tuple[int, ...] = ()  # rounds since each hypothesis was last chosen
    spare: Models = ()  # initial models that are not used yet


class Ifca(Numbered, ManyModels[Hypotheses]):
    """The server clusters nothing: clients choose again in every round."""

    facts: ClassVar[Facts] = Facts(
        numbers={SIGNATURE: WHOLE_CARD_ASKED, TRAIN: {CHOICE: A_MODEL}},
        sealed=Sealed(clear=(SIGNATURE, CHOOSE)),
    )

    summary: ClassVar[str] = "K models; each client trains the one with its lowest training loss"
    source: ClassVar[str] = "Ghosh et al. 2020, Mansour et al. 2020"

    name: Literal["ifca", "hypocluster"] = "ifca"
    initial: Literal["random", "warmup"] = Field(
        "warmup",
        description="The first hypotheses. random: independent random models. warmup: random groups "
        "of clients train one hypothesis each.",
    )
    warmup_rounds: int = Field(
        DEFAULT_WARMUP_ROUNDS,
        ge=1,
        description="The rounds during which a client keeps its random group. The default is 20 "
        "if initial: warmup is given explicitly.",
    )

    @model_validator(mode="before")
    @classmethod
    def _short_warmup_unless_asked_for(cls, data: Any) -> Any:
        """`initial: warmup` has the 20 rounds of the authors' code; the default is shorter."""
        if not isinstance(data, Mapping) or "warmup_rounds" in data:
            return data
        rounds = DEFAULT_WARMUP_ROUNDS
        if "initial" in data:
            rounds = AUTHORS_WARMUP_ROUNDS
        return {**data, "warmup_rounds": rounds}

    @property
    def starts(self) -> int:
        return self.most_clusters

    def init(self, setup: Setup) -> Hypotheses:
        state = Hypotheses(
            setup.starts[0],
            seed=setup.seed,
            spare=setup.starts,
            asks=self.asks_in(setup),
            chooses_first=setup.secure is not None,
        )
        return state if state.asks else self._begun(state, self.count())

    def _begun(self, state: Hypotheses, count: int) -> Hypotheses:
        """The state with this number of hypotheses, of which each begins with an initial model."""
        models = state.spare[:count]
        return replace(state, count=count, idle=(0,) * count, models=models, spare=())

    # -- phases ------------------------------------------------------------------------------------

    def plan(self, state: Hypotheses, view: View) -> Phase:
        if not state.count:
            return CARDS_ALONE
        # a loss for each hypothesis; during the warm-up a client reports that of its group only
        numbers = {
            CHOICE: Expected(most=state.count - 1, whole=True),
            "losses": Expected(-state.count, least=-LARGEST, most=LARGEST),
        }
        round_ = Phase(sizes={MODEL: state.start.size}, numbers=numbers)
        if not state.chooses_first or not self._is_warm(state):
            return round_
        if state.chosen and not view.attempt:
            return replace(round_, cohort=tuple(state.chosen))
        choice = {CHOICE: numbers[CHOICE]}
        return Phase(CHOOSE, ends_round=False, numbers=choice, draw=TRAIN)

    def exchanges(self, setup: Setup, agents: int, features: int) -> tuple[Exchange, ...]:
        usual = self.usual_exchange(setup)
        count = self.most_clusters
        every = (setup.layout.size,) * count
        one = every[:1]
        choosing = replace(usual, down=every)
        cards = super().exchanges(setup, agents, features)[:1] if self.asks_in(setup) else ()
        before: tuple[Exchange, ...] = ()
        if self.initial == "warmup":
            before = (replace(usual, down=one, times=min(self.warmup_rounds, setup.rounds)),)
        rounds: tuple[Exchange, ...] = (choosing,)
        if setup.secure is not None:
            rounds = (Exchange(CHOOSE, every), replace(usual, down=one))
        return (*cards, *before, *rounds, Exchange(EVALUATE, every))

    def order(self, state: Hypotheses, phase: Phase, client: ClientId) -> Order:
        if not state.count:
            return CARD_ORDER
        named = self._named(state, client)
        if named is not None and phase.name != CHOOSE:
            return Order(models=(str(named),), numbers={CHOICE: named})
        return self._choosing_order(state, client)

    def serve(self, state: Hypotheses, client: ClientId) -> Order:
        if not state.models:
            return Order(models=(START,))
        return self._choosing_order(state, client)

    def _named(self, state: Hypotheses, client: ClientId) -> int | None:
        """The hypothesis that an order to train names; None where the client chooses while it trains."""
        if self._is_warm(state):
            return state.chosen.get(client)
        return int(generator(state.seed, "group", client).integers(state.count))

    def _is_warm(self, state: Hypotheses) -> bool:
        """Whether clients choose, instead of training the hypothesis of a random group."""
        return self.initial == "random" or state.round >= self.warmup_rounds

    def _choosing_order(self, state: Hypotheses, client: ClientId) -> Order:
        """All hypotheses, of which the client chooses one."""
        keys = tuple(str(k) for k in range(len(state.models)))
        return Order(models=keys, cluster=state.assign.get(client))

    # -- the client --------------------------------------------------------------------------------

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        if job.phase == SIGNATURE:
            return with_card(Report({}, local.examples), job, local), client_state
        losses = comparable([local.loss(model) for model in job.models]).tolist()
        best = lowest(losses)
        # during the warm-up the order names the group, and only its hypothesis was sent
        choice = job.numbers.get(CHOICE, best)
        if job.phase == CHOOSE:
            return Report({}, local.examples, {CHOICE: choice}), client_state
        numbers = {CHOICE: choice, "losses": losses}
        trained = local.train(job.models[best])
        return trained_report(trained, local, numbers, base=best), client_state

    def personal(self, job: Job, local: Local, client_state: ClientState) -> Mixture:
        several = len(job.models) > 1
        losses = [local.loss(model) for model in job.models] if several else [0.0]
        return ((1.0, job.models[lowest(losses)]),)

    # -- the server --------------------------------------------------------------------------------

    def terms(self, state: Hypotheses, phase: Phase, client: ClientId, report: Report) -> Terms:
        if phase.name in (SIGNATURE, CHOOSE):
            return ()
        choice = self._choice(state, client, report)
        if choice is None:
            return ()
        return (Term(str(choice), counted(report), base=str(choice)),)

    def fold(self, state: Hypotheses, phase: Phase, sums: Sums, reports: Reports) -> Hypotheses:
        if phase.name == SIGNATURE:
            cards = cards_of(sampled(reports)).values()
            state = with_tests(state, cards)
            return self._begun(state, self.count(state.chances, cards))
        chosen = self._choices(state, reports)
        if phase.name == CHOOSE:
            return replace(state, chosen=chosen)
        models = tuple(sums.mean(str(k), otherwise=old) for k, old in enumerate(state.models))
        moved = replace(state, models=models, chosen={})
        idle = _idle(state, chosen)
        if phase.buffer is not None:
            # reports of one hypothesis say nothing about the idle time of the others
            used = set(chosen.values())
            idle = tuple(0 if k in used else rounds for k, rounds in enumerate(state.idle))
        moved = joined(replace(moved, idle=idle), chosen)
        return replace(moved, round=state.round + 1)

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
                "fewer clusters (strategy.n_clusters) or another initialisation (strategy.initial) may help"
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

    # -- buffered rounds ---------------------------------------------------------------------------

    @property
    def buffer(self) -> Buffering:
        # the rounds of the warm-up are drawn for all hypotheses together
        return Buffering(
            "", lambda state: state.count > 0 and self._is_warm(state), self._buffer_of
        )

    def _buffer_of(self, state: Hypotheses, client: ClientId, report: Report) -> int:
        """The hypothesis that the client chose."""
        return self._choice(state, client, report) or 0

    # -- privacy -----------------------------------------------------------------------------------

    @property
    def privacy(self) -> PrivacyFacet:
        return PrivacyFacet(routes="chosen")

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
