"""Torch behind `Local`: the one local training loop of the project."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from covey.agent.data import Dataset
from covey.agent.data.dataset import Array, kept_arrays, recalled
from covey.agent.data.local import CHUNK, DataOfLocal, Float32, chunks
from covey.agent.kept.privacy_account import DeviceAccount
from covey.agent.learning import check_layout
from covey.agent.policy import NO_CODE_RULES, OwnersRules
from covey.agent.training.architectures import BUILT_IN, THRESHOLD
from covey.agent.training.augment import augmentation_for, augmentation_of_training
from covey.agent.training.compute_device import choose_device, prepare_device
from covey.agent.training.flat_module import (
    FEATURES_BYTES,
    SEEDS,
    Features,
    FlatModule,
    freeze,
    frozen_layers,
)
from covey.agent.training.models import build, headed, model_of, tensors_of
from covey.agent.training.objective import (
    Change,
    ContrastiveObjective,
    Debiased,
    ImageViews,
    InputScaling,
    Objective,
    TaskLoss,
    in_precision,
    supervised,
    unchanged,
)
from covey.agent.training.sgd import ScaledSteps, Sgd
from covey.agent.training.together import ask, is_together
from covey.agent.training.trial import check_batch
from covey.shared import extras
from covey.shared.errors import PublicError
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.own_code.consent import AllowedCode
from covey.shared.privacy.settings import Budget, LocalPrivacy, Noise
from covey.shared.scenario.task import Task
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import (
    AS_ORDERED,
    Contrast,
    Drill,
    SampleIndices,
    TrainingResult,
)
from covey.shared.strategies.training import unfit_for_dp_sgd
from covey.shared.wire.messages import digest

if TYPE_CHECKING:
    from covey.extras.private.private_sgd import PrivateSgd


class _Key(NamedTuple):
    """All that a built-in model depends on. Its options may hold lists, so they are text."""

    model: str
    features: tuple[int, ...]
    outputs: int
    layout: str
    device: str


class Nets:
    """Builds modules, and keeps one. Every training and every prediction loads the whole state of a module first.

    A module of the user's own code may keep a state that no vector holds, so it is built for each order.
    """

    def __init__(self) -> None:
        self.features = kept_arrays(FEATURES_BYTES)  # of frozen layers
        self._key: _Key | None = None  # of `_kept`
        self._kept: FlatModule | None = None  # None before the first built-in model

    def __repr__(self) -> str:
        return f"<Nets: {self._kept!r}>"

    def net(
        self, task: Task, layout: Layout, device: torch.device, allowed: AllowedCode
    ) -> FlatModule:
        """The task's module on the device. Its values are undefined.

        Args:
            task: names the model.
            layout: of the coordinator's model.
            device: where the module computes.
            allowed: the user's own code that may be imported.

        Raises:
            PublicError: the model cannot be built here, or has another layout.
        """
        key = _key(task, layout, device)
        if self._kept is not None and key == self._key:
            return self._kept
        self._kept = None  # first: two large modules may not fit into memory
        check_layout(model_of(task, allowed, values=layout.size)[1], layout)
        net = FlatModule(build(task, 0, allowed, values=layout.size).to(device), layout, device)
        if task.model.name in BUILT_IN:
            self._key = key
            self._kept = net
        return net


def _key(task: Task, layout: Layout, device: torch.device) -> _Key:
    model = task.model.model_dump_json()
    return _Key(model, task.features, task.outputs, layout.digest, str(device))


GATHERED_BATCHES = 64  # batches that are gathered and scaled at once

Ledger = npt.NDArray[np.float64]
Batch = tuple[Tensor, Tensor, Tensor | None]  # inputs, targets, sample weights; on the device


class TorchLocal(DataOfLocal):
    """A `shared.strategy.Local` over data that `agent.data.fit` has passed.

    Models and batches lie on the device; vectors enter and leave on the CPU. The same generator state, start and data give
    the same bytes on one kind of device.

    Args:
        dataset: samples of shape `task.features`, or columns of a table, which become inputs here.
        task: model, loss, and scaling of the features.
        layout: of the coordinator's model.
        training: settings of local SGD.
        rng: draws the order of samples and the seed of dropout, nothing else.
        scaling: `mean` and `std` per channel; None: the task's own fixed values, if it has any.
        rules: which models of the user's own may be imported, how much may be trained, and the kind of device where
            the owner has set one.
        nets: keeps the module for the next order of the same model; None: it is built for this one alone.

    Raises:
        PublicError: model and layout differ, or the device does not exist here.
        DataError: there are no training samples.
    """

    frozen_once = (
        0  # samples whose outputs of frozen layers the newest training read; 0: no such layers
    )
    _scaling: InputScaling  # on the device
    _net: FlatModule  # the task's model; each call loads the vector that it needs
    _private: PrivateSgd | None  # set while training is DP-SGD
    _private_net: FlatModule  # exists with `_private`: Opacus has hooks in it, all else uses `_net`

    def __init__(
        self,
        dataset: Dataset,
        task: Task,
        layout: Layout,
        training: Training,
        rng: np.random.Generator,
        *,
        scaling: Mapping[str, Sequence[float]] | None = None,
        rules: OwnersRules = NO_CODE_RULES,
        nets: Nets | None = None,
    ) -> None:
        self.device = rules.device(training.device, choose_device)
        self._device = prepare_device(self.device)
        nets = nets or Nets()
        self._net = nets.net(task, layout, self._device, rules.allowed)
        self._features = nets.features
        self._trial, _ = model_of(task, rules.allowed, values=layout.size)
        skips_single = not self._trial.takes_one
        super().__init__(dataset, task, training, rng, rules, skips_single=skips_single)
        self._rng = rng
        self._layout = layout
        self._rules = rules
        self._loss = TaskLoss.of(task)
        self._scaling = InputScaling.of(task, scaling).to(self._device)
        self._private = None

    def enable_privacy(
        self,
        privacy: LocalPrivacy,
        budget: Budget,
        noise: Noise,
        ledger: Ledger | None,
        account: DeviceAccount | None = None,
    ) -> None:
        """Make `train` DP-SGD from now on.

        Args:
            privacy: the scenario's section `privacy.local`.
            budget: what a target epsilon must last for.
            noise: draws samples and noise.
            ledger: what earlier orders have spent, (rows, 3); None for nothing.
            account: of this device over all runs; None: none is kept.

        Raises:
            PublicError: Opacus is missing, or the model cannot be trained this way.
        """
        private_sgd = extras.part("private", "private_sgd", "privacy.local")
        module = build(self._task, 0, self._rules.allowed, values=self._layout.size)
        module.to(self._device)  # before Opacus, which holds on to its parameters
        freeze(tensors_of(module), self._layout)
        private_sgd.check_layers(module, mixes=self._trial.mixes)
        self._private = private_sgd.PrivateSgd(
            privacy,
            module,
            self._dataset.stated or self.examples,
            self._training,
            budget=budget,
            noise=noise,
            ledger=ledger,
            account=account,
        )
        self._private_net = FlatModule(module, self._layout, self._device)

    @property
    def ledger(self) -> Ledger | None:
        """The steps of DP-SGD so far, earlier orders included; None without it."""
        return None if self._private is None else self._private.ledger

    def spent(self) -> float:
        """Epsilon of the ledger; 0 without DP-SGD."""
        return 0.0 if self._private is None else self._private.spent()

    # -- evaluation mode -------------------------------------------------------------------------------------

    def losses(self, model: Vector) -> Float32:
        """Loss of each training sample (n_i,), in data order."""
        targets = torch.from_numpy(self._samples["train"].targets).to(self._device)
        losses: list[Tensor] = []
        with torch.inference_mode():
            outputs = self._outputs(model, self._samples["train"].features)
            for output, target in zip(outputs, _chunks(targets, CHUNK), strict=True):
                losses.append(self._loss.per_sample(output, target))
        return torch.cat(losses).cpu().numpy()

    def _computed(self, model: Vector, features: Array) -> Float32:
        with torch.inference_mode():
            outputs = list(self._outputs(model, features))
        if not outputs:
            return np.empty((0, self._task.outputs), np.float32)
        return torch.cat(outputs).cpu().numpy()

    def _last_inputs(self, model: Vector, features: Array) -> Float32:
        last = self._net.module.get_submodule(self._layout.modules[-1])
        found: list[Float32] = []

        def keep(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            found.append(inputs[0].flatten(1).cpu().numpy())

        hook = last.register_forward_pre_hook(keep)
        try:
            self._computed(model, features)
        finally:
            hook.remove()
        return np.concatenate(found)

    def memberships(self, model: Vector, clusters: int) -> npt.NDArray[np.int64]:
        """Training samples in each cluster (K,): hard counts by the head, evaluation mode, no augmentation."""
        net = headed(self._net.module, clusters)
        self._net.load(model)
        net.eval()
        assigned: list[Tensor] = []
        with torch.inference_mode():
            for inputs in self._inputs(self._samples["train"].features):
                assigned.append(net.head(net.features(inputs)).argmax(dim=1))
        clusters_of_samples = torch.cat(assigned).cpu().numpy()
        return np.bincount(clusters_of_samples, minlength=clusters)

    def gradient(
        self, model: Vector, *, batch: int | None = None, rows: SampleIndices | None = None
    ) -> Vector:
        """Gradient of F_i at the model (d,); 0 in the buffers.

        Args:
            model: (d,) float32.
            batch: that many samples are drawn; None or more than there are: all of them.
            rows: the samples to use, instead of `batch`.
        """
        net = self._net
        net.load(model)
        net.module.eval()
        net.gradient.zero_()
        if rows is None:
            rows = self._batching.drawn(batch)
        for chunk in _chunks(torch.from_numpy(rows), CHUNK):
            inputs, targets = self._gathered(chunk)
            share_of_mean = self._loss.per_sample(net.module(inputs), targets).sum() / len(rows)
            share_of_mean.backward()  # type: ignore[no-untyped-call]
        result = np.zeros(self._layout.size, np.float32)
        result[: self._layout.parameters] = net.gradient.cpu().numpy()
        return result

    def _outputs(self, model: Vector, features: Array) -> Iterator[Tensor]:
        """The model's outputs for each chunk of features."""
        self._net.load(model)
        self._net.module.eval()
        for inputs in self._inputs(features):
            yield self._net.module(inputs)

    def _inputs(self, features: Array) -> Iterator[Tensor]:
        """Scaled inputs on the device, in chunks."""
        for raw in chunks(features, CHUNK):
            yield self._scaled(torch.from_numpy(raw))

    # -- training --------------------------------------------------------------------------------------------

    def train(self, start: Vector, drill: Drill = AS_ORDERED) -> TrainingResult:
        """LocalTrain. No step at all (one sample, of which the model cannot learn) gives the start and its loss.

        Under `enable_privacy` this is DP-SGD unless the result stays at home; its loss is 0 because the true one would leak.

        Raises:
            PolicyError: the owner of this device allows fewer epochs or steps.
            PublicError: the model has no suitable head, DP-SGD cannot train this way, or the batches are too small.
        """
        check_batch(self._trial, self._training.batch)
        epochs, steps = self._batching.begin(drill.epochs, drill.steps)
        if self._training.precision == "fp16" and self.device == "cpu":
            raise PublicError(
                "training.precision is fp16, and this device computes on its processor; set it to bf16 or fp32, or "
                "training.device to auto where there is a GPU"
            )
        if self._private is not None and not drill.at_home:
            if drill.weights is not None or drill.contrast is not None:
                raise PublicError(
                    "privacy.local: this method weighs examples or compares them, which DP-SGD "
                    "cannot do; choose another method, or remove privacy.local"
                )
            finds_anomalies = self._task.anomalies is not None
            if why := unfit_for_dp_sgd(self._training, finds_anomalies=finds_anomalies):
                raise PublicError(f"privacy.local: {why}")
            if steps is None:
                steps = self._private.steps(epochs)
            return self._train_with_dp_sgd(self._private, start, drill, steps)
        correction, weights = drill.correction, self._weights(drill.weights)
        net = self._net
        net.load(start)
        features = None
        if drill.contrast is None and drill.trained is not None and steps is None:
            features = self._frozen_features(start)
        is_plain = drill.contrast is None and features is None and correction.debias is None
        if is_together() and is_plain and self._can_be_batched and epochs:
            batched = extras.part("simulate", "batched")
            rows = batched.padded(self._batching.batches(epochs), self._training.batch)[:steps]
            return self._trained_with_others(
                batched.Course(
                    start,
                    correction,
                    drill.trained,
                    velocity=drill.velocity,
                    weights=weights,
                    rows=rows,
                )
            )
        sgd = Sgd(net, self._training, correction, drill.trained, drill.velocity)
        objective = self._objective(drill.contrast)
        gathered = self._gathered
        if features is not None:
            head, kept = features
            objective = supervised(head, self._loss)
            gathered = partial(self._gathered_of, kept)
            self.frozen_once = len(kept)
        objective = in_precision(objective, self._training.precision, self._device)
        debiased = None
        if correction.debias is not None:
            last = net.module.get_submodule(self._layout.modules[-1])
            debiased = Debiased(correction.debias, last, self._device)
        take = self._step(sgd, debiased)
        losses: list[Tensor] = []
        in_effect = nullcontext() if debiased is None else debiased.applied()
        with net.training(drill.trained), net.seeded(self._rng), in_effect:
            batches = chain.from_iterable(self._epoch(weights, gathered) for _ in range(epochs))
            for inputs, targets, weight in islice(batches, steps):
                net.gradient.zero_()
                loss = objective(inputs, targets, weight)
                losses.append(loss.detach())
                take(loss if debiased is None else loss + debiased.term())
        if not losses:
            return TrainingResult(start.copy(), 0, self.loss(start), drill.velocity)
        all_losses = torch.stack(losses).cpu()  # before .double(): not every device has doubles
        mean_loss = float(all_losses.double().mean())
        end = net.vector()
        self._set_threshold(end)
        own = None if debiased is None else debiased.own.detach().cpu().numpy()
        return TrainingResult(end, len(losses), mean_loss, sgd.velocity, own)

    def _step(self, sgd: Sgd, debiased: Debiased | None) -> Callable[[Tensor], None]:
        """What takes a step from the loss of a batch."""

        def step() -> None:
            self._net.settle()
            sgd.step()
            if debiased is not None:
                debiased.step(self._training.lr)

        def take(loss: Tensor) -> None:
            loss.backward()  # type: ignore[no-untyped-call]
            step()

        if self._training.precision != "fp16":
            return take
        leaves = [self._net.leaf] if debiased is None else [self._net.leaf, debiased.own]
        return ScaledSteps(leaves, step, self._device).take

    @property
    def _can_be_batched(self) -> bool:
        settings = self._training
        return (
            settings.augment == "none"
            and settings.precision == "fp32"
            and self._task.model.name in BUILT_IN
            and not self._trial.mixes
            and extras.part("simulate", "batched").can_be_batched(self._net)
        )

    def _trained_with_others(self, course: Any) -> TrainingResult:
        """`train` in steps that other agents take at the same time."""
        key = _key(self._task, self._layout, self._device)
        inputs, targets = self._gathered(torch.arange(self.examples))
        result: TrainingResult = ask(
            extras.part("simulate", "batched").TrainingRequest(
                key,
                self._net,
                self._layout,
                loss=self._loss,
                training=self._training,
                inputs=inputs,
                targets=targets,
                course=course,
            )
        )
        self.device = f"{self._device.type} batched"  # other bytes
        self._set_threshold(result.end)
        return result

    def _set_threshold(self, model: Vector) -> None:
        """Set the threshold of a model of anomalies (d,) by its errors on the training samples."""
        if self._task.anomalies is None:
            return
        [place] = [span for tensor, span in self._layout.spans() if tensor.name == THRESHOLD]
        model[place] = np.quantile(self.losses(model), self._task.anomalies.quantile)

    def _train_with_dp_sgd(
        self, private: PrivateSgd, start: Vector, drill: Drill, steps: int
    ) -> TrainingResult:
        """DP-SGD: each batch is a Poisson sample; what bends the gradient afterwards does not see the data."""
        net = self._private_net
        net.load(start)
        net.train()
        sgd = Sgd(net, self._training, drill.correction, drill.trained, drill.velocity)
        private.spend(steps)
        fixed = None if drill.trained is None else net.parts(~drill.trained)
        with net.seeded(self._rng):
            for _ in range(steps):
                drawn = private.sample()
                held = drawn[drawn < self.examples]  # those that were left out have no gradient
                inputs, targets = self._gathered(torch.from_numpy(held))
                gradients = private.gradients(partial(self._summed_loss, targets), inputs, fixed)
                for view, gradient in zip(net.gradients, gradients, strict=True):
                    view.copy_(gradient)
                net.settle()
                sgd.step()
        return TrainingResult(net.vector(), steps, 0.0, sgd.velocity)

    def _frozen_features(self, model: Vector) -> tuple[nn.Module, Features] | None:
        """The layers that may train, and their inputs for each training sample (n_i, ...).

        None if all layers may train, images change from epoch to epoch, or the inputs take too much memory or are too
        large for float16.
        """
        if self._training.augment != "none":
            return None
        layers = frozen_layers(self._net.module, self._task, self._layout)
        if layers is None:
            return None
        self._net.module.eval()
        raw = self._samples["train"].features
        with torch.inference_mode():
            first = layers.body(self._scaled(torch.from_numpy(raw[:1])))
        if first.numel() * self.examples * np.float16().nbytes > FEATURES_BYTES:
            return None

        def compute() -> Features:
            with torch.inference_mode():
                found = [layers.body(inputs).half().cpu().numpy() for inputs in self._inputs(raw)]
            return np.concatenate(found)

        values = np.concatenate([model[span] for span in layers.values])
        settings = f"{self.device} {self._task.model_dump_json()}"
        key = (
            digest(settings.encode()),
            digest(values.data),
            digest(np.ascontiguousarray(raw).data),
        )
        features = recalled(self._features, key, compute)
        return (layers.head, features) if np.isfinite(features).all() else None

    def _gathered_of(self, features: Features, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs of frozen layers and the targets of training samples, on the device."""
        chosen = torch.from_numpy(features).index_select(0, rows).to(self._device, torch.float32)
        targets = torch.from_numpy(self._samples["train"].targets).index_select(0, rows)
        return chosen, targets.to(self._device)

    def _epoch(
        self, weights: Float32 | None, gathered: Callable[[Tensor], tuple[Tensor, Tensor]]
    ) -> Iterator[Batch]:
        """The batches of one epoch in a fresh order; a short last batch is kept, unless it is one sample of which the model
        cannot learn.

        Args:
            weights: of the samples (n_i,); None: all alike.
            gathered: inputs and targets of some training samples, on the device.
        """
        size = self._training.batch
        all_weights = None
        if weights is not None:
            all_weights = torch.from_numpy(np.ascontiguousarray(weights, np.float32))
        order = torch.from_numpy(self._batching.order())
        # gathering many batches at once costs less than gathering each
        for rows in _chunks(order, size * GATHERED_BATCHES):
            inputs, targets = gathered(rows)
            input_batches = _chunks(inputs, size)
            target_batches = _chunks(targets, size)
            weight_batches: Sequence[Tensor | None] = [None] * len(input_batches)
            if all_weights is not None:
                weight_batches = _chunks(all_weights.index_select(0, rows).to(self._device), size)
            for batch in zip(input_batches, target_batches, weight_batches, strict=True):
                if len(batch[1]) == 1 and not self._trial.takes_one:
                    continue
                yield batch

    def _objective(self, contrast: Contrast | None) -> Objective:
        """What a training minimises."""
        augment = augmentation_of_training(self._training.augment)
        if contrast is None and augment is None:
            return supervised(self._net.module, self._loss)
        views = self._views()
        own: Change = unchanged
        if augment is not None:
            own = partial(views.changed, augment=augment)
        if contrast is None:
            return supervised(self._net.module, self._loss, own)
        net = headed(self._net.module, contrast.clusters)
        augment_views = augmentation_for(self._task.features)
        return ContrastiveObjective(net, self._loss, contrast, augment_views, views, own)

    def _views(self) -> ImageViews:
        """Changes of this agent's images, by a seed that is drawn here."""
        seed = int(self._rng.integers(SEEDS))
        features = torch.from_numpy(self._samples["train"].features)
        return ImageViews.of(features, self._task.scale, self._scaling, seed)

    def _summed_loss(self, targets: Tensor, outputs: Tensor) -> Tensor:
        return self._loss.per_sample(outputs, targets).sum()

    def _gathered(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Scaled inputs and targets of training samples, on the device."""
        samples = self._samples["train"]
        raw = torch.from_numpy(samples.features).index_select(0, rows)
        targets = torch.from_numpy(samples.targets).index_select(0, rows)
        return self._scaled(raw), targets.to(self._device)

    def _scaled_rows(self, raw: Array) -> Float32:
        return self._scaled(torch.from_numpy(raw)).flatten(1).cpu().numpy()

    def _scaled(self, raw: Tensor) -> Tensor:
        """Inputs on the device from features of a file."""
        on_device = raw.to(self._device)  # before the conversion: bytes travel faster than floats
        return self._scaling.apply(on_device.to(torch.float32))


def _chunks(tensor: Tensor, size: int) -> tuple[Tensor, ...]:
    """Views of at most `size` rows each."""
    return tensor.split(size)  # type: ignore[no-untyped-call, no-any-return]
