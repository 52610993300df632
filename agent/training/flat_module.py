"""A torch module whose whole state lies in one flat vector, and all of its gradients in another.

A step of SGD then is a few vector operations whatever the number of layers, and a model comes and goes as one copy. The
outputs of layers before all that trains are computed once for all epochs, and kept for later orders.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from covey.agent.training.models import tensors_of
from covey.agent.training.trial import drawing
from covey.shared.numerics.split import Mask, Split
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.scenario.task import Task

SEEDS = 2**63  # torch accepts seeds below this
OURS = "covey.agent.training."  # whose layers draw nothing but what those of torch inside them draw
DRAW_NOTHING = frozenset(  # layers of torch; any other one gets a seed
    {
        *(f"{kind}{axes}d" for axes in (1, 2, 3) for kind in ("Conv", "ConvTranspose")),
        *(f"{kind}{axes}d" for axes in (1, 2, 3) for kind in ("BatchNorm", "InstanceNorm")),
        *(f"{kind}{axes}d" for axes in (1, 2, 3) for kind in ("AvgPool", "MaxPool", "LPPool")),
        *(f"Adaptive{kind}Pool{axes}d" for axes in (1, 2, 3) for kind in ("Avg", "Max")),
        *(f"{kind}Pad{axes}d" for axes in (1, 2, 3) for kind in ("Reflection", "Replication")),
        *(f"{kind}Pad{axes}d" for axes in (1, 2, 3) for kind in ("Zero", "Constant")),
        *("Sequential", "ModuleList", "ModuleDict", "Identity", "Flatten", "Unflatten", "Linear"),
        *("Bilinear", "Embedding", "EmbeddingBag", "RNN", "LSTM", "GRU", "MultiheadAttention"),
        *("RNNCell", "LSTMCell", "GRUCell", "PixelShuffle", "Upsample", "SyncBatchNorm"),
        *("GroupNorm", "LayerNorm", "RMSNorm", "LocalResponseNorm", "ReLU", "ReLU6", "LeakyReLU"),
        *("PReLU", "ELU", "CELU", "SELU", "GELU", "SiLU", "Mish", "GLU", "Sigmoid", "LogSigmoid"),
        *("Hardsigmoid", "Hardswish", "Hardtanh", "Hardshrink", "Tanh", "Tanhshrink", "Softmax"),
        *("Softmax2d", "LogSoftmax", "Softmin", "Softplus", "Softsign", "Softshrink", "Threshold"),
    }
)


class _Slot(NamedTuple):
    """Where a tensor of a module belongs."""

    layer: nn.Module
    key: str  # its name in the layer
    tensor: Tensor
    home: Tensor  # a view of the state


class FlatModule:
    """A module whose float32 state lies in one tensor (d,) and whose gradients lie in another (P,).

    Args:
        module: on the device already. Its parameters and buffers become views of `state`.
        layout: of the coordinator's model, which is that of the module.
        device: where both tensors lie.
    """

    module: nn.Module
    state: Tensor  # (d,) float32: parameters, then floating-point buffers, as in the layout
    parameters: Tensor  # (P,) view of the first part of `state`
    gradient: Tensor  # (P,) float32, in the order of `parameters`; backward() adds to it
    leaf: Tensor  # `parameters` with `gradient` as its gradient
    gradients: list[Tensor]  # one view of `gradient` per parameter that is not frozen, in its shape
    draws_random_numbers: bool  # then its generator needs a seed for each training

    def __init__(self, module: nn.Module, layout: Layout, device: torch.device) -> None:
        self.module = module
        self._layout = layout
        self.state = torch.empty(layout.size, device=device)
        self.parameters = self.state[: layout.parameters]
        self.gradient = torch.zeros(layout.parameters, device=device)
        self.leaf = self.parameters.detach()
        self.leaf.grad = self.gradient
        self.gradients = []
        self.draws_random_numbers = any(may_draw(layer) for layer in module.modules())
        self._homes: list[_Slot] = []
        self._tie(layout)

    def _tie(self, layout: Layout) -> None:
        """Make the module's tensors views of `state`, and its gradients views of `gradient`."""
        tensors = tensors_of(self.module)
        freeze(tensors, layout)
        for entry, span in layout.spans():
            tensor = tensors[entry.name]
            tensor.data = self.state[span].view(entry.shape)
            layer = self.module.get_submodule(entry.module)
            self._homes.append(_Slot(layer, entry.name.rpartition(".")[2], tensor, tensor.data))
            if tensor.requires_grad:
                tensor.grad = self.gradient[span].view(entry.shape)
                self.gradients.append(tensor.grad)

    def settle(self) -> None:
        """Take values into `state` that the module's own code has put elsewhere, as `self.mean = 0.9 * self.mean + ...` does."""
        for layer, key, tensor, home in self._homes:
            now = layer._buffers.get(key, tensor)
            if now is None or now.data_ptr() == home.data_ptr():
                continue
            with torch.no_grad():
                home.copy_(now.detach())
            tensor.data = home
            if key in layer._buffers:
                layer._buffers[key] = tensor

    def __repr__(self) -> str:
        name = type(self.module).__name__
        size = len(self.state)
        return f"<FlatModule {name}: {size} values on {self.state.device}>"

    def load(self, model: Vector) -> None:
        """Copy a model (d,) into the state. Raises ValueError for another shape."""
        expected = tuple(self.state.shape)
        if model.shape != expected:
            raise ValueError(f"model has shape {model.shape}, the layout has {expected}")
        self.settle()
        if self.state.device.type == "cpu":
            np.copyto(self.state.numpy(), model)
        else:
            own_copy = np.array(model, np.float32)  # the model may be read-only, or memory-mapped
            self.state.copy_(torch.from_numpy(own_copy))

    def train(self) -> None:
        """Put the module into training mode, unless it is: each layer takes time."""
        if not self.module.training:
            self.module.train()

    @contextmanager
    def training(self, trained: Mask | None) -> Iterator[None]:
        """Training mode. Tensors of which no value is trained cost no gradient, and running statistics of them stay.

        Args:
            trained: the values that may change (d,); None: all.
        """
        self.train()
        if trained is None:
            yield
            return
        fixed = [
            entry for entry, span in self._layout.spans() if entry.size and not trained[span].any()
        ]
        tensors = tensors_of(self.module)
        parameters: list[Tensor] = []
        if trained.any():  # a loss that depends on nothing that trains has no gradient at all
            parameters = [
                tensors[entry.name] for entry in fixed if tensors[entry.name].requires_grad
            ]
        modules = {
            module: module.training
            for entry in fixed
            if not isinstance(tensors[entry.name], nn.Parameter)
            for module in [self.module.get_submodule(entry.module)]
        }
        for parameter in parameters:
            parameter.requires_grad = False
        for module in modules:
            module.training = False  # of this module alone, whatever it contains
        try:
            yield
        finally:
            for parameter in parameters:
                parameter.requires_grad = True
            for module, was_training in modules.items():
                module.training = was_training

    def parts(self, mask: Mask) -> list[Tensor]:
        """The values of a mask (d,) for each parameter that is not frozen, in its shape, on the device."""
        trainable = list(self._layout.spans())[: self._layout.trainable]
        return [
            torch.from_numpy(mask[span]).view(entry.shape).to(self.state.device)
            for entry, span in trainable
            if entry.name not in self._layout.frozen
        ]

    def vector(self) -> Vector:
        """A copy of the state (d,) float32, on the CPU."""
        self.settle()
        return cast(Vector, self.state.cpu().numpy().copy())

    @contextmanager
    def seeded(self, rng: np.random.Generator) -> Iterator[None]:
        """Seed the generators for layers such as dropout, and restore them afterwards.

        A module without such layers draws nothing from `rng`.
        """
        with drawing(int(rng.integers(SEEDS))) if self.draws_random_numbers else nullcontext():
            yield


def may_draw(layer: nn.Module) -> bool:
    """Whether a layer may draw random numbers: all may but those that are known not to. Without a seed no run repeats."""
    kind = type(layer)
    if kind.__module__.startswith(OURS):
        return False
    if not kind.__module__.startswith("torch.") or kind.__name__ not in DRAW_NOTHING:
        return True
    dropout = getattr(layer, "dropout", 0.0)  # a number in recurrent layers and attention
    return isinstance(dropout, float | int) and dropout > 0


def freeze(tensors: Mapping[str, Tensor], layout: Layout) -> None:
    """Let the tensors of a module require no gradient that the coordinator's model freezes."""
    for name in layout.frozen:
        tensors[name].requires_grad = False


# -- the layers of a model before all that trains --------------------------------------------------


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
    if type(module).forward is not nn.Sequential.forward:
        return None
    if not (task.share or task.freeze or layout.frozen):
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
