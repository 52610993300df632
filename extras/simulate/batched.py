"""Local SGD of many agents at once: models of one layout take each step together.

A step of a small model takes a GPU less time than it takes to ask for it, so a hundred agents cost little more than one. Sums
are rounded in another order than when one agent trains after the other: figures agree, not bytes.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call

from covey.agent.training.flat_module import FlatModule
from covey.agent.training.objective import TaskLoss
from covey.agent.training.sgd import Sgd
from covey.shared.numerics.split import Mask
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import GradientCorrection, SampleIndices, TrainingResult

NO_SAMPLE = -1
Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True)
class Course:
    """How one agent trains, as `Local.train` has it."""

    start: Vector  # (d,)
    correction: GradientCorrection  # without `debias`
    trained: Mask | None  # (d,) the values that may change; None: all
    velocity: Vector | None  # (P,) of earlier steps
    weights: npt.NDArray[np.float32] | None  # (n,) of the samples; None: all alike
    rows: SampleIndices  # (steps, batch) the samples of each step, NO_SAMPLE in short batches

    @property
    def kind(self) -> Hashable:
        """What courses have in common whose steps can be taken together."""
        correction = self.correction
        vectors = (correction.anchor, correction.drift, correction.on, self.trained, self.velocity)
        return (correction.mu, *(vector is None for vector in vectors))


@dataclass(frozen=True)
class TrainingRequest:
    """The training of one agent."""

    key: Hashable  # of the model and the device
    net: FlatModule  # whose layers compute; its values do not count
    layout: Layout
    loss: TaskLoss
    training: Training
    inputs: Tensor  # (n, *features), scaled, on the device
    targets: Tensor  # (n, ...), on the device
    course: Course

    @property
    def kind(self) -> Hashable:
        """What trainings have in common that can take their steps together."""
        return (self.key, self.training.model_dump_json(), self.course.kind)


def can_be_batched(net: FlatModule) -> bool:
    """Whether many models of this kind can compute at once: without recurrent layers and dropout."""
    is_recurrent = any(isinstance(layer, nn.RNNBase) for layer in net.module.modules())
    return not (is_recurrent or net.draws_random_numbers)


def padded(epochs: Iterable[Iterable[SampleIndices]], size: int) -> SampleIndices:
    """The samples of all batches (steps, size), NO_SAMPLE in short ones."""
    batches = [batch for epoch in epochs for batch in epoch]
    rows = np.full((len(batches), size), NO_SAMPLE)
    for row, batch in zip(rows, batches, strict=True):
        row[: len(batch)] = batch
    return rows


def batched(requests: Sequence[TrainingRequest]) -> list[TrainingResult]:
    """The results of trainings, in their order. Those of one kind are computed at once, as far as memory permits."""
    kinds: dict[Hashable, list[int]] = defaultdict(list)
    for place, request in enumerate(requests):
        kinds[request.kind].append(place)
    results: dict[int, TrainingResult] = {}
    for places in kinds.values():
        # longest first: those that still train are always the first ones
        places.sort(key=lambda place: len(requests[place].course.rows), reverse=True)
        found = _within_memory([requests[place] for place in places])
        results.update(zip(places, found, strict=True))
    return [results[place] for place in range(len(requests))]


def _within_memory(requests: Sequence[TrainingRequest]) -> list[TrainingResult]:
    """The results of trainings of one kind, in two halves where the device's memory does not hold all."""
    try:
        return _trained(requests)
    except torch.OutOfMemoryError:
        if len(requests) == 1:
            raise
    torch.cuda.empty_cache()
    half = len(requests) // 2
    return [*_within_memory(requests[:half]), *_within_memory(requests[half:])]


def _trained(requests: Sequence[TrainingRequest]) -> list[TrainingResult]:
    """The results of trainings of one kind, longest first."""
    first = requests[0]
    models = _Models(requests)
    samples = _Samples(requests)
    courses = [request.course for request in requests]
    corrections = [course.correction for course in courses]
    correction = GradientCorrection(
        anchor=_stacked([one.anchor for one in corrections]),
        mu=corrections[0].mu,
        drift=_stacked([one.drift for one in corrections]),
        on=_stacked([one.on for one in corrections]),
    )
    trained = _stacked([course.trained for course in courses])
    velocity = _stacked([course.velocity for course in courses])
    sgd = Sgd(models, first.training, correction, trained, velocity)
    steps = [len(course.rows) for course in courses]
    losses = torch.zeros(steps[0], len(requests), device=samples.inputs.device)
    first.net.train()
    with warnings.catch_warnings():
        # the gradients of all layers lie in one tensor, so those of a layer have gaps
        warnings.filterwarnings("ignore", "grad and param do not obey the gradient layout")
        for step in range(steps[0]):
            active = sum(step < own for own in steps)
            if active < len(models.parameters):
                models.keep_first(active)
                sgd.keep_first(active)
            models.gradient.zero_()
            own = models.losses(*samples.of_step(step, active))
            losses[step, :active] = own.detach()
            own.sum().backward()  # type: ignore[no-untyped-call]
            sgd.step()
    sums = losses.cpu().double().sum(dim=0).tolist()
    ends = models.state.cpu().numpy()
    velocities = sgd.velocity
    return [
        TrainingResult(
            ends[place].copy(),
            own_steps,
            sums[place] / own_steps,
            None if velocities is None else velocities[place].copy(),
        )
        for place, own_steps in enumerate(steps)
    ]


def _stacked(vectors: Sequence[npt.NDArray[Scalar] | None]) -> npt.NDArray[Scalar] | None:
    """Vectors of all agents (agents, ...); None if they have none."""
    there = [vector for vector in vectors if vector is not None]
    return np.stack(there) if there else None


class _Models:
    """Models that take their steps together; to `Sgd` they look like one module."""

    state: Tensor  # (agents, d) on the device
    parameters: Tensor  # (agents that still train, P) view of it
    gradient: Tensor  # of the same shape

    def __init__(self, requests: Sequence[TrainingRequest]) -> None:
        first = requests[0]
        device = first.inputs.device
        self._net = first.net
        self._layout = first.layout
        self._loss = first.loss
        self.state = torch.from_numpy(np.stack([request.course.start for request in requests])).to(
            device
        )
        self.parameters = self.state[:, : first.layout.parameters]
        self.gradient = torch.zeros_like(self.parameters)
        self._tie()

    def _tie(self) -> None:
        """Make leaves of the tensors, whose gradients are views of `gradient`."""
        count = len(self.parameters)
        self._tensors: dict[str, Tensor] = {}
        for place, (entry, span) in enumerate(self._layout.spans()):
            tensor = self.state[:count, span].view(count, *entry.shape)
            if place < self._layout.trainable:
                tensor = tensor.detach().requires_grad_()
                tensor.grad = self.gradient[:, span].view(count, *entry.shape)
            self._tensors[entry.name] = tensor

    def keep_first(self, count: int) -> None:
        """The others have taken all their steps."""
        self.parameters = self.parameters[:count]
        self.gradient = self.gradient[:count]
        self._tie()

    def losses(self, inputs: Tensor, targets: Tensor, shares: Tensor) -> Tensor:
        """The mean loss (agents,) of each model on its batch."""

        def of_one(
            tensors: Mapping[str, Tensor], inputs: Tensor, targets: Tensor, shares: Tensor
        ) -> Tensor:
            outputs = functional_call(self._net.module, dict(tensors), (inputs,))
            return (self._loss.per_sample(outputs, targets) * shares).sum()

        return torch.vmap(of_one)(self._tensors, inputs, targets, shares)


class _Samples:
    """The training samples of all agents, and which of them each step takes."""

    inputs: Tensor  # (samples, *features)

    def __init__(self, requests: Sequence[TrainingRequest]) -> None:
        device = requests[0].inputs.device
        self.inputs = torch.cat([request.inputs for request in requests])
        self._targets = torch.cat([request.targets for request in requests])
        shape = (len(requests), *requests[0].course.rows.shape)
        rows = np.zeros(shape, np.int64)  # into all samples
        shares = np.zeros(shape, np.float32)  # of each in the mean of its batch
        before = 0
        for own_rows, own_shares, request in zip(rows, shares, requests, strict=True):
            course = request.course
            steps = len(course.rows)
            there = course.rows != NO_SAMPLE
            weights = there.astype(np.float32)
            if course.weights is not None:
                weights *= course.weights[course.rows]
            own_rows[:steps] = np.where(there, course.rows, 0) + before
            own_shares[:steps] = weights / there.sum(axis=1, keepdims=True)
            before += len(request.inputs)
        self._rows = torch.from_numpy(rows).to(device)
        self._shares = torch.from_numpy(shares).to(device)

    def of_step(self, step: int, agents: int) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs (agents, batch, *features), targets, and the share of each sample in the mean."""
        rows = self._rows[:agents, step]
        return self.inputs[rows], self._targets[rows], self._shares[:agents, step]
