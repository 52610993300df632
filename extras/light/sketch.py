"""Initial weights of the built-in models without torch, and the bytes that torch draws on the same seed.

The builders of `built_in` get sketches of layers in place of torch's: a sketch knows names, shapes and how each tensor
begins. All of torch's layers that they use begin with constants, or with values that are uniform within a bound.
He, Zhang, Ren, Sun 2015, Delving Deep into Rectifiers, with the slope of torch's layers: sqrt(3) * sqrt(2 / (1 + 5)) / sqrt(inputs).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from covey.shared.errors import CoveyError
from covey.shared.models.built_in import BUILDERS
from covey.shared.models.starts import seeds_of
from covey.shared.numerics.vectors import Layout, Tensor, Vector
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.task import Task
from covey.shared.seeds import entropy

BITS = 24  # of a draw, as many as a float32 has
GAIN = math.sqrt(2.0 / (1 + math.sqrt(5.0) ** 2))


class Values:
    """How one tensor begins.

    Args:
        shape: of the tensor.
        bound: draws are uniform within it; None for a constant.
        constant: the value of all, without a bound.
    """

    def __init__(
        self, shape: tuple[int, ...], bound: float | None = None, constant: float = 0.0
    ) -> None:
        for length in shape:
            if type(length) is not int or length < 1:
                raise ValueError(f"a tensor of shape {shape}")
        self.shape = shape
        self.bound = bound
        self._constant = constant

    def drawn(self, draws: np.random.RandomState) -> Vector:
        """The values (n,). Multiples of 2^-24 are scaled in one rounding."""
        size = math.prod(self.shape)
        if self.bound is None:
            return np.full(size, self._constant, np.float32)
        least = np.float32(-self.bound)
        values = draws.randint(0, 1 << BITS, size, dtype=np.uint32) * 2.0**-BITS
        values *= float(-2 * least)
        values += float(least)
        return values.astype(np.float32)


class LayerSketch:
    """A sketch of a layer: parameters, buffers and layers within it, in the order in which they are declared."""

    def __init__(
        self,
        parameters: Mapping[str, Values] | None = None,
        layers: Mapping[str, LayerSketch] | None = None,
        buffers: Mapping[str, Values] | None = None,
    ) -> None:
        self.parameters = dict(parameters or {})
        self.buffers = dict(buffers or {})
        self.layers = dict(layers or {})

    def append(self, layer: LayerSketch) -> LayerSketch:
        """One more layer in the row."""
        self.layers[str(len(self.layers))] = layer
        return self

    def all(self, of: str, prefix: str = "") -> Iterator[tuple[str, Values]]:
        """The `parameters` or `buffers` of this layer and of those within it, by name."""
        for name, values in getattr(self, of).items():
            yield f"{prefix}{name}", values
        for name, layer in self.layers.items():
            yield from layer.all(of, f"{prefix}{name}.")


class Convolution(LayerSketch):
    """A convolution, or a linear layer, which is one without positions."""

    def __init__(self, sketch: Sketch, shape: tuple[int, ...], *, bias: bool = True) -> None:
        inputs = math.prod(shape[1:])
        weight = sketch.uniform(shape, math.sqrt(3.0) * (GAIN / math.sqrt(inputs)))
        own = {"weight": weight}
        if bias:
            own["bias"] = sketch.uniform(shape[:1], 1 / math.sqrt(inputs))
        super().__init__(own)
        self.out_channels = self.out_features = shape[0]
        self.in_features = inputs


class Sketch:
    """What the builders of `built_in` take for torch.nn. It remembers what is drawn, in the order of drawing."""

    def __init__(self) -> None:
        self.order: list[Values] = []
        self.needs_company = False  # a batch of one sample may have no variance

    def uniform(self, shape: tuple[int, ...], bound: float) -> Values:
        """A tensor whose values are drawn next."""
        values = Values(shape, bound)
        self.order.append(values)
        return values

    # layers with values, by the names that torch gives them

    def Linear(self, before: int, after: int) -> LayerSketch:
        return Convolution(self, (after, before))

    def Conv1d(self, before: int, after: int, width: int, padding: int = 0) -> LayerSketch:
        return Convolution(self, (after, before, width))

    def Conv2d(
        self,
        before: int,
        after: int,
        side: int,
        stride: int = 1,
        padding: int = 0,
        *,
        groups: int = 1,
        bias: bool = True,
    ) -> LayerSketch:
        return Convolution(self, (after, before // groups, side, side), bias=bias)

    def GroupNorm(self, groups: int, channels: int) -> LayerSketch:
        return LayerSketch(
            {"weight": Values((channels,), constant=1.0), "bias": Values((channels,))}
        )

    def BatchNorm2d(
        self, channels: int, *, momentum: float, track_running_stats: bool
    ) -> LayerSketch:
        self.needs_company = True
        own = {"weight": Values((channels,), constant=1.0), "bias": Values((channels,))}
        kept = {
            "running_mean": Values((channels,)),
            "running_var": Values((channels,), constant=1.0),
        }
        return LayerSketch(own, buffers=kept if track_running_stats else None)

    def LastState(self, before: int, hidden: int, *, batch_first: bool) -> LayerSketch:
        gates = 3 * hidden
        bound = 1 / math.sqrt(hidden)
        shapes = {
            "weight_ih_l0": (gates, before),
            "weight_hh_l0": (gates, hidden),
            "bias_ih_l0": (gates,),
            "bias_hh_l0": (gates,),
        }
        return LayerSketch({name: self.uniform(shape, bound) for name, shape in shapes.items()})

    # layers in a row

    def Net(self, **layers: LayerSketch) -> LayerSketch:
        return LayerSketch(layers=layers)

    def Sequential(self, *layers: LayerSketch) -> LayerSketch:
        return LayerSketch(layers={str(number): layer for number, layer in enumerate(layers)})

    Residual = Sequential

    def Autoencoder(self, layers: LayerSketch) -> LayerSketch:
        return LayerSketch(layers={"layers": layers}, buffers={"threshold": Values((1,))})

    def headed(self, layers: LayerSketch, clusters: int) -> LayerSketch:
        """A model with a projection head before its final layer; see `Headed` of the torch models."""
        name, final = layers.layers.popitem()
        if not isinstance(final, Convolution):
            raise TypeError("a head needs a model that ends in a linear layer")
        width = final.in_features
        head = self.Sequential(self.Linear(width, width), self.ReLU(), self.Linear(width, clusters))
        return LayerSketch(layers={**layers.layers, "head": head, name: final})

    # layers without values

    def Dropout(self, share: float) -> LayerSketch:
        if not 0 <= share <= 1:
            raise ValueError(f"a share of {share}")
        return LayerSketch()

    def _empty(self, *_: Any, **__: Any) -> LayerSketch:
        return LayerSketch()

    Flatten = ReLU = ReLU6 = MaxPool1d = MaxPool2d = AdaptiveAvgPool1d = AdaptiveAvgPool2d = _empty


def sketched(task: Task) -> tuple[Sketch, Layout, list[Values]] | None:
    """A sketch of the task's model, its layout, and its tensors in the order of the layout.

    None if torch has to build it: it is not built in, has adapters, or cannot be built, which torch explains.
    """
    model = task.model
    if model.name not in BUILDERS or model.adapters is not None:
        return None
    options = dict(model.options)
    head = options.pop("head", None)
    sketch = Sketch()
    try:
        layers = BUILDERS[model.name](sketch, task.features, task.outputs, **options)
        if head is not None:
            layers = sketch.headed(layers, head)
    except (TypeError, ValueError, ArithmeticError, AttributeError, CoveyError):
        return None
    parameters = list(layers.all("parameters"))
    named = [*parameters, *layers.all("buffers")]
    layout = Layout(tuple(Tensor(name, one.shape) for name, one in named), len(parameters))
    return sketch, layout, [one for _, one in named]


def drawn(task: Task, seed: int) -> Vector | None:
    """The initial weights (d,) of a model that needs no torch; None for others."""
    found = sketched(task)
    if found is None:
        return None
    sketch, _, tensors = found
    # a Mersenne twister, as torch has
    draws = np.random.RandomState(entropy(seed, "weights") % 2**32)
    begun = {id(one): one.drawn(draws) for one in sketch.order}
    return np.concatenate(
        [begun[id(one)] if id(one) in begun else one.drawn(draws) for one in tensors]
    )


def starts_of(scenario: Scenario) -> tuple[list[Vector], Layout] | None:
    """The initial models of a scenario, where no torch is needed for them and nothing about them can fail; else None."""
    task = scenario.task
    found = sketched(task)
    if found is None or task.init is not None or task.base is not None:
        return None
    sketch, layout, _ = found
    head = scenario.strategy.projection_head
    if head and task.model.options.get("head") != head:
        return None
    if sketch.needs_company and scenario.training.batch == 1:
        return None
    starts: list[Vector] = []
    for seed in seeds_of(scenario):
        start = drawn(task, seed)
        assert start is not None  # noqa: S101 - there is a sketch
        starts.append(start)
    return starts, layout
