"""Models of the user's own that bring the code which trains them (`agent.own_code.Loop`): scikit-learn, JAX, any library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from covey.agent.data.dataset import Array, Dataset
from covey.agent.data.local import DataOfLocal, Float32
from covey.agent.data.scaling import Scaling
from covey.agent.kept.privacy_account import DeviceAccount
from covey.agent.learning import check_layout
from covey.agent.own_code import Loop, State
from covey.agent.policy import OwnersRules
from covey.extras.light.numpy_learner import loss_of
from covey.shared.errors import PublicError
from covey.shared.numerics.vectors import Layout, Tensor, Vector
from covey.shared.own_code.consent import AllowedCode
from covey.shared.privacy.settings import Budget, LocalPrivacy, Noise
from covey.shared.scenario.task import Task
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import AS_ORDERED, Drill, SampleIndices, TrainingResult
from covey.shared.wire.messages import DeviceKind

SEEDS = 2**31  # exclusive: most libraries take a seed of 32 bits


@dataclass(frozen=True)
class OrderedTraining:
    """What an order asks of a loop."""

    epochs: int
    steps: int | None  # stop after this number; None: after the epochs
    batch: int
    lr: float  # of this round
    momentum: float
    weight_decay: float
    seed: int  # another one for each training


@dataclass(frozen=True)
class TrainingData:
    """What a loop trains on."""

    features: Float32  # (n, *task.features), scaled by the task
    targets: Array  # (n,) int64 class indices, or float32 values, standardised if the task is


def start_of(loop: Loop, seed: int) -> tuple[dict[str, Float32], Layout]:
    """The initial values of a loop and their layout. Raises PublicError for values that are not arrays of numbers."""
    named = _as_float32(loop.start(seed), "start")
    if not named:
        raise PublicError("task.model: start returned no values; expected arrays by name")
    for name, array in named.items():
        if not np.isfinite(array).all():
            raise PublicError(
                f"task.model: start returned {name} with NaN, infinity or values beyond float32; expected finite numbers"
            )
    tensors = tuple(Tensor(name, array.shape) for name, array in named.items())
    return named, Layout(tensors, len(tensors))


def _as_float32(state: Any, function: str) -> dict[str, Float32]:
    if not isinstance(state, Mapping):
        raise PublicError(
            f"task.model: {function} returned {type(state).__name__}; expected arrays by name"
        )
    try:
        arrays = {str(name): np.asarray(value) for name, value in state.items()}
        if any(np.iscomplexobj(array) for array in arrays.values()):
            raise TypeError("complex")  # its imaginary part would be lost
        with np.errstate(over="ignore"):
            return {name: np.array(array, np.float32) for name, array in arrays.items()}
    except (TypeError, ValueError) as error:
        raise PublicError(f"task.model: {function} returned values that are not numbers") from error


class LoopLocal(DataOfLocal):
    """A `shared.strategy.Local` that trains by a loop of the user's own.

    Args:
        loop: the model.
        dataset: samples of shape `task.features`, or columns of a table, which become inputs here.
        task: of the run.
        layout: of the coordinator's model.
        training: settings of local SGD.
        rng: draws the seeds of trainings.
        rules: how much may be trained.

    Raises:
        PublicError: model and layout differ.
        DataError: there are no training samples.
    """

    device = "cpu"
    _counted: int | None = None  # by how many samples the newest training counts; None before it

    def __init__(
        self,
        loop: Loop,
        dataset: Dataset,
        task: Task,
        *,
        layout: Layout,
        training: Training,
        rng: np.random.Generator,
        rules: OwnersRules,
    ) -> None:
        super().__init__(dataset, task, training, rng, rules)
        self._loop = loop
        self._layout = layout
        self._rng = rng
        self._loss = loss_of(task)
        self._scaling = Scaling.of(task)
        check_layout(start_of(loop, 0)[1], layout)

    @property
    def examples(self) -> int:
        """n_i: what the newest training returned, before it the number of training samples."""
        return super().examples if self._counted is None else self._counted

    def enable_privacy(
        self,
        privacy: LocalPrivacy,
        budget: Budget,
        noise: Noise,
        ledger: npt.NDArray[np.float64] | None,
        account: DeviceAccount | None,
    ) -> NoReturn:
        """Refuse DP-SGD: a device must not train without the noise that its order asks for."""
        self._refuse("DP-SGD (privacy.local)")

    def losses(self, model: Vector) -> Float32:
        """Loss of each training sample (n_i,), in data order."""
        samples = self._samples["train"]
        with np.errstate(all="ignore"):  # a loss that is not finite is reported as such
            losses, _ = self._loss(self._computed(model, samples.features), samples.targets)
        return losses

    def memberships(self, model: Vector, clusters: int) -> NoReturn:
        """Refuse to count by a projection head."""
        self._refuse("a projection head")

    def gradient(
        self, model: Vector, *, batch: int | None = None, rows: SampleIndices | None = None
    ) -> NoReturn:
        """Refuse: a loop does not show its gradients."""
        self._refuse("gradients")

    def train(self, start: Vector, drill: Drill = AS_ORDERED) -> TrainingResult:
        """Call the loop. Each training begins at rest, without momentum.

        Raises:
            PolicyError: the owner of this device allows fewer epochs or steps.
            PublicError: the order asks for what a loop cannot do, or the loop returned something else than it should.
        """
        asked = {
            "terms in the gradient": drill.correction.drift is not None
            or drill.correction.mu > 0
            or drill.correction.debias is not None,
            "weights of samples": self._weights(drill.weights) is not None,
            "a contrastive loss": drill.contrast is not None,
            "frozen values": drill.trained is not None,
            "another precision (training.precision)": self._training.precision != "fp32",
            "changed images (training.augment)": self._training.augment != "none",
        }
        for what, is_asked in asked.items():
            if is_asked:
                self._refuse(what)
        epochs, steps = self._batching.begin(drill.epochs, drill.steps)
        settings = OrderedTraining(
            epochs,
            steps,
            self._training.batch,
            lr=self._training.lr,
            momentum=self._training.momentum,
            weight_decay=self._training.weight_decay,
            seed=int(self._rng.integers(SEEDS)),
        )
        samples = self._samples["train"]
        data = TrainingData(self._scaled(samples.features), samples.targets)
        state, count, figures = self._loop.train(self._named(start), data, settings)
        end = self._vector(state)
        self._check_count(count, len(samples))
        self._counted = int(count)
        if steps is None:
            steps = epochs * -(-max(count, len(samples)) // self._training.batch)
        loss = float(figures["loss"]) if "loss" in figures else self.loss(end)
        return TrainingResult(end, steps, loss)

    def _check_count(self, count: int, samples: int) -> None:
        if not 1 <= count <= samples:
            raise PublicError(
                f"task.model: train returned {count} samples; expected 1 to {samples}"
            )

    def _named(self, model: Vector) -> State:
        """The values of a model by name, of the loop's own."""
        return self._layout.named(model.copy())

    def _vector(self, state: Any) -> Vector:
        named = _as_float32(state, "train")
        if not self._layout.fits(named):
            shapes = {name: list(array.shape) for name, array in named.items()}
            raise PublicError(
                f"task.model: train returned {shapes}; expected the names and shapes of start"
            )
        return self._layout.vector(named)

    def _computed(self, model: Vector, features: Array) -> Float32:
        outputs = self._loop.evaluate(self._named(model), self._scaled(features))
        outputs = np.asarray(outputs, np.float32)
        expected = (len(features), self._task.outputs)
        if outputs.shape != expected:
            raise PublicError(
                f"task.model: evaluate returned shape {outputs.shape}; expected {expected}"
            )
        return outputs

    def _scaled_rows(self, raw: Array) -> Float32:
        return self._scaled(raw).reshape(len(raw), -1)

    def _scaled(self, raw: Array) -> Float32:
        return self._scaling.apply(raw.astype(np.float32))

    def _refuse(self, what: str) -> NoReturn:
        raise PublicError(
            f"task.model {self._task.model.name} trains by code of its own, which has not been made for {what}; choose a "
            "method that does without, such as fedavg or fedclust, and remove the keys that ask for it"
        )


class Bare:
    """The `Library` of another framework."""

    def prepare(self, threads: int = 1) -> None:
        """Do nothing: the loop's own module has imported what it needs."""

    def device(self, wish: str, setting: str) -> DeviceKind:
        """The processor, as far as Covey knows."""
        return "cpu"


BARE = Bare()


@dataclass(frozen=True)
class LoopLearner(Bare):
    """A `covey.agent.learning.Learner` of one loop."""

    loop: Loop

    def layout(self, task: Task, allowed: AllowedCode) -> Layout:
        """See `Learner.layout`."""
        return start_of(self.loop, 0)[1]

    def local(
        self,
        dataset: Dataset,
        task: Task,
        layout: Layout,
        *,
        training: Training,
        rng: np.random.Generator,
        rules: OwnersRules,
    ) -> LoopLocal:
        """See `Learner.local`."""
        return LoopLocal(
            self.loop, dataset, task, layout=layout, training=training, rng=rng, rules=rules
        )
