"""What a training method is: one frozen pydantic model with a server half and a client half, both pure.

The server half never sees a socket or a clock, the client half never sees torch. A strategy says what
the next phase is and whom it needs (`plan`); the round engine gets it done with whoever is really
there; `fold` takes what came back. The life of a run:

    state = strategy.init(setup)
    while rounds remain:
        phase  = strategy.plan(state, view)                     # server
        order  = strategy.order(state, phase, client)           # server, per invited client
        report, client_state = strategy.work(job, local, client_state)  # client
        state  = strategy.fold(state, phase, reports, average)           # server, reports in client-id order

A state is a frozen dataclass of arrays, numbers, strings, None, tuples of these, and str-keyed dicts of
these: that is what a checkpoint can hold. Its arrays are never changed in place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Generic, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from covey.shared.numerics.averages import MEAN, Average, Rule
from covey.shared.numerics.clustering import Linkage
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.wire.messages import DeviceWish

ClientId = str
Numbers = Mapping[str, Any]  # int, float, str, or lists of these: goes over the wire as msgpack
SampleIndices = npt.NDArray[np.int64]  # which training samples, in data order
ClientState = Mapping[
    str, npt.NDArray[Any]
]  # what a client keeps between jobs, committed on acceptance
MODEL, GRADIENT = "model", "gradient"  # usual names of a report's vectors
LARGEST = 1e100  # no honest number of a report is larger; sums of such numbers stay finite
LAST_MODEL = "held"  # client state: the whole model (d,) after its latest local training in any phase, for mode E-last
Mixture = tuple[
    tuple[float, Vector], ...
]  # (weight, model): predictions are weighted softmax means
DataSplit = Literal["train", "test"]
Routes = Literal["nothing", "assigned", "chosen"]
S = TypeVar("S")


Batch = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0)]
Momentum = Annotated[float, Field(ge=0, lt=1)]
Decay = Annotated[float, Field(ge=0)]
Schedule = tuple[
    tuple[int, float], ...
]  # (round, factor), rounds ascending: from that round on the rate has this factor


class Training(BaseModel):
    """Local SGD. The optimiser is made anew for every job."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    epochs: int = Field(1, ge=1, description="E, passes over the local training set per round")
    batch: Batch = Field(10, description="B, mini-batch size; a short last batch is kept")
    lr: Rate = Field(0.01, description="learning rate of local SGD")
    momentum: Momentum = Field(0.0, description="v = momentum * v + g, no dampening, no Nesterov")
    weight_decay: Decay = Field(0.0, description="added to the gradient as weight_decay * model")
    lr_steps: tuple[
        tuple[Annotated[float, Field(ge=0, le=1)], Annotated[float, Field(gt=0)]], ...
    ] = Field(
        (),
        description="pairs [share, factor]: once that share of the rounds is folded, the rate of a step, on agents or the "
        "server, is lr * factor",
    )
    device: DeviceWish = Field(
        "cpu",
        description="what torch computes on; auto: a GPU where an agent has one. Bytes repeat on one kind of device only; "
        "the owner of an agent may set another kind (agent start --device)",
    )

    @model_serializer(mode="wrap")
    def _without_the_usual_device(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Settings for the CPU are those of an earlier version: older agents understand them, older runs go on."""
        settings: dict[str, Any] = dump(self)
        if self.device == "cpu":
            settings.pop("device", None)
        return settings

    def in_round(self, round_: int, rounds: int) -> Training:
        """The settings of agents after `round_` of all rounds were folded: factors of the steps behind us multiply."""
        return self.model_copy(update={"lr": self.lr * self._factor(round_, rounds)})

    def schedule(self, rounds: int) -> Schedule:
        """`lr_steps` by rounds, for a method whose rate is not that of local training; empty without any steps."""
        firsts = sorted({math.ceil(share * rounds) for share, _ in self.lr_steps})
        return tuple((first, self._factor(first, rounds)) for first in firsts)

    def _factor(self, round_: int, rounds: int) -> float:
        return math.prod(factor for share, factor in self.lr_steps if round_ >= share * rounds)


def factor_in(schedule: Schedule, round_: int) -> float:
    """The factor on the rate once `round_` rounds were folded."""
    return next((factor for first, factor in reversed(schedule) if round_ >= first), 1.0)


@dataclass(frozen=True)
class Setup:
    """What a strategy is told once. `starts` holds `strategy.starts` initial models (d,)."""

    starts: tuple[Vector, ...]
    layout: Layout
    seed: int
    rounds: int
    participation: float  # C, the expected share of agents in a round
    training: Training


@dataclass(frozen=True)
class View:
    """What `plan` may know of the run: rounds folded so far, attempts at this phase, who is present."""

    round: int
    rounds: int
    attempt: int
    present: tuple[ClientId, ...]


@dataclass(frozen=True)
class Expected:
    """A number, or a list of numbers, that a report carries for a fold. All are finite.

    `length` None: one number; n: a list of n; -n: a list of 1 to n. `least` and `most` are bounds of every number;
    without `most` it is the report's examples, or 1 if there are none. `whole`: integers only. A report without a
    `required` number is refused; one that is not required may be missing.
    """

    length: int | None = None
    least: float = 0.0
    most: float | None = None
    whole: bool = False
    required: bool = True


@dataclass(frozen=True)
class Phase:
    """One exchange: an order to each of a cohort, a report from each that manages.

    `cohort` is "sample" (the engine draws m of those present), "all" (everyone present), or names.
    When the phase is folded, `cohort` holds the names of those who were invited.
    `sizes` gives the vectors that a report must carry and their lengths; a negative length -n allows
    any length up to n. `numbers` gives the numbers that it carries; no other ones reach the fold. `quorum` is the share of
    the cohort without which the phase is void (the run's own quorum counts too); `may_be_empty` lets a phase without any report be folded all the same.
    A "sample" is drawn under the name `draw`, or the phase's own where that is empty: two phases of a round with one such
    name draw the same agents, and "train" draws those that FedAvg would.
    """

    name: str = "train"
    cohort: Literal["sample", "all"] | tuple[ClientId, ...] = "sample"
    sizes: Mapping[str, int] = field(default_factory=dict)
    ends_round: bool = True
    quorum: float = 0.0
    may_be_empty: bool = False
    numbers: Mapping[str, Expected] = field(default_factory=dict)
    draw: str = ""


@dataclass(frozen=True)
class Order:
    """The server's word to one client. `models` are keys that `Strategy.model` resolves.

    A key is a cluster's topic name ("0", "1", "start") or "@" + client id for a model of one client's own.
    """

    models: tuple[str, ...] = ()
    numbers: Numbers = field(default_factory=dict)
    cluster: int | None = None


@dataclass(frozen=True)
class Job:
    """An order as the client sees it: models are vectors (d,), or shorter where the method sends parts.

    `seed` is the run's and the same for everybody: draw on it with round and client as further keys.
    """

    phase: str
    round: int
    client: ClientId
    seed: int
    models: tuple[Vector, ...]
    numbers: Numbers
    cluster: int | None
    layout: Layout
    training: Training


@dataclass(frozen=True)
class Report:
    """What a client sends back. `vectors` are float32 (d,), or shorter where the phase says so.

    `bases` names, for a vector that may travel as a delta, the index in `job.models` of the model
    that it is a delta against.
    """

    vectors: Mapping[str, Vector]
    examples: int  # n_i, training samples
    numbers: Numbers = field(default_factory=dict)
    steps: int = 0  # tau_i, local SGD steps
    loss: float = 0.0  # mean training loss over the steps
    bases: Mapping[str, int] = field(default_factory=dict)


Reports = Sequence[tuple[ClientId, Report]]


@dataclass(frozen=True)
class GradientCorrection:
    """Bends the local gradient before momentum: g(w) + mu * (w - anchor) + drift.

    `anchor` and `drift` are (P,) or (d,) vectors; None leaves the term out.
    """

    anchor: Vector | None = None
    mu: float = 0.0
    drift: Vector | None = None


@dataclass(frozen=True)
class Contrast:
    """Adds beta * contrastive loss of two augmented views to the loss.

    For models with a projection head on `clusters` outputs. `kappa` weighs the entropy of the mean assignment;
    `by` says whose signatures are told apart: the clusters' (columns) or the samples' (rows).
    """

    clusters: int
    beta: float = 1.0
    temperature: float = 1.0
    kappa: float = 1.0
    by: Literal["columns", "rows"] = "columns"


@dataclass(frozen=True)
class TrainingResult:
    """Where local SGD ended: the model (d,), the number of steps, the mean loss over the steps, and with momentum the
    velocity (P,), or without the `frozen` parameters."""

    end: Vector
    steps: int
    loss: float
    velocity: Vector | None = None


@dataclass(frozen=True)
class Proximity:
    """What clusters were made from, for pictures: `distances` (n, n) between n clients, symmetric, in `unit`, and the
    linkage. `cut` is a height between the last merge that was made and the next one; None where it is not
    known, or where clients were added after the cut."""

    clients: tuple[ClientId, ...]
    distances: npt.NDArray[np.float64]
    linkage: Linkage
    unit: str
    cut: float | None = None


class Local(Protocol):
    """What a client can do with its data: torch on a device, a quadratic bowl in tests.

    Models are float32 (d,). Losses are means over samples in evaluation mode.
    """

    @property
    def examples(self) -> int:
        """n_i, the number of training samples."""

    def loss(self, model: Vector) -> float:
        """F_i(model): mean loss over the training set."""

    def losses(self, model: Vector) -> npt.NDArray[np.float32]:
        """Loss of each training sample (n_i,), in data order."""

    def gradient(
        self, model: Vector, *, batch: int | None = None, rows: SampleIndices | None = None
    ) -> Vector:
        """Gradient of F_i at the model (d,), over all samples, over `batch` of them drawn without
        replacement on the job's seed, or over those at `rows`; evaluation mode, zero in the buffers."""

    def batches(self, epochs: int | None = None) -> Iterator[list[SampleIndices]]:
        """For each epoch the rows of its mini-batches, in a fresh order on the job's seed; sizes as in
        LocalTrain. `epochs` overrides the training settings."""

    def train(
        self,
        start: Vector,
        correction: GradientCorrection = GradientCorrection(),
        *,
        epochs: int | None = None,
        steps: int | None = None,
        weights: npt.NDArray[np.float32] | None = None,
        contrast: Contrast | None = None,
        frozen: int = 0,
        velocity: Vector | None = None,
    ) -> TrainingResult:
        """LocalTrain. `epochs` overrides the training settings, and `steps` overrides `epochs`: that many steps of SGD in
        as many epochs as they take, the last one cut short; `velocity` is what momentum begins with, None: rest;
        `weights` (n_i,) multiplies each sample's loss, the batch mean still divides by the batch size;
        the first `frozen` parameters stay as they are, whatever decay and correction say."""

    def memberships(self, model: Vector, clusters: int) -> npt.NDArray[np.int64]:
        """Training samples in each cluster (K,), by the largest output of the model's projection head."""

    def predict(self, model: Vector, split: DataSplit) -> npt.NDArray[np.float32]:
        """Logits (n, classes), or predicted values (n, 1) for a regression task."""

    def inputs(self) -> npt.NDArray[np.float32]:
        """Training samples (n_i, values of one) as they were read: before scaling and standardisation."""

    def targets(self, split: DataSplit) -> npt.NDArray[Any]:
        """Class indices (n,) int64, or values (n,) float32 for a regression task."""


class Strategy(BaseModel, Generic[S]):
    """A training method. Fields are its hyper-parameters; subclasses add `name: Literal[...]`.

    The defaults here are those of a method with a single model under the key "0" and one "train"
    phase per round, so that such a method writes `init`, `work`, `fold` and nothing else.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    signature_phases: ClassVar[
        tuple[str, ...]
    ] = ()  # whose only vector is used to cluster, and can be noised

    keeps_models: ClassVar[bool] = False  # does the server keep each client's latest model?

    summary: ClassVar[str] = ""  # one line for `coordinator methods`
    source: ClassVar[str] = ""  # paper, year

    @property
    def starts(self) -> int:
        """How many differently initialised models `init` needs."""
        return 1

    @property
    def head(self) -> int:
        """Clusters of the projection head that the model must have (task.model.options.head); 0: none."""
        return 0

    def init(self, setup: Setup) -> S:
        """The state before anything happened."""
        raise NotImplementedError

    def plan(self, state: S, view: View) -> Phase:
        """The next phase and whom it needs. Pure: the same state and view give the same phase."""
        raise NotImplementedError

    def order(self, state: S, phase: Phase, client: ClientId) -> Order:
        """What one invited client is told in this phase."""
        raise NotImplementedError

    def model(self, state: S, key: str) -> Vector:
        """The model (d,) behind a key that an order names, or the part of one that `work` knows how to take."""
        raise NotImplementedError

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        """The client half. The returned state replaces the old one once the report is accepted."""
        raise NotImplementedError

    def fold(self, state: S, phase: Phase, reports: Reports, average: Average = MEAN) -> S:
        """The state after a phase. `reports` come in ascending client id, never below quorum.

        `average` stands in for the weighted mean wherever reported vectors become a model. Vectors that are only
        compared with each other (signatures, features) do not go through it.
        """
        raise NotImplementedError

    def base(
        self, state: S, phase: Phase, client: ClientId, report: Report, name: str
    ) -> str | None:
        """The key of the model that a reported vector started from: its step is what clipping shortens.

        "" for a gradient, which is a step itself; None for a vector that is only compared with others and never
        averaged, which is not clipped.
        """
        if name == GRADIENT:
            return ""
        keys = self.order(state, phase, client).models if name == MODEL else ()
        return keys[0] if keys else None

    def refuses(self, rule: Rule) -> str:
        """Why a rule of the aggregation section makes no sense with this method; empty where it does."""
        return ""

    def refuses_schedule(self) -> str:
        """Why `training.lr_steps` makes no sense with this method; empty where it does."""
        return ""

    def serve(self, state: S, client: ClientId) -> Order:
        """What a client needs in order to be evaluated on the current state (mode E-server)."""
        raise NotImplementedError

    def personal(self, job: Job, local: Local, client_state: ClientState) -> Mixture:
        """The model that this client would use now, from the order that `serve` made."""
        return ((1.0, job.models[0]),)

    def clusters(self, state: S) -> tuple[Vector, ...]:
        """The models to export, one per cluster; empty where models never leave the clients."""
        raise NotImplementedError

    def assignment(self, state: S) -> Mapping[ClientId, int]:
        """Cluster of each client that has one; empty for methods without clusters."""
        return {}

    def proximity(self, state: S) -> Proximity | None:
        """The distances that the clusters were made from; None where the state does not keep what they come from."""
        return None

    def memberships(self, state: S) -> Mapping[ClientId, tuple[float, ...]]:
        """Estimated share of each cluster in a client's data, for those known; empty for hard methods."""
        return {}

    def stop_reason(self, state: S) -> str:
        """Why the run needs no further round, in words for its record; empty while rounds go on.

        Asked before each round. What follows the last round (entries of newcomers, the evaluation) still takes place.
        """
        return ""

    # -- privacy: docs/privacy.md ---------------------------------------------------------------------------

    def private_routes(self) -> Routes:
        """How reports reach the sums of client-level privacy. Raises ValueError that says why they cannot.

        "assigned": to the cluster that `assignment` names, or to the one model; the fold then gets noised means.
        "chosen": to the cluster that `private_choices` finds from the report's own data. "nothing": none is sent.
        """
        raise ValueError(
            f"{_name_of(self)} folds reports in a way whose noise nobody has worked out"
        )

    def private_choices(self, state: S, reports: Reports) -> Mapping[ClientId, int]:
        """For "chosen": the cluster of each report, from this report and the state alone."""
        raise NotImplementedError

    def private_fold(
        self, state: S, models: tuple[Vector, ...], choices: Mapping[ClientId, int]
    ) -> S:
        """For "chosen": the state after a round that made these noised models."""
        raise NotImplementedError

    def check_local_privacy(self) -> None:
        """Raises ValueError where a report holds more than what local training made: DP-SGD cannot cover it."""
        raise ValueError(
            f"{_name_of(self)}'s reports hold more than a model that DP-SGD has trained"
        )

    def framed(self, job: Job, report: Report) -> Report:
        """A signature's report in a form whose shape and numbers say nothing about the data."""
        return replace(report, numbers={})

    def signature_base(self, job: Job, signature: Vector) -> Vector:
        """What an agent without data would send as its framed signature: noise on signatures is measured from there."""
        raise NotImplementedError

    def notes(self, state: S) -> Mapping[str, Any]:
        """Facts for the round's record, JSON-able and finite; a text under "warning" is shown to people."""
        return {}


def _name_of(strategy: Strategy[Any]) -> str:
    return str(getattr(strategy, "name", type(strategy).__name__))
