"""Built-in models and the user's own, as torch modules, layouts and initial vectors.

Every builder takes (features, outputs, **options). Modules are declared in the order of the forward
pass, so that the last declared one is the final layer.
"""

from __future__ import annotations

import inspect
import itertools
import math
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from covey.agent.own_code import resolve
from covey.shared.consent import BUILT_IN_MODELS, NO_CODE, AllowedCode
from covey.shared.errors import PublicError, UserError
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.numerics.vectors import Tensor as Entry
from covey.shared.scenario.task import Task
from covey.shared.seeds import entropy

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)

MOST_LAYERS = 64

Features = tuple[int, ...]


def build(
    task: Task, seed: int, allowed: AllowedCode = NO_CODE, *, values: int | None = None
) -> nn.Module:
    """The task's model with framework-default weights drawn from `seed`; torch's global generator is left as it was.

    A model that is not built in is imported only where `allowed` names it. `values`: how many parameters and buffers it
    must have; a built-in model that has others is refused before memory is taken for them. UserError for an unknown
    name, wrong options, or features that the model cannot take.
    """
    name = task.model.name
    builder = BUILT_IN.get(name) or _users_own(name, allowed)
    with torch.random.fork_rng(devices=[]):
        if values is not None and name in BUILT_IN:
            _check_size(builder, task, values)
        torch.manual_seed(entropy(seed, "weights") & (2**63 - 1))
        module = _named(builder, task)
        if not isinstance(module, nn.Module):
            raise UserError(
                f"task.model {name!r} returned {type(module).__name__}; a torch.nn.Module is wanted"
            )
        _try_out(module, task)
    return module


def _named(builder: Callable[..., Any], task: Task) -> Any:
    """What the builder makes of the task. UserError names the model and its options."""
    name, options = task.model.name, task.model.options
    try:
        return _built(builder, task, options)
    except UserError:
        raise
    except Exception as error:  # the user's code, or options that it does not know
        raise UserError(
            f"task.model {name!r} with features {list(task.features)} and options {options}: {error}"
            f"; it takes {_signature(builder)}"
        ) from error


def _check_size(builder: Callable[..., Any], task: Task, values: int) -> None:
    """Build without memory, count, and compare: an order names widths of its own."""
    with torch.device("meta"):
        sketch = _named(builder, task)
    count = sum(
        tensor.numel() for tensor in tensors_of(sketch).values() if tensor.is_floating_point()
    )
    if count != values:
        raise PublicError(
            f"task.model: built here it has {count} values, the coordinator's has {values}; bring both to one version"
        )


def _built(builder: Callable[..., Any], task: Task, options: Mapping[str, Any]) -> Any:
    """A built-in model takes the option `head` (null: none) besides its own; a user's own has it as a `Headed`, if at all."""
    if "head" not in options or builder not in BUILT_IN.values():
        return builder(task.features, task.outputs, **options)
    clusters = options["head"]
    if clusters is None:
        return builder(
            task.features,
            task.outputs,
            **{name: value for name, value in options.items() if name != "head"},
        )
    if not isinstance(clusters, int) or clusters < 1:
        raise PublicError(
            f"task.model.options.head is {clusters!r}; the number of clusters, 1 or more, is wanted"
        )
    own = {name: value for name, value in options.items() if name != "head"}
    return Headed(builder(task.features, task.outputs, **own), clusters)


def layout_of(module: nn.Module) -> Layout:
    """Parameters in `named_parameters()` order, then floating-point buffers. Integer buffers are left out."""
    parameters = list(module.named_parameters())
    for name, part in module.named_modules():
        if isinstance(part, BATCH_NORMS) and part.track_running_stats and part.momentum is None:
            raise PublicError(
                f"task.model: {name} averages over all batches it ever saw (momentum=None), but a federated model keeps "
                "no such count; give it a momentum, 0.1 for example"
            )
    buffers = [
        (name, buffer) for name, buffer in module.named_buffers() if buffer.is_floating_point()
    ]
    for name, tensor in [*parameters, *buffers]:
        if tensor.dtype != torch.float32:
            raise PublicError(f"task.model: {name} is {tensor.dtype}; float32 is wanted throughout")
    entries = tuple(Entry(name, tuple(tensor.shape)) for name, tensor in [*parameters, *buffers])
    if not parameters:
        raise PublicError("task.model: the model has no parameters, there is nothing to train")
    return Layout(entries, len(parameters))


def tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers, integer ones too, by the names that a layout has for them."""
    return dict(module.named_parameters()) | dict(module.named_buffers())


def initial(
    task: Task, seed: int, start: int = 0, allowed: AllowedCode = NO_CODE
) -> tuple[Vector, Layout]:
    """Initial vector (d,) number `start` and its layout.

    A vector in `task.init` is the first one's parameters, and the others are drawn, since models that start equal never
    separate; a matrix (starts, P) there has the parameters of all, and what `agent model` wrote has all of them whole.
    """
    module = build(task, seed, allowed)
    layout = layout_of(module)
    own = tensors_of(module)
    vector = layout.vector(
        {entry.name: own[entry.name].detach().numpy() for entry in layout.tensors}
    )
    if task.init is not None:
        stored = _stored(task.init, layout, start)
        if stored is not None:
            vector[: stored.size] = stored
    return vector, layout


class Net(nn.Sequential):
    """Named layers in a row."""

    def __init__(self, **layers: nn.Module) -> None:
        super().__init__(OrderedDict(layers))


class Headed(nn.Module):
    """A model with a projection head beside its final layer.

    Takes a sequence of layers that ends in a linear one and keeps their names. The head is linear, ReLU, linear on
    the features (n, d) that the final layer reads, and stands before it, so that the final layer stays the last.
    Its outputs are logits of `clusters` clusters; `forward` leaves it out.
    """

    def __init__(self, layers: nn.Sequential, clusters: int) -> None:
        super().__init__()
        *body, (last, final) = layers.named_children()
        if not isinstance(final, nn.Linear):
            raise PublicError(
                f"a projection head needs a model that ends in a linear layer, not in {type(final).__name__}"
            )
        self.clusters = clusters
        self._body, self._final = [name for name, _ in body], last
        for name, layer in body:
            self.add_module(name, layer)
        width = final.in_features
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, clusters))
        self.add_module(last, final)

    def features(self, x: Tensor) -> Tensor:
        """What the final layer and the head read (n, d)."""
        for name in self._body:
            x = self.get_submodule(name)(x)
        return x

    def classify(self, features: Tensor) -> Tensor:
        """The task's outputs from the features."""
        return cast(Tensor, self.get_submodule(self._final)(features))

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.features(x))


def headed(module: nn.Module, clusters: int) -> Headed:
    """The module, if it has a projection head for so many clusters. Raises UserError otherwise."""
    if isinstance(module, Headed) and module.clusters == clusters:
        return module
    has = f"a head for {module.clusters}" if isinstance(module, Headed) else "no projection head"
    raise PublicError(
        f"task.model has {has}, the strategy has {clusters} clusters: set task.model.options.head to {clusters}"
    )


def linear(features: Features, outputs: int) -> nn.Module:
    return Net(flatten=nn.Flatten(), fc=nn.Linear(math.prod(features), outputs))


def mlp(features: Features, outputs: int, *, hidden: int | list[int] = 200) -> nn.Module:
    """Fully connected layers with ReLU; 784-200-10 has 159 010 parameters."""
    widths = [math.prod(features), *([hidden] if isinstance(hidden, int) else hidden)]
    if len(widths) > MOST_LAYERS:
        raise PublicError(
            f"task.model.options.hidden: {len(widths) - 1} layers, at most {MOST_LAYERS} are possible"
        )
    layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
    for i, (inside, outside) in enumerate(itertools.pairwise(widths), start=1):
        layers |= {f"fc{i}": nn.Linear(inside, outside), f"relu{i}": nn.ReLU()}
    return Net(**layers, **{f"fc{len(widths)}": nn.Linear(widths[-1], outputs)})


def lenet5(features: Features, outputs: int) -> nn.Module:
    """LeNet-5 without padding: 44 426 parameters on (1, 28, 28), 62 006 on (3, 32, 32)."""
    channels, height, width = _image(features, "lenet5", 16)
    flat = 16 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
    return Net(
        conv1=nn.Conv2d(channels, 6, 5),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(6, 16, 5),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(flat, 120),
        relu3=nn.ReLU(),
        fc2=nn.Linear(120, 84),
        relu4=nn.ReLU(),
        fc3=nn.Linear(84, outputs),
    )


def cnn1d(features: Features, outputs: int, *, filters: int = 32, hidden: int = 64) -> nn.Module:
    """Sensor windows (channels, length): two convolutions of width 5 with pooling, 8 averaged positions, two fc.

    On UCI HAR's (9, 128) with 6 classes it has 44 998 parameters.
    """
    if len(features) != 2 or features[1] < 4:
        raise PublicError(
            f"task.model cnn1d: features {list(features)}; [channels, length >= 4] is wanted"
        )
    return Net(
        conv1=nn.Conv1d(features[0], filters, 5, padding=2),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool1d(2),
        conv2=nn.Conv1d(filters, 2 * filters, 5, padding=2),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool1d(2),
        average=nn.AdaptiveAvgPool1d(8),
        flatten=nn.Flatten(),
        fc1=nn.Linear(2 * filters * 8, hidden),
        relu3=nn.ReLU(),
        fc2=nn.Linear(hidden, outputs),
    )


class _Residual(nn.Sequential):
    """x + f(x)."""

    def forward(self, x: Tensor) -> Tensor:
        inside = x
        for layer in self:
            inside = layer(inside)
        return x + inside


def resnet9(features: Features, outputs: int) -> nn.Module:
    """ResNet-9 with group norm: 6 575 370 parameters for (3, 32, 32) and 10 classes."""
    channels, _, _ = _image(features, "resnet9", 32)

    def block(inside: int, outside: int, pool: bool = False) -> nn.Module:
        layers = [nn.Conv2d(inside, outside, 3, padding=1), nn.GroupNorm(32, outside), nn.ReLU()]
        return nn.Sequential(*layers, *([nn.MaxPool2d(2)] if pool else []))

    return Net(
        prep=block(channels, 64),
        layer1=block(64, 128, pool=True),
        residual1=_Residual(block(128, 128), block(128, 128)),
        layer2=block(128, 256, pool=True),
        layer3=block(256, 512, pool=True),
        residual3=_Residual(block(512, 512), block(512, 512)),
        pool=nn.MaxPool2d(4),
        flatten=nn.Flatten(),
        fc=nn.Linear(512 * (features[1] // 32) * (features[2] // 32), outputs),
    )


def femnist_cnn(features: Features, outputs: int, *, hidden: int = 2048) -> nn.Module:
    """LEAF's FEMNIST model; hidden 248 is FeSEM's. 6 603 710 and 845 510 parameters for 62 classes."""
    channels, height, width = _image(features, "femnist_cnn", 4)
    return Net(
        conv1=nn.Conv2d(channels, 32, 5, padding=2),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(32, 64, 5, padding=2),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(64 * (height // 4) * (width // 4), hidden),
        relu3=nn.ReLU(),
        fc2=nn.Linear(hidden, outputs),
    )


def celeba_cnn(
    features: Features,
    outputs: int,
    *,
    blocks: int = 4,
    bn_mode: Literal["running", "batch"] = "running",
) -> nn.Module:
    """LEAF's CelebA model, 31 202 parameters for (3, 84, 84). bn_mode "batch" normalises by the batch in tests too."""
    channels, height, width = _image(features, "celeba_cnn", 2)
    if bn_mode not in {"running", "batch"}:
        raise PublicError(f"task.model.options.bn_mode is {bn_mode!r}; running or batch is wanted")
    if blocks > MOST_LAYERS:
        raise PublicError(
            f"task.model.options.blocks is {blocks}, at most {MOST_LAYERS} are possible"
        )
    layers: dict[str, nn.Module] = {}
    for i in range(1, blocks + 1):
        layers |= {
            f"conv{i}": nn.Conv2d(channels if i == 1 else 32, 32, 3, padding=1),
            f"bn{i}": nn.BatchNorm2d(32, momentum=0.1, track_running_stats=bn_mode == "running"),
            f"pool{i}": nn.MaxPool2d(2, ceil_mode=True),
            f"relu{i}": nn.ReLU(),
        }
        height, width = (height + 1) // 2, (width + 1) // 2
    return Net(**layers, flatten=nn.Flatten(), fc=nn.Linear(32 * height * width, outputs))


def vgg16(features: Features, outputs: int, *, dropout: float = 0.0) -> nn.Module:
    """VGG16 for 32x32 images: 13 convolutions, 512-512-out; 15 245 130 parameters for 10 classes."""
    channels, height, width = _image(features, "vgg16", 32)
    layers: dict[str, nn.Module] = {}
    conv = 0
    for group, (filters, repeats) in enumerate(
        [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)], start=1
    ):
        for _ in range(repeats):
            conv += 1
            layers |= {
                f"conv{conv}": nn.Conv2d(channels, filters, 3, padding=1),
                f"relu{conv}": nn.ReLU(),
            }
            channels = filters
        layers[f"pool{group}"] = nn.MaxPool2d(2)
    inside = 512 * (height // 32) * (width // 32)
    layers["flatten"] = nn.Flatten()
    for i in (1, 2):
        layers |= {f"fc{i}": nn.Linear(inside, 512), f"relu_fc{i}": nn.ReLU()}
        if dropout:
            layers[f"dropout{i}"] = nn.Dropout(dropout)
        inside = 512
    return Net(**layers, fc3=nn.Linear(512, outputs))


BUILT_IN: Mapping[str, Callable[..., nn.Module]] = {
    builder.__name__: builder
    for builder in (lenet5, mlp, linear, cnn1d, resnet9, femnist_cnn, celeba_cnn, vgg16)
}
assert tuple(BUILT_IN) == BUILT_IN_MODELS  # noqa: S101 - the names are known where torch is not


def _image(features: Features, name: str, least: int) -> tuple[int, int, int]:
    if len(features) != 3 or min(features[1:]) < least:
        raise PublicError(
            f"task.model {name}: features {list(features)}; images [channels, height, width] "
            f"of at least {least}x{least} are wanted"
        )
    return features[0], features[1], features[2]


def _users_own(name: str, allowed: AllowedCode) -> Callable[..., Any]:
    allowed.check_model(name, "the model", "the owner of this machine")
    try:
        builder = resolve(name, allowed)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"task.model {name!r}: {error}; install the module on the coordinator and every device"
        ) from error
    if not callable(builder):
        raise UserError(f"task.model {name!r}: it is not callable")
    return cast(Callable[..., Any], builder)


def _try_out(module: nn.Module, task: Task) -> None:
    """One forward pass, so that a model that does not fit is found at start and not in the first round."""
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            shape = tuple(module(torch.zeros(2, *task.features)).shape)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise UserError(
            f"task.model {task.model.name!r} does not take features {list(task.features)}: {error}"
        ) from error
    if shape != (2, task.outputs):
        raise PublicError(
            f"task.model {task.model.name!r} gives shape {shape} for 2 samples, the task wants (2, {task.outputs})"
        )
    module.train(was_training)


def _signature(builder: Callable[..., Any]) -> str:
    try:
        return str(inspect.signature(builder))
    except (TypeError, ValueError):
        return "(features, outputs, **options)"


def _stored(path: str, layout: Layout, start: int) -> Vector | None:
    """Start number `start` as the file has it: `theta0` are parameters (P,), `starts` of `agent model` whole models (d,)."""
    try:
        with np.load(path, allow_pickle=False) as file:
            name = "starts" if "starts" in file.files else "theta0"
            if name not in file.files:
                raise UserError(
                    f"task.init {path}: no array theta0; it holds {', '.join(file.files)}"
                )
            theta = file[name]
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise UserError(f"task.init {path}: {error}; an .npz file with theta0 is wanted") from error
    wanted = layout.size if name == "starts" else layout.parameters
    if theta.ndim not in (1, 2) or theta.shape[-1] != wanted or theta.dtype != np.float32:
        raise UserError(
            f"task.init {path}: {name} is {theta.dtype} of shape {theta.shape}; "
            f"the model has {layout.parameters} parameters, float32 ({wanted},) is wanted, or a row of them per start"
        )
    if not np.isfinite(theta).all():
        raise UserError(f"task.init {path}: {name} holds a NaN or infinity")
    if theta.ndim == 1:
        return cast(Vector, theta) if start == 0 else None
    if start >= len(theta):
        raise UserError(
            f"task.init {path}: {name} has {len(theta)} rows, this method wants one more for start {start}"
        )
    return cast(Vector, theta[start])
