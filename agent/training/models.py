"""A task's model as a torch module, a layout and an initial vector: built in, or of the user's own."""

from __future__ import annotations

import inspect
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from covey.agent.own_code import resolve
from covey.agent.training.architectures import BUILT_IN, Headed
from covey.shared.consent import NO_CODE, AllowedCode
from covey.shared.errors import PublicError, UserError
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.numerics.vectors import Tensor as Entry
from covey.shared.scenario.task import Task
from covey.shared.seeds import entropy

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
MAX_SEED = 2**63 - 1  # of torch's generator
SAME_VERSION = "install the same version on both machines"

Builder = Callable[..., Any]  # (features, outputs, **options) -> nn.Module


def build(
    task: Task,
    seed: int,
    allowed: AllowedCode = NO_CODE,
    *,
    values: int | None = None,
) -> nn.Module:
    """The task's model with torch's default weights; torch's global generator stays as it was.

    Args:
        task: model, features and outputs.
        seed: the weights are drawn on it.
        allowed: which code of the user's own may be imported for the model.
        values: how many parameters and buffers the model must have. A built-in model that has others is refused
            before memory is taken for them.

    Raises:
        UserError: an unknown name, wrong options, or features that the model cannot take.
        ConsentError: the model is not built in, and `allowed` does not name it.
    """
    name = task.model.name
    builder = BUILT_IN.get(name)
    if builder is None:
        builder = _users_builder(name, allowed)
    with torch.random.fork_rng(devices=[]):
        if values is not None and name in BUILT_IN:
            _check_size(builder, task, values)
        torch.manual_seed(entropy(seed, "weights") & MAX_SEED)
        module = _built(builder, task)
        if not isinstance(module, nn.Module):
            raise UserError(
                f"task.model {name!r} returned {type(module).__name__}; expected a torch.nn.Module"
            )
        _check_outputs(module, task)
    return module


def layout_of(module: nn.Module) -> Layout:
    """Parameters in `named_parameters()` order, then floating-point buffers. Integer buffers are left out.

    Raises:
        PublicError: no parameters, another type than float32, or batch norm that counts batches.
    """
    for name, layer in module.named_modules():
        # momentum None: the mean over all batches, whose number is an integer buffer
        if isinstance(layer, BATCH_NORMS) and layer.track_running_stats and layer.momentum is None:
            raise PublicError(
                f"task.model: {name} averages over all batches it ever saw (momentum=None), but a "
                "federated model keeps no such count; give it a momentum, for example 0.1"
            )
    parameters = list(module.named_parameters())
    buffers = [pair for pair in module.named_buffers() if pair[1].is_floating_point()]
    entries: list[Entry] = []
    for name, tensor in [*parameters, *buffers]:
        if tensor.dtype != torch.float32:
            raise PublicError(f"task.model: {name} is {tensor.dtype}; use float32 throughout")
        shape = tuple(tensor.shape)
        entries.append(Entry(name, shape))
    if not parameters:
        raise PublicError("task.model: the model has no parameters, so that nothing can be trained")
    return Layout(tuple(entries), len(parameters))


def tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers, integer ones included, by the names that a layout has for them."""
    parameters = dict(module.named_parameters())
    buffers = dict(module.named_buffers())
    return parameters | buffers


def initial(
    task: Task,
    seed: int,
    start: int = 0,
    allowed: AllowedCode = NO_CODE,
) -> tuple[Vector, Layout]:
    """The initial vector (d,) float32 number `start`, and its layout.

    Without `task.init` the weights are drawn on the seed. In the file that `task.init` names,

    - a vector (P,) `theta0` replaces the parameters of the first start; the others are drawn, because models that
      start equal never separate;
    - a matrix (starts, P) `theta0` replaces the parameters of all starts;
    - a matrix (starts, d) `starts`, which `agent model` writes, replaces them whole.

    Raises:
        UserError: the model cannot be built, or the file does not fit it.
    """
    module = build(task, seed, allowed)
    layout = layout_of(module)
    tensors = tensors_of(module)
    arrays = {entry.name: tensors[entry.name].detach().numpy() for entry in layout.tensors}
    vector = layout.vector(arrays)
    if task.init is not None:
        stored = _stored_start(task.init, layout, start)
        if stored is not None:
            vector[: stored.size] = stored
    return vector, layout


def headed(module: nn.Module, clusters: int) -> Headed:
    """The module, if it has a projection head for this number of clusters. Raises PublicError otherwise."""
    if not isinstance(module, Headed):
        seen = "no projection head"
    elif module.clusters != clusters:
        seen = f"a head for {module.clusters}"
    else:
        return module
    raise PublicError(
        f"task.model has {seen}, the strategy has {clusters} clusters: set task.model.options.head "
        f"to {clusters}"
    )


def _built(builder: Builder, task: Task) -> Any:
    """The builder's result for the task. The UserError names the model and its options."""
    model = task.model
    try:
        if builder in BUILT_IN.values() and "head" in model.options:
            return _built_with_head(builder, task, model.options)
        # a user's own model may have an option `head` of its own
        return builder(task.features, task.outputs, **model.options)
    except UserError:
        raise
    except Exception as error:  # the user's code, or options that it does not know
        raise UserError(
            f"task.model {model.name!r} with features {list(task.features)} and options "
            f"{model.options}: {error}; it takes {_signature(builder)}"
        ) from error


def _built_with_head(builder: Builder, task: Task, options: Mapping[str, Any]) -> Any:
    """A built-in model with the projection head that `options.head` asks for; null: without one."""
    own_options = {name: value for name, value in options.items() if name != "head"}
    clusters = options["head"]
    if clusters is None:
        return builder(task.features, task.outputs, **own_options)
    if not isinstance(clusters, int) or clusters < 1:
        raise PublicError(
            f"task.model.options.head is {clusters!r}; expected the number of clusters, 1 or more"
        )
    layers = builder(task.features, task.outputs, **own_options)
    return Headed(layers, clusters)


def _check_size(builder: Builder, task: Task, values: int) -> None:
    """Build on the meta device, without memory, and count: an order names layer widths of its own."""
    with torch.device("meta"):
        sketch = _built(builder, task)
    count = 0
    for tensor in tensors_of(sketch).values():
        if tensor.is_floating_point():
            count += tensor.numel()
    if count != values:
        raise PublicError(
            f"task.model: built here it has {count} values, the coordinator's has {values}; "
            f"{SAME_VERSION}"
        )


def _check_outputs(module: nn.Module, task: Task) -> None:
    """Run two samples, so that a model that does not fit is found at start and not in the first round."""
    name = task.model.name
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            outputs = module(torch.zeros(2, *task.features))
        shape = tuple(outputs.shape)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise UserError(
            f"task.model {name!r} does not take features {list(task.features)}: {error}"
        ) from error
    expected = (2, task.outputs)
    if shape != expected:
        raise PublicError(
            f"task.model {name!r} gives shape {shape} for 2 samples; the task needs {expected}"
        )
    module.train(was_training)


def _users_builder(name: str, allowed: AllowedCode) -> Builder:
    """The user's own `module:callable` or entry point."""
    allowed.check_model(name, "the model", "the owner of this machine")
    try:
        builder = resolve(name, allowed)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"task.model {name!r}: {error}; install the module on the coordinator and every device"
        ) from error
    if not callable(builder):
        raise UserError(
            f"task.model {name!r} is not callable; name a function that returns a torch.nn.Module"
        )
    return cast(Builder, builder)


def _signature(builder: Builder) -> str:
    try:
        return str(inspect.signature(builder))
    except (TypeError, ValueError):  # not every callable has one
        return "(features, outputs, **options)"


def _stored_start(path: str, layout: Layout, start: int) -> Vector | None:
    """Start number `start` of the file `task.init`: parameters (P,) or a whole model (d,); None: draw it."""
    name, starts = _stored_array(path)
    size = layout.size if name == "starts" else layout.parameters
    if starts.ndim not in (1, 2) or starts.shape[-1] != size or starts.dtype != np.float32:
        raise UserError(
            f"task.init {path}: {name} is {starts.dtype} of shape {starts.shape}; the model has "
            f"{layout.parameters} parameters: expected float32 ({size},), or one such row per start"
        )
    if not np.isfinite(starts).all():
        raise UserError(
            f"task.init {path}: {name} holds a NaN or infinity; expected finite numbers"
        )
    if starts.ndim == 1:
        return cast(Vector, starts) if start == 0 else None
    if start >= len(starts):
        raise UserError(
            f"task.init {path}: {name} has {len(starts)} rows, this method needs one more for start "
            f"{start}"
        )
    return cast(Vector, starts[start])


def _stored_array(path: str) -> tuple[str, np.ndarray[Any, Any]]:
    """The name and content of the array of starts in an .npz file."""
    try:
        with np.load(Path(path), allow_pickle=False) as file:
            for name in ("starts", "theta0"):
                if name in file.files:
                    return name, file[name]
            names = ", ".join(file.files)
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise UserError(f"task.init {path}: {error}; expected an .npz file with theta0") from error
    raise UserError(f"task.init {path}: no array theta0; it holds {names}")
