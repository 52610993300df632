"""The interface of a training method: how to write one, and what it may use.

A method is one class, a `Strategy`. Its fields are the method's hyper-parameters, and it has two
halves. The server half (`init`, `plan`, `order`, `fold`, ...) decides what agents do and combines
what they report; it never sees a socket, a clock or a file. The client half (`work`, `personal`)
runs on the agents; it uses an agent's data only through `Local` (`client_half.py`), so it needs no
torch and can be tested on a quadratic function. The callers call the two halves in this order:

    state = strategy.init(setup)                                # server, once
    while rounds remain:
        phase = strategy.plan(state, view)                      # server: the next exchange
        for client in the cohort of the phase:
            order = strategy.order(state, phase, client)        # server
            job = the order with its models, as the client receives it
            report, client_state = strategy.work(job, local, client_state)    # client
        terms = strategy.terms(state, phase, client, report)    # server: of each report, as it comes
        state = strategy.fold(state, phase, sums, reports)      # server: sums of the terms

A *phase* is one exchange of orders and reports. Most methods have one phase per round, named
`TRAIN`; methods that cluster have others before or between. The round engine invites the cohort,
waits for deadlines, refills and retries; a method only sees the reports of a phase that succeeded.

The quickest start is `bases.single.PlainSingle` (one model for all) or
`bases.hard.HardClustered` (K models, each client in one cluster). This is all of FedProx, FedAvg
with a proximal term:

    class FedProx(AveragedOnly):
        name: Literal["fedprox"] = "fedprox"
        mu: float = Field(0.1, ge=0, description="The strength of the proximal term.")

        def work(self, job, local, client_state):
            start = job.models[0]
            result = local.train(start, Drill(GradientCorrection(start, self.mu)))
            report = trained_report(result, local)
            return report, client_state

Rules that every method keeps (`tests/shared/test_strategy_every.py` tests them):

- All functions are pure: the same arguments give the same result, bit for bit. A random draw takes
  `covey.shared.seeds.generator(seed, purpose, round, client)`.
- A state is a frozen dataclass that a checkpoint can hold: arrays, numbers, strings, None, tuples
  of these, and dicts of these with string keys. Arrays are never changed in place.
- Reports come in ascending order of client id, so sums do not depend on who was fastest.
- A report can be missing, and a client can be new or come back at any time.

In comments and docstrings, d is the length of a model (parameters and buffers), P the number of
its trainable parameters, n_i the number of training samples of client i, and K the number of
clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeVar, get_args, overload

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from covey.shared.numerics.averages import Average
from covey.shared.numerics.measures import Kind
from covey.shared.numerics.split import Split
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.privacy.settings import SecureSettings
from covey.shared.strategies.client_half import ClientState, Job, Local, Mixture, Numbers, Report

# `as` with the same name: authors of methods import these from here
from covey.shared.strategies.expected import LARGEST as LARGEST
from covey.shared.strategies.expected import Expected as Expected
from covey.shared.strategies.facts import MOST_COMPARED, NOT_BUFFERED
from covey.shared.strategies.facts import Buffering as Buffering
from covey.shared.strategies.facts import ClientId as ClientId
from covey.shared.strategies.facts import Facts as Facts
from covey.shared.strategies.facts import PrivacyFacet as PrivacyFacet
from covey.shared.strategies.facts import Sealed as Sealed
from covey.shared.strategies.facts import Serves as Serves
from covey.shared.strategies.facts import Trainings as Trainings
from covey.shared.strategies.phase_names import ENTRY as ENTRY
from covey.shared.strategies.phase_names import EVALUATE as EVALUATE
from covey.shared.strategies.phase_names import SIGNATURE as SIGNATURE
from covey.shared.strategies.phase_names import TRAIN as TRAIN
from covey.shared.strategies.phase_names import UNMASK
from covey.shared.strategies.server import Moving as Moving
from covey.shared.strategies.server import Server
from covey.shared.strategies.sums import GRADIENT as GRADIENT
from covey.shared.strategies.sums import MODEL as MODEL
from covey.shared.strategies.sums import Sums as Sums
from covey.shared.strategies.sums import Term as Term
from covey.shared.strategies.sums import Terms as Terms
from covey.shared.strategies.training import Training as Training

if TYPE_CHECKING:
    from covey.shared.numerics.clustering import Linkage

Models = tuple[Vector, ...]  # of equal length (d,)
Shares = tuple[float, ...]  # (K,): one number per cluster
Clients = tuple[ClientId, ...]  # in ascending order
S = TypeVar("S")
V = TypeVar("V")

# Number of a report: the cluster that it chose. Under client-level privacy it reaches `fold`.
CHOICE = "choice"

# why secure sums are not for other methods
UNSEALED = "it needs single reports, or numbers of each"

# why values that agents keep are not for methods that send gradients
GRADIENTS = "agents send gradients and do not train: what they keep, or the threshold of anomalies, would stay as it is"

# Number of an order: leave out of the training what the agent holds back for votes, a tenth of its samples.
HOLD_BACK = "hold_back"

# Under secure sums. Number of an order that shows an agent its share in a sum by unit of weight: the largest weight.
CAP = "cap"

# Number of an order: compute with the agent's label prior, if task.label_prior is auto.
PRIOR = "prior"


@dataclass(frozen=True)
class Setup:
    """What a strategy knows at the start of a run."""

    starts: tuple[Vector, ...]  # `strategy.starts` initial models (d,)
    layout: Layout  # names and shapes of the tensors in a model
    seed: int  # of the run; draw with `generator(seed, purpose, ...)`
    rounds: int  # R, rounds in all
    participation: float  # C, the expected share of agents in a round
    training: Training  # the run's settings of local SGD
    private: bool = False  # the scenario has a privacy section
    secure: SecureSettings | None = None  # of secure sums; None: the server sees each report

    # Where only a part of the model travels, `starts` and `layout` are that part, and models (d,)
    # everywhere in a method are too. `rest` holds the initial values of all others, which agents
    # get once; it is the first start's.
    split: Split | None = None
    rest: Vector | None = None
    base: Vector | None = None  # (d,) what agents take from a file of their own; NaN: not there

    @property
    def whole(self) -> Layout:
        """The layout of the whole model."""
        return self.layout if self.split is None else self.split.whole

    @cached_property
    def own(self) -> Vector | None:
        """What agents get of the initial values of what does not travel; None: nothing, or they have it in the base."""
        if self.rest is None or self.base is None or self.split is None:
            return self.rest
        lacking = np.isnan(self.split.rest_of(self.base))
        return self.rest[lacking] if lacking.any() else None


@dataclass(frozen=True)
class TaskData:
    """The form of a task's data."""

    features: Sequence[int]  # shape of a sample
    kind: Kind = "classes"

    @property
    def has_classes(self) -> bool:
        """Whether each sample has one class."""
        return self.kind == "classes"


Settings = Average | SecureSettings | Server | Split | Training | TaskData


def needs_training(settings: Settings) -> bool:
    """Whether a setting makes sense only where agents train: what they keep, and the threshold of anomalies."""
    match settings:
        case Split():
            return settings.keeps
        case TaskData():
            return settings.kind == "anomalies"
    return False


@dataclass(frozen=True)
class View:
    """What `Strategy.plan` may know about the run."""

    round: int  # rounds that are complete
    rounds: int  # R, rounds in all
    attempt: int  # 0; 1 or more where the phase planned last did not succeed and is planned again
    present: tuple[ClientId, ...]  # agents that are online, in ascending order


@dataclass(frozen=True)
class Phase:
    """One exchange: an order for each client of a cohort, a report from each that succeeds.

    Example:
        In a usual round each client of a random sample sends a vector "model", here of length 10:

        >>> phase = covey.Phase(sizes={"model": 10})
        >>> phase.cohort, phase.ends_round
        ('sample', True)
    """

    name: str = TRAIN

    # "sample": the engine draws as many of those present as the scenario sets; "all": all agents
    # present; or the ids of the clients. In `fold` it holds the ids of those who were invited.
    cohort: Literal["sample", "all"] | tuple[ClientId, ...] = "sample"

    # the vectors that a report must carry and their lengths; -n allows any length from 1 to n
    sizes: Mapping[str, int] = field(default_factory=dict)

    ends_round: bool = True  # False for a phase before or within a round

    # The phase succeeds with this share of the cohort, if the run's own quorum is reached too. For "all" agents in a
    # phase before or within a round the scenario sets it: `rounds.first_quorum`.
    quorum: float = 0.0

    may_be_empty: bool = False  # True: `fold` is called even if no agent reported

    # the numbers that a report carries; others do not reach `fold`
    numbers: Mapping[str, Expected] = field(default_factory=dict)

    # A "sample" is drawn under this name, or under the phase's own where it is empty. Two phases
    # of one round with the same name draw the same clients; `TRAIN` draws those of FedAvg.
    draw: str = ""

    # In `fold`, in buffered rounds: the only cluster whose reports these are; the others stay.
    buffer: int | None = None

    @property
    def is_evaluation(self) -> bool:
        """Whether its fold gives figures: those of each report, or under secure sums of an evaluation their averages."""
        if self.name == EVALUATE:
            return not self.sizes
        return self.name == UNMASK and self.draw == EVALUATE


@dataclass(frozen=True)
class Order:
    """What the server sends to one client.

    `models` are keys, which `Strategy.model` turns into vectors: a cluster's index ("0", "1"), a
    name such as "start", or "@" and a client id for a model that only this client gets.

    Example:
        >>> covey.Order(models=("0",), numbers={"step": 2}, cluster=0).models
        ('0',)
    """

    models: tuple[str, ...] = ()
    numbers: Numbers = field(default_factory=dict)  # anything else that the client must know
    cluster: int | None = None  # the client's cluster, for people and records
    whole: bool = False  # `fold` needs the vectors of the report, not only sums with others


Reports = Sequence[tuple[ClientId, Report]]  # in ascending order of client id


@dataclass(frozen=True)
class Proximity:
    """The distances from which clusters were made, for plots."""

    clients: tuple[ClientId, ...]
    distances: npt.NDArray[np.float64]  # (n, n) between the n clients, symmetric
    linkage: Linkage
    unit: str  # of the distances

    # A height between the last merge that was made and the next one; None where it is not known or
    # where clients joined after the cut.
    cut: float | None = None


@dataclass(frozen=True)
class Shown:
    """What records, figures and pages show of a method's state."""

    # Facts for the record of a round: finite, and of types that JSON has. Text under a key that
    # starts with "warning" is shown to people.
    notes: Mapping[str, Any] = field(default_factory=dict)

    # The estimated share (K,) of each cluster in a client's data; empty for hard methods.
    memberships: Mapping[ClientId, tuple[float, ...]] = field(default_factory=dict)

    # The distances that clusters were made from, computed when they are drawn; None where the
    # state does not keep them.
    proximity: Callable[[], Proximity | None] = lambda: None


class Strategy(BaseModel, Generic[S]):
    """A training method with its hyper-parameters.

    `S` is the type of its state. A subclass adds `name: Literal["..."]`, by which a scenario
    chooses it, and its hyper-parameters as pydantic fields, each with a description: they are
    printed by `coordinator lab methods`. A subclass must write `init`, `plan`, `order`, `model`,
    `work`, `terms`, `fold`, `serve` and `clusters`; the classes in `bases/` write most of them. An
    method whose facts have `individual` has no terms. Add its line to `method_names.py`, and it can be used in scenarios, tests and comparisons. A method in a
    package of your own joins by an entry point instead; the tutorial shows how.

    Example:
        >>> from typing import Literal
        >>> from pydantic import Field
        >>> from covey.methods import AveragedOnly
        >>> class Patient(AveragedOnly):
        ...     name: Literal["patient"] = "patient"
        ...     rounds: int = Field(3, ge=1, description="Rounds to wait.")
        >>> Patient(rounds=5).model_dump()
        {'server': None, 'name': 'patient', 'rounds': 5}
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    facts: ClassVar[Facts] = Facts()  # what others must know of the method
    serves: ClassVar[Serves] = "first"  # what `personal` makes of an order
    summary: ClassVar[str] = ""  # one line for `coordinator lab methods`
    source: ClassVar[str] = ""  # paper, year

    if TYPE_CHECKING:

        @property
        def name(self) -> str:
            """By which a scenario chooses the method. A subclass has it as a field."""

    server: Server | None = Field(
        None,
        description="The optimiser with which the server moves each model to the mean of its reports, for example "
        "{name: adam, lr: 0.03}. name: sgd, adam, yogi or adagrad; further keys: lr, momentum. null: the "
        "model becomes the mean.",
    )

    def __init_subclass__(cls, **options: Any) -> None:
        """Without means of models there is no key `server`: what is annotated as of the class is no field.

        Raises:
            TypeError: the class has a `personal` of its own and does not say what it serves.
        """
        super().__init_subclass__(**options)
        if "personal" in vars(cls) and "serves" not in vars(cls):
            raise TypeError(
                f"{cls.__name__} decides what an agent uses: write next to `personal` what that is, "
                f"serves: ClassVar[Serves] = one of {', '.join(get_args(Serves))}"
            )
        if isinstance(cls.facts, Facts) and not cls.facts.makes_means:
            cls.__annotations__ = {**vars(cls).get("__annotations__", {}), "server": ClassVar[None]}
            cls.server = None

    @model_validator(mode="after")
    def _has_models_to_move(self) -> Self:
        if self.server is not None and (why := self.refuses(self.server)):
            raise ValueError(f"server is not for {_name_of(self)}: {why}; leave it out")
        return self

    @property
    def starts(self) -> int:
        """The number of differently initialised models that `init` needs."""
        return 1

    @property
    def projection_head(self) -> int:
        """The clusters of the projection head that the model must have; 0: no head.

        A scenario sets it as task.model.options.head.
        """
        return 0

    def split(self, layout: Layout) -> Split | None:
        """The part of the model that the method shares, where the task names none; None: all of it.

        Args:
            layout: of the whole model.

        Raises:
            PublicError: the model has no such part.
        """
        return None

    # -- the server half ---------------------------------------------------------------------------

    def init(self, setup: Setup) -> S:
        """The state at the start of a run."""
        raise NotImplementedError

    def continued(self, state: S, fresh: S) -> S:
        """The state with which a new run continues a finished one (`coordinator run --from`).

        Args:
            state: of the finished run.
            fresh: what `init` returns for the new run.

        Raises:
            ValueError: the method cannot be continued, with the reason.
        """
        raise ValueError(
            f"{_name_of(self)} keeps a part of its models on the devices, where a new run starts from nothing; begin without --from"
        )

    def plan(self, state: S, view: View) -> Phase:
        """The next phase. The same state and view give the same phase."""
        raise NotImplementedError

    def order(self, state: S, phase: Phase, client: ClientId) -> Order:
        """The order for one invited client."""
        raise NotImplementedError

    def model(self, state: S, key: str) -> Vector:
        """The model (d,) of a key in an order, or the part of a model that `work` expects."""
        raise NotImplementedError

    def terms(self, state: S, phase: Phase, client: ClientId, report: Report) -> Terms:
        """The sums in which the vectors of a report count; none where it does not count.

        The answer depends on the state, the phase and everything in the report but the values of
        its vectors.

        Args:
            state: the state that the phase was planned in.
            phase: as it was planned; where it names its cohort, with the ids of those who were invited.
            client: who sent the report.
            report: what counts.
        """
        return ()

    def for_terms(self, state: S) -> S:
        """The state as far as `terms` needs it, which aggregators get: without the moments of the server's optimiser."""
        if not isinstance(state, Moving):
            return state
        without: Any = replace(state, moments={})
        return without  # type: ignore[no-any-return]

    def fold(self, state: S, phase: Phase, sums: Sums, reports: Reports) -> S:
        """The state after a phase that succeeded.

        Args:
            state: the state that the phase was planned in.
            phase: the phase; its cohort holds the ids of those who were invited.
            sums: of the terms of all reports, made by the scenario's rule.
            reports: (client, report) in ascending order of client id. Only those whose order was
                `whole`, and all where the facts have `individual`, have vectors. These may be mapped from
                disk: read them in blocks, for example with `sums.average.mean`. Vectors that are
                only compared with each other (signatures, features) do not go through the rule.
        """
        raise NotImplementedError

    def serve(self, state: S, client: ClientId) -> Order:
        """The order that gives a client what `personal` needs (mode `server`)."""
        raise NotImplementedError

    def clusters(self, state: S) -> tuple[Vector, ...]:
        """The models (d,) to export, one per cluster; empty where models never leave clients."""
        raise NotImplementedError

    # -- the client half ---------------------------------------------------------------------------

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        """Carry out an order.

        Args:
            job: the order with its models.
            local: the client's data.
            client_state: what the client kept from its last accepted report; empty at first.

        Returns:
            The report, and the client state that replaces the old one once the coordinator has
            accepted the report. Return `client_state` itself to keep nothing.
        """
        raise NotImplementedError

    def personal(self, job: Job, local: Local, client_state: ClientState) -> Mixture:
        """The model that this client uses now, from the order that `serve` made."""
        return ((1.0, job.models[0]),)

    # -- what others ask about a state -------------------------------------------------------------

    def assignment(self, state: S) -> Mapping[ClientId, int]:
        """The cluster of each client that has one; empty for methods without clusters."""
        return {}

    def stop_reason(self, state: S) -> str:
        """Why the run needs no further round, in words for its record; empty while rounds remain.

        The coordinator asks before each round. Entries of newcomers and the evaluation still take
        place after the last round.
        """
        return ""

    def accused(self, state: S) -> Mapping[ClientId, str]:
        """Clients that the newest fold has found to lie, and why: they go into quarantine."""
        return {}

    def failure(self, state: S) -> str:
        """Why a run that ends in this state has come to nothing, and what to do next; empty if it has not."""
        return ""

    def shown(self, state: S) -> Shown:
        """What records, figures and pages show of a state."""
        return Shown()

    def forget(self, state: S, client: ClientId) -> S:
        """The state without anything about one client: if it comes back, it is a newcomer.

        A method whose state names clients takes it out of each field (`without`). What it has changed in a shared model
        stays.
        """
        return state

    # -- robust aggregation: docs/security.md ---------------------------------------------------

    def refuses(self, settings: Settings) -> str:
        """Why a setting makes no sense with this method; empty: it does.

        Args:
            settings: a rule of the section `aggregation`, the server's optimiser, the training
                section, secure sums, the form of the task's data, or a split of the model.
        """
        if not isinstance(settings, SecureSettings):
            return ""
        if self.facts.sealed is None:
            return UNSEALED
        is_chosen = "choice" in self.facts.sealed.clear.values()
        if is_chosen and (getattr(self, "n_clusters", None) or 0) > MOST_COMPARED:
            return f"devices compare at most {MOST_COMPARED} models in the clear; choose n_clusters up to that"
        return ""

    @property
    def buffer(self) -> Buffering:
        """How the method takes part in buffered rounds."""
        return NOT_BUFFERED

    @property
    def privacy(self) -> PrivacyFacet:
        """What the method can promise under a `privacy` section."""
        return PrivacyFacet()


@overload
def without(known: Mapping[ClientId, V], client: ClientId) -> dict[ClientId, V]: ...
@overload
def without(known: Clients, client: ClientId) -> Clients: ...
def without(known: Mapping[ClientId, V] | Clients, client: ClientId) -> dict[ClientId, V] | Clients:
    """A field of a state that names clients, without one of them."""
    if isinstance(known, Mapping):
        return {one: value for one, value in known.items() if one != client}
    return tuple(one for one in known if one != client)


def _name_of(strategy: Strategy[Any]) -> str:
    return str(getattr(strategy, "name", type(strategy).__name__))
