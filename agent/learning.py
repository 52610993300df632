"""What a worker needs of a learner.

This module imports no numpy and no torch: a learner loads its own libraries.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Protocol

from covey.shared.errors import PublicError
from covey.shared.sentences import some

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from covey.agent.data.dataset import Dataset
    from covey.agent.kept.privacy_account import DeviceAccount
    from covey.agent.policy import OwnersRules
    from covey.shared.numerics.vectors import Layout
    from covey.shared.own_code.consent import AllowedCode
    from covey.shared.privacy.settings import Budget, LocalPrivacy, Noise
    from covey.shared.scenario.task import Task
    from covey.shared.strategies.base import Training
    from covey.shared.strategies.client_half import Local
    from covey.shared.wire.messages import DeviceKind

    class LocalTraining(Local, Protocol):
        """A `Local` as a worker uses it."""

        @property
        def device(self) -> str:
            """The kind of device that computes; the report repeats it."""

        def enable_privacy(
            self,
            privacy: LocalPrivacy,
            budget: Budget,
            noise: Noise,
            ledger: npt.NDArray[np.float64] | None,
            account: DeviceAccount | None,
        ) -> None:
            """Make `train` DP-SGD from now on, with steps of as many samples as the data set states. Raises PublicError if this learner cannot do that."""


SAME_VERSION = "install the same version on both machines"


def check_layout(own: Layout, theirs: Layout) -> None:
    """Compare the layout of the model that was built here with the coordinator's.

    Raises:
        PublicError: they differ; the text names the first tensor that does.
    """
    if own.digest == theirs.digest:
        return
    pairs = zip_longest(own.tensors, theirs.tensors)
    differing = next((pair for pair in pairs if pair[0] != pair[1]), None)
    if differing is None and own.frozen != theirs.frozen:
        raise PublicError(
            f"task.model: built here it trains all but {some(own.frozen) or 'nothing'}, the coordinator's all but "
            f"{some(theirs.frozen) or 'nothing'}; {SAME_VERSION}"
        )
    first = ""
    if differing is not None:
        here, there = (
            "missing" if one is None else f"{one.name} {list(one.shape)}" for one in differing
        )
        first = f" (the first that differs: {here} here, {there} there)"
    raise PublicError(
        f"task.model: built here it has {own.parameters} parameters in {len(own.tensors)} tensors, the coordinator's has "
        f"{theirs.parameters} in {len(theirs.tensors)}{first}; {SAME_VERSION}"
    )


class Library(Protocol):
    """What a learner computes with."""

    def prepare(self, threads: int = 1) -> None:
        """Load the libraries and set them up for a worker process, with this number of threads."""

    def device(self, wish: str, setting: str) -> DeviceKind:
        """The kind of device to compute on.

        Args:
            wish: a kind of device, or "auto".
            setting: the name of the setting that holds the wish, for the message.

        Raises:
            PublicError: the learner cannot compute on this kind of device here.
        """


class Learner(Library, Protocol):
    """Trains a task's models on a device's data."""

    def layout(self, task: Task, allowed: AllowedCode) -> Layout:
        """The layout of the task's model.

        Raises:
            PublicError: the learner does not train this model.
            ConsentError: the model is not built in, and `allowed` does not name it.
        """

    def local(
        self,
        dataset: Dataset,
        task: Task,
        layout: Layout,
        *,
        training: Training,
        rng: np.random.Generator,
        rules: OwnersRules,
    ) -> LocalTraining:
        """A device's data with the means to train on it.

        Args:
            dataset: fits the task.
            task: resolved: it has the fleet's statistics.
            layout: of the coordinator's model.
            training: settings of local SGD.
            rng: draws the order of samples.
            rules: of this device.

        Raises:
            PublicError: the learner does not train this model, or its layout is another one.
            DataError: there are no training samples.
        """
