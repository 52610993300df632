"""The mini-batches of local training, the same for every learner: the same seed gives the same batches. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from covey.agent.policy import Rules
from covey.shared.strategies.base import SampleIndices, Training


class Batching:
    """Draws the mini-batches of one order's trainings, and counts their steps, which the owner's rules bound.

    Args:
        examples: n_i, the number of training samples.
        training: sets the size of a batch and the number of epochs.
        rng: draws the order of samples, nothing else.
        rules: bound epochs and steps.
        skips_single: whether a batch of one sample is left out, because batch norm cannot take it.
    """

    _steps: int  # of SGD, in all trainings of this order

    def __init__(
        self,
        examples: int,
        training: Training,
        rng: np.random.Generator,
        rules: Rules,
        *,
        skips_single: bool = False,
    ) -> None:
        self._examples = examples
        self._training = training
        self._rng = rng
        self._rules = rules
        self._skips_single = skips_single
        self._steps = 0

    def __repr__(self) -> str:
        size = self._training.batch
        return f"<Batching of {self._examples} samples by {size}: {self._steps} steps counted>"

    def order(self) -> SampleIndices:
        """All training samples in a new order."""
        return self._rng.permutation(self._examples)

    def drawn(self, count: int | None) -> SampleIndices:
        """`count` samples without replacement; None, or more than there are: all of them."""
        if count is None or count >= self._examples:
            return np.arange(self._examples)
        return self.order()[:count]

    def batches(self, epochs: int | None) -> Iterator[list[SampleIndices]]:
        """For each epoch the rows of its mini-batches, in a fresh order; the short last batch is kept."""
        size = self._training.batch
        if epochs is None:
            epochs = self._training.epochs
        for _ in range(epochs):
            order = self.order()
            starts = range(0, self._examples, size)
            yield [order[start : start + size] for start in starts]

    def begin(self, epochs: int | None, steps: int | None) -> tuple[int, int | None]:
        """Settle the length of a training that is about to begin, and count its steps.

        Args:
            epochs: None: that of the training settings.
            steps: overrides epochs.

        Returns:
            The epochs to draw, and the steps after which to stop; None: after these epochs.

        Raises:
            PolicyError: the owner of this device allows fewer epochs or steps.
        """
        if epochs is None:
            epochs = self._training.epochs
        if steps is not None:
            steps = max(steps, 0)
            epochs = math.ceil(steps / self._batches_per_epoch)
        self._count(epochs, steps)
        return epochs, steps

    @property
    def _batches_per_epoch(self) -> int:
        """Batches that are trained on; at least 1, so that any number of steps takes finitely many epochs."""
        size = self._training.batch
        batches = math.ceil(self._examples / size)
        last_has_one_sample = self._examples % size == 1
        if self._skips_single and last_has_one_sample:
            batches -= 1
        return max(batches, 1)

    def _count(self, epochs: int, steps: int | None) -> None:
        self._rules.check_epochs(epochs)
        if steps is None:
            steps = epochs * math.ceil(self._examples / self._training.batch)
        self._steps += steps
        self._rules.check_steps(self._steps)
