"""The model of a task, built in or the user's own: its torch module, its layout and its initial vector.

Adapters in a torch module, next to the weights of its layers (`covey.shared.scenario.adapters`).
"""

from __future__ import annotations

import inspect
import math
import zipfile
from collections.abc import Callable, Collection, Hashable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from covey.agent.learning import SAME_VERSION
from covey.agent.own_code import users_builder
from covey.agent.own_loops import loop_of
from covey.agent.training.architectures import BUILT_IN, Headed
from covey.agent.training.trial import Trial, check_types, drawing, persistent, run, tried
from covey.agent.training.weights import read_weights
from covey.shared import extras
from covey.shared.errors import PublicError, UserError
from covey.shared.numerics.split import Role, Split
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.numerics.vectors import Tensor as Entry
from covey.shared.own_code.consent import NO_CODE, AllowedCode
from covey.shared.own_code.faults import said
from covey.shared.scenario.adapters import A, Adapters, B
from covey.shared.scenario.base import Base, check_size, with_tensors
from covey.shared.scenario.task import Task
from covey.shared.seeds import entropy
from covey.shared.sentences import some
from covey.shared.storage.files import SUFFIX, model_file

HOOK = "_adapter"  # attribute of a layer: how to take its adapter off again


def adapted(module: nn.Module, adapters: Adapters) -> nn.Module:
    """The module, whose target layers have an adapter from now on: its outputs are the same until B trains.

    Raises:
        PublicError: a pattern names no linear or convolutional layer, or the model has no such layer but its head.
    """
    layers = {name: layer for name, layer in module.named_modules() if _can_have_one(layer)}
    head = next(reversed(layers), None)
    chosen: dict[str, nn.Module] = {}
    for pattern in adapters.targets:
        found = {name: one for name, one in layers.items() if fnmatchcase(name, pattern)}
        if pattern == "*" and head is not None:
            del found[head]
        if not found:
            raise PublicError(
                f"task.model.adapters.targets: {pattern!r} names no layer for an adapter; the model's linear and "
                f"convolutional layers are: {some(list(layers)) or 'none'}, and * leaves the last one out"
            )
        chosen |= found
    for layer in chosen.values():
        _adapt(layer, adapters)
    return module


def merged(module: nn.Module) -> nn.Module:
    """The same module without adapters: their products are in its weights."""
    for layer in module.modules():
        hook = layer.__dict__.pop(HOOK, None)
        if hook is None:
            continue
        handle, scale = hook
        handle.remove()
        with torch.no_grad():
            product = layer.get_parameter(B).flatten(1) @ layer.get_parameter(A).flatten(1)
            weight = layer.get_parameter("weight")
            weight.add_(product.view_as(weight), alpha=scale)
        del layer.lora_a, layer.lora_b
    return module


def _can_have_one(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Linear):
        return True
    if not isinstance(layer, nn.Conv1d | nn.Conv2d):
        return False
    return layer.groups == 1 and layer.padding_mode == "zeros"


def _adapt(layer: nn.Module, adapters: Adapters) -> None:
    weight = layer.get_parameter("weight")
    out, *inner = weight.shape
    a = torch.empty(adapters.rank, *inner, device=weight.device)
    nn.init.kaiming_uniform_(a, math.sqrt(5))  # as torch draws the weights of these layers
    ones = [1] * (len(inner) - 1)  # a convolution of one position
    layer.register_parameter(A, nn.Parameter(a))
    layer.register_parameter(
        B, nn.Parameter(torch.zeros(out, adapters.rank, *ones, device=weight.device))
    )
    scale = adapters.alpha / adapters.rank
    handle = layer.register_forward_hook(partial(_with_adapter, scale))
    setattr(layer, HOOK, (handle, scale))


def _with_adapter(scale: float, layer: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
    """The outputs of a layer and of its adapter, which never has to make a matrix as large as the weight."""
    (x,) = inputs
    a, b = layer.get_parameter(A), layer.get_parameter(B)
    if isinstance(layer, nn.Linear):
        return output + scale * functional.linear(functional.linear(x, a), b)
    convolve: Any = functional.conv1d if isinstance(layer, nn.Conv1d) else functional.conv2d
    narrow = convolve(x, a, None, layer.stride, layer.padding, layer.dilation)
    wide: Tensor = convolve(narrow, b)
    return output + scale * wide


TRAINED: tuple[Role, ...] = ("share", "keep")
SPREAD_OF_B = 0.01  # of the adapters of all initial models but the first
MAX_SEED = 2**63 - 1  # of torch's generator
EXPECTED_INIT = "expected an .npz file with the float32 array theta0, one that `agent lab model` wrote, or a trained model of a run"

KEPT_TRIALS = 8  # of the newest models: an agent may take part in several runs

# of a built-in model without batch norm: a trial shows nothing else, and takes a device six passes of the model
USUAL = Trial(takes_one=True, mixes=False, unmoved=())

_trials: dict[Hashable, tuple[Trial, Layout]] = {}

Builder = Callable[..., Any]  # (features, outputs, **options) -> nn.Module


def build(
    task: Task, seed: int, allowed: AllowedCode = NO_CODE, *, values: int | None = None
) -> nn.Module:
    """Build the task's model with torch's default initialisation. Global generators are as before afterwards.

    Args:
        task: model, features and outputs.
        seed: determines the weights.
        allowed: the user's own code that may be imported for the model.
        values: the number of floating-point values, parameters and buffers together, that a built-in model must have.
            It is checked before the model takes memory. None: no check.

    Raises:
        UserError: an unknown name, wrong options, features that the model does not take, outputs of another shape than
            the task's, or another number of values.
        ConsentError: the model is not built in, and `allowed` does not name it.
    """
    name = task.model.name
    builder = BUILT_IN.get(name)
    if builder is None:
        builder = users_builder(name, allowed)
    if values is not None and name in BUILT_IN:
        _check_size(builder, task, values)
    with drawing(entropy(seed, "weights") & MAX_SEED):
        module = _built(builder, task)
        if not isinstance(module, nn.Module):
            raise UserError(
                f"task.model {name!r} returned {type(module).__name__}; expected a torch.nn.Module"
            )
        check_types(module)
        with torch.no_grad():
            was_training = module.training
            run(module.eval(), task, torch.zeros(2, *task.features))
            module.train(was_training)
    return module


def model_of(
    task: Task, allowed: AllowedCode = NO_CODE, *, values: int | None = None
) -> tuple[Trial, Layout]:
    """How the task's model behaves, and its layout. The trial is made once in a process, and not where its result is known.

    Args:
        task: model, features and outputs.
        allowed: the user's own code that may be imported for the model.
        values: as for `build`.

    Raises:
        UserError: as `build`, or the model cannot be trained with the others of a fleet.
        ConsentError: the model is not built in, and `allowed` does not name it.
    """
    name = task.model.name
    builder = BUILT_IN.get(name) or users_builder(name, allowed)
    key = (builder, task.features, task.outputs, task.model.model_dump_json())
    if key not in _trials:
        module = build(task, 0, allowed, values=values)
        trial = USUAL
        if name not in BUILT_IN or any(isinstance(one, _BatchNorm) for one in module.modules()):
            trial = tried(module, task)
        while len(_trials) >= KEPT_TRIALS:
            del _trials[next(iter(_trials))]
        _trials[key] = (trial, layout_of(module, () if name in BUILT_IN else trial.unmoved))
    return _trials[key]


def built_in_size(task: Task) -> int | None:
    """The number of values of a built-in model; None for another one, which is not built to find it out.

    Raises:
        UserError: the options of the model are wrong.
    """
    name = task.model.name
    return _size_of(BUILT_IN[name], task) if name in BUILT_IN else None


def layout_of(module: nn.Module, unmoved: Collection[str] = ()) -> Layout:
    """The layout of a module: parameters as in `named_parameters()`, then floating-point buffers, no integer buffers.

    Constants (`persistent=False`) are left out. Frozen are parameters that do not require a gradient.

    Args:
        module: any.
        unmoved: more parameters that no training moves.

    Raises:
        PublicError: it has values of another type than float32.
    """
    check_types(module)
    parameters = list(module.named_parameters())
    buffers = [pair for pair in persistent(module).items() if pair[1].is_floating_point()]
    entries = [Entry(name, tuple(tensor.shape)) for name, tensor in [*parameters, *buffers]]
    frozen = [name for name, one in parameters if name in unmoved or not one.requires_grad]
    return Layout(tuple(entries), len(parameters), tuple(frozen))


def tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers, integer ones included, by name. A layout uses the same names."""
    return dict(module.named_parameters()) | dict(module.named_buffers())


def initial(
    task: Task, seed: int, start: int = 0, allowed: AllowedCode = NO_CODE
) -> tuple[Vector, Layout]:
    """An initial model and its layout.

    The seed determines the weights. If `task.init` names a file, its array replaces some of them:

    - `theta0` (P,): the parameters of the first start. The other starts stay random, because models that start equal
      never separate.
    - `theta0` (starts, P): the parameters of every start.
    - `starts` (starts, d): every start with its buffers. `agent lab model` writes such a file.
    - a trained model (`.safetensors`): the first start. A folder of them, such as a run's `models`: every start. Weights
      of the user's own that have the model's names are accepted too, and may lack tensors that train.

    Args:
        task: model, features, outputs and `init`.
        seed: determines the weights.
        start: number of the start, from 0.
        allowed: the user's own code that may be imported for the model.

    Returns:
        The vector (d,) float32, and the layout.

    Raises:
        UserError: the model cannot be built, or the file does not fit it.
    """
    loop = loop_of(task, allowed)
    if loop is not None:
        own_loop = extras.part("light", "own_loop", "task.model")
        arrays, layout = own_loop.start_of(loop, entropy(seed, "weights") % own_loop.SEEDS)
    else:
        _, layout = model_of(task, allowed)
        module = build(task, seed, allowed)
        tensors = tensors_of(module)
        if start:  # models that start equal never separate
            _draw_adapters(tensors, entropy(seed, "adapters", start))
        arrays = {entry.name: tensors[entry.name].detach().numpy() for entry in layout.tensors}
    vector = layout.vector(arrays)
    if task.base is not None and start == 0:
        return _on_base(task.base, vector, layout, task), layout
    if task.init is None:
        return vector, layout
    if Path(task.init).is_dir() or Path(task.init).suffix == SUFFIX:
        file = _trained_file(Path(task.init), start)
        if file is not None:
            may_lack = _trained_tensors(task, layout)
            vector = with_tensors(vector, layout, read_weights(file), f"task.init {file}", may_lack)
        return vector, layout
    stored = _stored_start(task.init, layout, start)
    if stored is not None:
        vector[: stored.size] = stored
    return vector, layout


def _draw_adapters(tensors: Mapping[str, torch.Tensor], seed: int) -> None:
    """Values for the matrices B of adapters, which are zero otherwise."""
    draws = torch.Generator().manual_seed(seed & MAX_SEED)
    with torch.no_grad():
        for name, tensor in tensors.items():
            if name.rpartition(".")[2] == B:
                tensor.normal_(std=SPREAD_OF_B, generator=draws)


def headed(module: nn.Module, clusters: int) -> Headed:
    """Return the module if it has a projection head for this number of clusters. Raises PublicError otherwise."""
    if not isinstance(module, Headed):
        seen = "no projection head"
    elif module.clusters != clusters:
        seen = f"a head for {module.clusters}"
    else:
        return module
    raise PublicError(
        f"task.model has {seen}, the strategy has {clusters} groups: set task.model.options.head "
        f"to {clusters}"
    )


def _built(builder: Builder, task: Task) -> Any:
    """The builder's result for the task. The UserError names the model and its options."""
    model = task.model
    made = _without_adapters(builder, task)
    if model.adapters is None or not isinstance(made, nn.Module):
        return made
    return adapted(made, model.adapters)


def _without_adapters(builder: Builder, task: Task) -> Any:
    model = task.model
    try:
        if builder in BUILT_IN.values() and "head" in model.options:
            return _built_with_head(builder, task, model.options)
        # a user's own model may have an option `head` of its own
        return builder(task.features, task.outputs, **model.options)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # the user's code, or options that it does not know
        raise UserError(
            f"task.model {model.name!r} with features {list(task.features)} and options "
            f"{model.options}: {said(error)}; it takes {_signature(builder)}"
        ) from error


def _built_with_head(builder: Builder, task: Task, options: Mapping[str, Any]) -> Any:
    """A built-in model with a projection head for `options.head` clusters; null: without a head."""
    own_options = {name: value for name, value in options.items() if name != "head"}
    clusters = options["head"]
    if clusters is None:
        return builder(task.features, task.outputs, **own_options)
    if not isinstance(clusters, int) or clusters < 1:
        raise PublicError(
            f"task.model.options.head is {clusters!r}; expected the number of groups, 1 or more"
        )
    return Headed(builder(task.features, task.outputs, **own_options), clusters)


def _check_size(builder: Builder, task: Task, values: int) -> None:
    """Refuse a model of another size before it takes memory, because an order chooses the widths of the layers.

    Raises PublicError for another number.
    """
    count = _size_of(builder, task)
    if count != values:
        raise PublicError(
            f"task.model: built here it has {count} values, the coordinator's has {values}; "
            f"{SAME_VERSION}"
        )


def _size_of(builder: Builder, task: Task) -> int:
    """The number of values of a model. It is built on torch's meta device, which stores none."""
    with torch.device("meta"):
        sketch = _built(builder, task)
    count = 0
    for tensor in tensors_of(sketch).values():
        if tensor.is_floating_point():
            count += tensor.numel()
    return count


def _signature(builder: Builder) -> str:
    """The arguments that a builder takes, for a message."""
    try:
        return str(inspect.signature(builder))
    except (TypeError, ValueError):  # not every callable has one
        return "(features, outputs, **options)"


def _stored_start(path: str, layout: Layout, start: int) -> Vector | None:
    """Start number `start` of the file `task.init`: parameters (P,) or a whole model (d,). None: the start is random."""
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


def _trained_file(path: Path, start: int) -> Path | None:
    """The file of a trained model: of a folder, that of cluster `start`; of a single file, for the first start alone."""
    if path.is_dir():
        file = model_file(path, start)
        if not file.is_file():
            raise UserError(
                f"task.init {path}: no {file.name}; the method needs a model for each of its starts"
            )
        return file
    return path if start == 0 else None


def _on_base(base: Base, start: Vector, layout: Layout, task: Task) -> Vector:
    """A random start (d,) with the values of the task's base."""
    check_size(base.size, layout)
    base.check()
    named = read_weights(Path(base.file))
    return with_tensors(
        start, layout, named, f"task.base {base.file}", _trained_tensors(task, layout)
    )


def _trained_tensors(task: Task, layout: Layout) -> set[str]:
    """The tensors that a file of weights may lack: a base without its head serves to train a head on.

    They begin at random, if the task or the model names which tensors train. So do adapters.
    """
    if not (task.share or task.keep or task.freeze or layout.frozen):
        return set()
    split = Split.by_patterns(layout, task.share, task.keep, task.freeze)
    adapters = {one.name for one in layout.tensors if one.name.rpartition(".")[2] in (A, B)}
    return adapters | {one.name for role in TRAINED for one in split.tensors(role)}


def _stored_array(path: str) -> tuple[str, np.ndarray[Any, Any]]:
    """The name and content of the array of starts in an .npz file."""
    if Path(path).is_file() and not zipfile.is_zipfile(path):
        # numpy takes every other file for a pickle, and its message speaks of that
        raise UserError(f"task.init {path}: {_found_instead(path)}; {EXPECTED_INIT}")
    try:
        with np.load(Path(path), allow_pickle=False) as file:
            for name in ("starts", "theta0"):
                if name in file.files:
                    return name, file[name]
            names = ", ".join(file.files)
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise UserError(f"task.init {path}: {error}; {EXPECTED_INIT}") from error
    raise UserError(f"task.init {path}: no array theta0; it holds {names}")


def _found_instead(path: str) -> str:
    """The kind of a file that is no .npz."""
    match Path(path).suffix:
        case ".npy":
            return "this is a single array without a name"
        case _:
            return "this is not an .npz file"
