"""The layers of a model before all that trains: their outputs are computed once for all epochs, and kept for later orders."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import nn

from covey.agent.training.flat_module import may_draw
from covey.shared.numerics.split import Split
from covey.shared.numerics.vectors import Layout
from covey.shared.scenario.task import Task

FEATURES_BYTES = (
    256 << 20
)  # of a process, for outputs that are kept; those of larger data are computed each time

Features = npt.NDArray[np.float16]  # (n, *shape)


class FrozenLayers:
    """A sequence of layers in two parts: those that never train, and the others.

    Attributes:
        body: the layers before the first tensor that trains, as the task divides the model.
        head: all other layers.
        values: the places of the body's tensors in a model.
    """

    def __init__(self, body: nn.Sequential, head: nn.Sequential, values: list[slice]) -> None:
        self.body = body
        self.head = head
        self.values = values

    def __repr__(self) -> str:
        return f"<FrozenLayers: {len(self.body)} of {len(self.body) + len(self.head)}>"


def frozen_layers(module: nn.Module, task: Task, layout: Layout) -> FrozenLayers | None:
    """The frozen layers of a model. None if it is no sequence of layers, or its first layer with parameters trains.

    A layer that draws random numbers, such as dropout, belongs to the head.
    """
    if type(module).forward is not nn.Sequential.forward or not (task.share or task.freeze):
        return None
    assert isinstance(module, nn.Sequential)  # noqa: S101 - it has the forward pass of one
    split = Split.by_patterns(layout, task.share, task.keep, task.freeze)
    trained = {
        tensor.name.partition(".")[0]
        for tensor, role in zip(layout.tensors, split.roles, strict=True)
        if role != "freeze"
    }
    names = [name for name, _ in module.named_children()]
    count = 0
    for name, layer in module.named_children():
        if name in trained or any(may_draw(one) for one in layer.modules()):
            break
        count += 1
    frozen = {*names[:count]}
    values = [span for tensor, span in layout.spans() if tensor.name.partition(".")[0] in frozen]
    if not values:
        return None
    layers = list(module.children())
    return FrozenLayers(nn.Sequential(*layers[:count]), nn.Sequential(*layers[count:]), values)
