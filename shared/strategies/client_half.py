"""What the client half of a method works with: its order, its data and how it trains on them, and its report.

The letters of lengths and numbers are those of `base.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from covey.shared.errors import PublicError
from covey.shared.numerics.split import Mask, Split
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.sentences import counted
from covey.shared.strategies.facts import ClientId
from covey.shared.strategies.sums import MODEL
from covey.shared.strategies.training import Training

Numbers = Mapping[str, Any]  # int, float, str, or lists of these: travels as msgpack
SampleIndices = npt.NDArray[np.int64]  # training samples by their place in the data
ClientState = Mapping[str, npt.NDArray[Any]]  # what a client keeps between orders, by name
Mixture = tuple[tuple[float, Vector], ...]  # (weight, model): weighted means of softmax outputs
DataSplit = Literal["train", "test"]

# Client state: the model (d,) as it counted in the newest secure sum, if the update was shortened.
COUNTED = "counted"

# Client state: the whole model (d,) after the client's latest local training in any phase. Mode
# the mode `last` measures it. The client's runner sets it where a method does not.
LAST_MODEL = "held"


@dataclass(frozen=True)
class Debias:
    """An offset of the agent's own to what the last layer reads, which trains too, and a pull of mean features.

    The loss has the term kappa / 2 * mean((m - mean)^2), with the mean features m of the batch.
    """

    own: Vector  # (width,)
    mean: Vector  # (width,)
    kappa: float


@dataclass(frozen=True)
class GradientCorrection:
    """Terms that are added to the local gradient before momentum: mu * (w - anchor) + drift, and those of `debias`.

    Vectors are (P,) or (d,). The default adds nothing.
    """

    anchor: Vector | None = None  # None: without the proximal term
    mu: float = 0.0
    drift: Vector | None = None  # None: without this term
    on: Mask | None = None  # (d,): the values that the proximal term pulls; None: all
    debias: Debias | None = None  # None: without these terms


@dataclass(frozen=True)
class Contrast:
    """A contrastive loss of two augmented views, for models with a projection head."""

    clusters: int  # K, outputs of the head
    beta: float = 1.0  # weight of the contrastive loss
    temperature: float = 1.0
    kappa: float = 1.0  # weight of the entropy of the mean assignment
    by: Literal["columns", "rows"] = "columns"  # contrasts clusters (columns) or samples (rows)


@dataclass(frozen=True)
class Drill:
    """One local training: all in which it differs from the training settings of the order.

    Attributes:
        correction: terms that are added to each gradient.
        epochs: the number of epochs; None: that of the training settings.
        steps: stop after this many steps, in as many epochs as they take; overrides `epochs`.
        weights: factor on the loss of each sample (n_i,). The mean of a batch still divides by the size of the batch.
        contrast: a contrastive loss to add.
        trained: the values that may change (d,), of the model or, where agents keep a part of it, of the whole one
            (`Job.split`). Neither steps nor weight decay nor a correction changes the others. None: all that train.
        velocity: momentum's velocity to begin with; None: zero.
        at_home: the result stays on the device and in no report: it needs no noise under `privacy.local`, and takes nothing
            of its budget.
    """

    correction: GradientCorrection = GradientCorrection()
    epochs: int | None = None
    steps: int | None = None
    weights: npt.NDArray[np.float32] | None = None
    contrast: Contrast | None = None
    trained: Mask | None = None
    velocity: Vector | None = None
    at_home: bool = False


AS_ORDERED = Drill()


@dataclass(frozen=True)
class TrainingResult:
    """The result of local SGD."""

    end: Vector  # the trained model (d,)
    steps: int
    loss: float  # mean over the steps
    velocity: Vector | None = None  # momentum's (P,); None without it
    own: Vector | None = None  # the offset of `Debias` after training; None without it


GATE = "strategy.gate: cards"  # the option that asks for cards


@dataclass(frozen=True)
class Card:
    """A summary of an agent's training data: C (4 p + 5) numbers, about 5 kB for ten classes.

    Attributes:
        counts: samples by block and class (4, C), complete; (16, C) where the card stays with the agent.
        sums: of the projected inputs (4, C, p); zero for classes with fewer than `min_cell` samples of the agent.
        squares: sums of their squared norms (C,); zeros where they were not sent.
    """

    counts: npt.NDArray[np.float64]
    sums: npt.NDArray[np.float64]
    squares: npt.NDArray[np.float64]

    def packed(self) -> tuple[Vector, list[int]]:
        """The card as it travels: the means of its cells (4 C p,) in float32, and its counts (4 C)."""
        means = self.sums / np.maximum(self.counts, 1.0)[..., None]
        return means.astype(np.float32).ravel(), self.counts.astype(int).ravel().tolist()


class Local(Protocol):
    """An agent's data and its means to train: torch on a device, a quadratic function in tests.

    Models are float32 (d,). Losses are means over samples, computed in evaluation mode. Random
    draws follow the seed of the order, so the same order gives the same result.

    Example:
        How much a client gains by training, in the method's own client half:

        >>> def gain(local: covey.Local, model: np.ndarray) -> float:
        ...     trained = local.train(model, covey.Drill(epochs=1))
        ...     return local.loss(model) - local.loss(trained.end)
    """

    @property
    def examples(self) -> int:
        """n_i, the number of training samples."""

    def loss(self, model: Vector) -> float:
        """F_i(model): the mean loss over the training set."""

    def losses(self, model: Vector) -> npt.NDArray[np.float32]:
        """The loss of each training sample (n_i,), in the order of the data."""

    def gradient(
        self, model: Vector, *, batch: int | None = None, rows: SampleIndices | None = None
    ) -> Vector:
        """The gradient of F_i at the model (d,), in evaluation mode; zero in the buffers.

        Args:
            model: where to take the gradient (d,).
            batch: use this many samples, drawn without replacement, instead of all.
            rows: use these samples.
        """

    def batches(self, epochs: int | None = None) -> Iterator[list[SampleIndices]]:
        """The mini-batches of each epoch, in a new order in each epoch, as `train` uses them.

        Args:
            epochs: the number of epochs; None: that of the training settings.
        """

    def train(self, start: Vector, drill: Drill = AS_ORDERED) -> TrainingResult:
        """Local SGD with the training settings of the order.

        Args:
            start: the model to begin with (d,).
            drill: what this training does beyond the settings.
        """

    def units(self) -> SampleIndices:
        """The unit (n_i,) of each training sample; samples of one unit belong together."""

    def memberships(self, model: Vector, clusters: int) -> npt.NDArray[np.int64]:
        """Training samples per cluster (K,), by the largest output of the projection head."""

    def predict(self, model: Vector, split: DataSplit) -> npt.NDArray[np.float32]:
        """Logits (n, classes), or predicted values (n, 1) for a regression task."""

    def inputs(self) -> npt.NDArray[np.float32]:
        """Training samples (n_i, values per sample) as they were read, before standardisation."""

    def targets(self, split: DataSplit) -> npt.NDArray[Any]:
        """Class indices (n,) int64, or values (n,) float32 for a regression task."""

    def card(self, seed: int, client: ClientId, min_cell: int, blocks: int | None = None) -> Card:
        """The summary of the training samples by which a fleet is tested for shifts.

        It is made of the samples as the model gets them.

        Args:
            seed: of the run.
            client: the agent.
            min_cell: the fewest samples of a class whose sums are in it.
            blocks: of the card; None: as many as one that is sent.
        """


class Featured(Local, Protocol):
    """Data with a model whose last layer is known."""

    def features(self, model: Vector, split: DataSplit) -> npt.NDArray[np.float64]:
        """What the last layer of the model reads (n, width), for each sample of a part of the data."""


@dataclass(frozen=True)
class Fold:
    """An agent's training samples, of which a part tests and the others train."""

    local: Local
    units: SampleIndices  # the unit of each sample that tests


class Received(tuple[Vector, ...]):
    """The vectors that an order names: fewer than the method takes, where a coordinator left some out. To take one that is not
    there, or one after another of none, raises PublicError.
    """

    __slots__ = ()

    def __getitem__(self, place: Any) -> Any:
        try:
            return super().__getitem__(place)
        except IndexError:
            raise self._too_few from None

    def __iter__(self) -> Iterator[Vector]:
        if not self:
            raise self._too_few
        return super().__iter__()

    @property
    def _too_few(self) -> PublicError:
        return PublicError(f"the order has {counted(len(self), 'model')}, its work needs more")


@dataclass(frozen=True)
class Job:
    """An order as the client receives it: with vectors instead of keys."""

    phase: str  # name of the phase
    round: int  # rounds that are complete
    client: ClientId
    seed: int  # of the run, the same for all agents: draw with round and client as further keys
    models: tuple[Vector, ...]  # (d,) each, or shorter where the method sends parts of models
    numbers: Numbers
    cluster: int | None
    layout: Layout
    training: Training  # with the learning rate of this round
    held_back: Local | None = (
        None  # samples on which the client compares models; None: it has no vote
    )
    split: Split | None = None  # None: the whole model travels, and `layout` is that of it
    folds: Iterable[Fold] = ()  # of the training samples, where a phase needs them

    def __post_init__(self) -> None:
        object.__setattr__(self, "models", Received(self.models))

    @property
    def outputs(self) -> int:
        """Outputs of the whole model."""
        return self.layout.outputs if self.split is None else self.split.whole.outputs


def taken(job: Job, count: int) -> tuple[Vector, ...]:
    """The vectors of an order that has as many. Raises PublicError for more, which could hide what is compared, and for fewer."""
    if len(job.models) != count:
        had = counted(len(job.models), "model")
        raise PublicError(f"the order has {had}, its work takes {count}")
    return job.models


@dataclass(frozen=True)
class Report:
    """What a client sends back after a phase: the vectors and numbers that `Phase` announced, and how it trained.

    Example:
        >>> report = covey.Report({"model": np.zeros(10, np.float32)}, examples=60, steps=6, loss=0.7)
        >>> report.vectors["model"].shape
        (10,)
    """

    vectors: Mapping[str, Vector]  # float32, of the lengths in `Phase.sizes`
    examples: int  # n_i, training samples
    numbers: Numbers = field(default_factory=dict)  # as `Phase.numbers` describes them
    steps: int = 0  # tau_i, steps of local SGD
    loss: float = 0.0  # mean training loss over the steps

    # For a vector that may travel as a difference: the index in `job.models` of the model that the
    # difference is taken from. Compression loses less of a difference.
    bases: Mapping[str, int] = field(default_factory=dict)


def check_finite(report: Report, client: ClientId) -> None:
    """Raise PublicError for a vector with NaN or infinity."""
    for name, vector in sorted(report.vectors.items()):
        if not np.isfinite(vector).all():
            raise PublicError(
                f"{client}: the training diverged: {name!r} is not finite; lower training.lr"
            )


def trained_report(
    result: TrainingResult, local: Local, numbers: Numbers | None = None, *, base: int | None = 0
) -> Report:
    """The usual report: the trained model under the name "model", with its steps and loss.

    Args:
        result: what `local.train` returned.
        local: the client's data.
        numbers: what else the report carries.
        base: the index in `job.models` of the model that training began with; None where the
            model does not travel as a difference.
    """
    return Report(
        vectors={MODEL: result.end},
        examples=local.examples,
        numbers=numbers or {},
        steps=result.steps,
        loss=result.loss,
        bases={} if base is None else {MODEL: base},
    )


class Works(Protocol):
    """Who carries out an order: a method, or what secure sums put around its client half."""

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        """See `Strategy.work`."""
