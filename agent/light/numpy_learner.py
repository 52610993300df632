"""The learner `numpy`: trains the models `linear` and `mlp` on the processor, without torch."""

from __future__ import annotations

import numpy as np

from covey.agent.data.dataset import Dataset
from covey.agent.light.dense_net import layout_of_task
from covey.agent.light.numpy_local import NumpyLocal
from covey.agent.policy import Rules
from covey.shared.consent import AllowedCode
from covey.shared.errors import PublicError
from covey.shared.numerics.vectors import Layout
from covey.shared.scenario.task import Task
from covey.shared.strategies.base import Training
from covey.shared.wire.messages import DeviceKind


class NumpyLearner:
    """A `covey.agent.learning.Learner`."""

    def prepare(self, threads: int = 1) -> None:
        """Do nothing: this module has imported numpy, and the environment of a worker sets the threads."""

    def device(self, wish: str, setting: str) -> DeviceKind:
        """Always the processor. Raises PublicError for a wish for another device."""
        if wish in ("auto", "cpu"):
            return "cpu"
        raise PublicError(
            f"{setting}: the learner of this device (numpy) can use no {wish}; set auto or cpu, or start the agent "
            "with --learner torch"
        )

    def layout(self, task: Task, allowed: AllowedCode) -> Layout:
        """The layout of the task's model. Raises PublicError for a model other than `linear` and `mlp`."""
        return layout_of_task(task)

    def local(
        self,
        dataset: Dataset,
        task: Task,
        layout: Layout,
        training: Training,
        rng: np.random.Generator,
        rules: Rules,
    ) -> NumpyLocal:
        """See `Learner.local`."""
        rules.device(training.device, self.device)
        return NumpyLocal(dataset, task, layout, training, rng, rules=rules)


LEARNER = NumpyLearner()
