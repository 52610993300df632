"""The learner `torch`: trains every model, on the processor or a GPU.

Importing this module does not import torch. `prepare` does, once the environment is set.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

from covey.agent.policy import OwnersRules
from covey.shared.own_code.consent import AllowedCode
from covey.shared.scenario.task import Task
from covey.shared.wire.messages import DeviceKind

if TYPE_CHECKING:
    import numpy as np

    from covey.agent.data.dataset import Dataset
    from covey.agent.training.learner import Nets, TorchLocal
    from covey.shared.numerics.vectors import Layout, Vector
    from covey.shared.strategies.base import Training
    from covey.shared.wire.number_formats import Array, Scratch

COMPILER_FLAG = "TORCHINDUCTOR_DETERMINISTIC"


class TorchLearner:
    """A `covey.agent.learning.Learner`. It keeps the module of the newest order, which the next order mostly needs again."""

    def __init__(self) -> None:
        self._nets: Nets | None = None  # None before the first order

    def __repr__(self) -> str:
        return f"<TorchLearner: {self._nets!r}>"

    def prepare(self, threads: int = 1) -> None:
        """Import torch, with this number of threads and algorithms that give the same result each time."""
        configure_torch(threads)

    def device(self, wish: str, setting: str) -> DeviceKind:
        """See `choose_device`."""
        from covey.agent.training.compute_device import choose_device

        return choose_device(wish, setting)

    def layout(self, task: Task, allowed: AllowedCode) -> Layout:
        """See `Learner.layout`."""
        from covey.agent.training.models import model_of

        return model_of(task, allowed)[1]

    def local(
        self,
        dataset: Dataset,
        task: Task,
        layout: Layout,
        *,
        training: Training,
        rng: np.random.Generator,
        rules: OwnersRules,
    ) -> TorchLocal:
        """See `Learner.local`."""
        from covey.agent.training.learner import Nets, TorchLocal

        if self._nets is None:
            self._nets = Nets()
        return TorchLocal(
            dataset, task, layout, training=training, rng=rng, rules=rules, nets=self._nets
        )


def configure_torch(threads: int = 1) -> None:
    """Set the number of threads, one by default, and algorithms that give the same result each time.

    From then on torch converts to float16 in this process, with the same bytes.

    `torch.use_deterministic_algorithms` sets the same flags, but imports torch's compiler to do so: that doubles the
    time that a worker takes to start, and adds 70 MB. Only a user's own model that compiles itself needs the compiler,
    which then reads its flag from the environment.
    """
    os.environ[COMPILER_FLAG] = "1"
    _import_torch()
    import torch

    from covey.shared.wire import number_formats

    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    torch.set_deterministic_debug_mode("warn")
    number_formats.CONVERSIONS["float16"] = write_float16


def write_float16(values: Vector, out: Array, _: Scratch) -> None:
    """What `values.astype(np.float16)` writes to `out` (n,). torch converts many values at once, numpy one.

    float16 only: for bfloat16, some processors have an instruction that replaces the smallest values by zero.
    """
    import numpy as np
    import torch

    writable = np.require(values, requirements="W")  # torch warns about other arrays
    torch.from_numpy(out.view(np.float16)).copy_(torch.from_numpy(writable))


def _import_torch() -> None:
    """Import torch without the search for garbage, which would take a tenth of the time: what an import creates, stays."""
    if "torch" in sys.modules:
        return
    gc.disable()
    import torch  # noqa: F401

    gc.freeze()
    gc.enable()


LEARNER = TorchLearner()
