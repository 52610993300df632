"""The trial of a model before anything trains: coordinator and agents make the same one.

It shows by behaviour what no list of layers could: whether one sample alone can train, whether the samples of a batch see
each other, and which parameters no training moves. A model that would fail in the middle of a run is refused here, by name.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from covey.shared.errors import CoveyError, PublicError, UserError
from covey.shared.own_code.faults import said
from covey.shared.scenario.task import Task
from covey.shared.sentences import some

# of the inputs of more trials, where a parameter got no gradient: it may belong to one of many branches
SCALES = (1.0, 1.0, 3.0, 10.0, 30.0, 100.0)
SAMPLES = 64  # of each
FLOATS = (torch.float32, torch.float64)  # that outputs may have
COUNTER = "num_batches_tracked"  # of torch's batch norm, which reads it only without a momentum


@dataclass(frozen=True)
class Trial:
    """How a model behaves."""

    takes_one: bool  # whether a training batch may have a single sample
    mixes: bool  # whether the output for a sample depends on the others of its batch
    unmoved: tuple[str, ...]  # parameters that have no gradient, whatever the model is trained on


@contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Draw the same whichever generator a model takes: torch's, NumPy's or Python's. Each is as before afterwards."""
    kept, numpys = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(kept)
            np.random.set_state(numpys)


def persistent(module: nn.Module) -> dict[str, Tensor]:
    """The buffers that belong to the state of a module, by name, as in `named_buffers()`.

    Others (`persistent=False`) are constants: each machine has them from the code.
    """
    constants = {
        f"{prefix}.{name}" if prefix else name
        for prefix, layer in module.named_modules(remove_duplicate=False)
        for name in layer._non_persistent_buffers_set
    }
    return {name: tensor for name, tensor in module.named_buffers() if name not in constants}


def check_types(module: nn.Module) -> None:
    """Refuse values that are no float32, and a batch norm that counts its batches. Raises PublicError."""
    for name, layer in module.named_modules():
        if isinstance(layer, torch.jit.ScriptModule):
            raise PublicError(
                f"task.model: {name or 'the model'} is TorchScript, whose tensors cannot be exchanged; give the module that it was "
                "made from"
            )
        # with momentum None it needs the number of batches, an integer buffer, which no layout holds
        if isinstance(layer, _BatchNorm) and layer.track_running_stats and layer.momentum is None:
            raise PublicError(
                f"task.model: {name} averages over all batches (momentum=None), but a federated model "
                "keeps no count of batches; give it a momentum, for example 0.1"
            )
    floats = {name: one for name, one in persistent(module).items() if one.is_floating_point()}
    for name, tensor in (dict(module.named_parameters()) | floats).items():
        if tensor.dtype != torch.float32:
            raise PublicError(
                f"task.model: {name} is {tensor.dtype}; use float32 throughout (the model's .float()), and "
                "training.precision to compute in bf16 or fp16"
            )


def run(module: nn.Module, task: Task, inputs: Tensor) -> Tensor:
    """The outputs of a model in its present mode. Raises UserError where they are not what the task needs."""
    name = task.model.name
    mode = "in training" if module.training else "in evaluation"
    before = inputs._version
    try:
        outputs: Any = module(inputs)
    except CoveyError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(
            f"task.model {name!r} does not take features {list(task.features)} ({_samples(inputs)}, {mode}): {said(error)}"
        ) from error
    expected = (len(inputs), task.outputs)
    if not isinstance(outputs, Tensor):
        raise PublicError(
            f"task.model {name!r} gives {type(outputs).__name__} {mode}; expected one tensor of shape {expected}"
        )
    if outputs.dtype not in FLOATS:
        raise PublicError(
            f"task.model {name!r} gives {outputs.dtype} {mode}; expected float32: end with .float()"
        )
    if inputs._version != before:
        raise PublicError(
            f"task.model {name!r} changes its inputs in place {mode}, and with them the data; give it a copy (x = x + 1, not x += 1)"
        )
    if tuple(outputs.shape) != expected:
        advice = ""
        if len(inputs) == 1 and outputs.numel() == task.outputs:
            advice = "; a squeeze() without dim removes the axis of the samples, too"
        raise PublicError(
            f"task.model {name!r} gives shape {tuple(outputs.shape)} for {_samples(inputs)}; the task needs {expected}{advice}"
        )
    return outputs


def tried(module: nn.Module, task: Task) -> Trial:
    """Try a module, which is spoilt afterwards: its own code may have counted the calls.

    Raises:
        PublicError: the model cannot be trained with the others of a fleet; the text names the tensor.
        UserError: its own code raised an error; the text has its line.
    """
    if not any(True for _ in module.parameters()):
        raise PublicError("task.model: the model has no parameters; training needs at least one")
    _check_values(module)
    integers = _integers(module)
    shapes = {name: tensor.shape for name, tensor in persistent(module).items()}
    zeros = torch.zeros(2, *task.features)
    other = zeros.clone()
    other[1] = 1
    state = {name: tensor.clone() for name, tensor in _floats(module)}
    with torch.no_grad():
        run(module.eval(), task, zeros[:1])
        answers, again = (_answers(module, task, other, seed) for seed in (0, 1))
    if not torch.allclose(answers, again, equal_nan=True):
        raise PublicError(
            f"task.model {task.model.name!r} answers the same samples in two ways in evaluation, so that no figure could be repeated; let it "
            "draw random numbers, and count its calls, only where self.training is true"
        )
    module.train()
    first = _trained(module, task, zeros)
    second = _trained(module, task, other)
    takes_one = _takes_one(module, task, zeros[:1])
    _check_buffers(module, task, integers, shapes)
    _check_memory(module, task, state, other, answers)
    _try_more(module, task)
    unmoved = _unmoved(module)
    if len(unmoved) == len(list(module.parameters())):
        raise PublicError(
            f"task.model {task.model.name!r}: no parameter has a gradient; the outputs are detached from all of them, or each "
            "has requires_grad=False"
        )
    mixes = not torch.allclose(first[0], second[0], equal_nan=True)
    return Trial(takes_one, mixes, unmoved)


def _answers(module: nn.Module, task: Task, inputs: Tensor, seed: int) -> Tensor:
    with drawing(seed):
        return run(module.eval(), task, inputs.clone())


def _check_memory(
    module: nn.Module, task: Task, state: Mapping[str, Tensor], inputs: Tensor, before: Tensor
) -> None:
    """Refuse a model whose answers depend on more than its state: with that from before the training they are still others."""
    with torch.no_grad():
        for name, tensor in _floats(module):
            tensor.copy_(state[name])
        after = _answers(module, task, inputs, 0)
    if not torch.allclose(after, before, rtol=1e-4, atol=1e-6, equal_nan=True):
        raise PublicError(
            f"task.model {task.model.name!r}: a training changed its answers by something that does not travel, such as a count in an "
            "attribute or a buffer with persistent=False; keep it in a float32 buffer, or leave it out"
        )


def _try_more(module: nn.Module, task: Task) -> None:
    """Train on other samples while a parameter has no gradient. Those that the model refuses show nothing: words have numbers."""
    for number, scale in enumerate(SCALES):
        if not _unmoved(module):
            return
        draws = torch.Generator().manual_seed(number)
        inputs = torch.rand(SAMPLES, *task.features, generator=draws)
        with suppress(UserError):
            _trained(module, task, inputs if scale == 1 else scale * (2 * inputs - 1))


def check_batch(trial: Trial, batch: int) -> None:
    """Raise PublicError if no batch of this size trains the model."""
    if batch == 1 and not trial.takes_one:
        raise PublicError(
            "training.batch is 1, and task.model cannot train on one sample alone (batch norm has no variance then); set "
            "training.batch to 2 or more"
        )


def _trained(module: nn.Module, task: Task, inputs: Tensor) -> Tensor:
    """The outputs of a batch whose gradients were computed, always with the same draws."""
    with drawing(0):
        outputs = run(module.train(), task, inputs)
        if outputs.requires_grad:
            try:
                outputs.sum().backward()  # type: ignore[no-untyped-call]
            except (Exception, SystemExit) as error:
                raise UserError(
                    f"task.model {task.model.name!r} has no gradient: {said(error)}"
                ) from error
    return outputs.detach()


def _takes_one(module: nn.Module, task: Task, one: Tensor) -> bool:
    """Whether a batch of one sample trains. Batch norm without positions has no variance then, and refuses."""
    try:
        _trained(module, task, one)
    except PublicError:  # outputs of another shape
        raise
    except UserError:
        return False
    return True


def _check_values(module: nn.Module) -> None:
    """Refuse state that no vector can hold, by the name of its tensor."""
    places: dict[int, str] = {}
    for name, tensor in _floats(module):
        if is_lazy(tensor):
            raise PublicError(
                f"task.model: {name} is never initialised: forward does not use its layer; remove it"
            )
        if not torch.isfinite(tensor).all():
            raise PublicError(
                f"task.model: {name} holds NaN or infinity, which cannot be averaged; a constant, such as a mask, is "
                "registered with persistent=False"
            )
        if tensor.numel() and (other := places.setdefault(tensor.data_ptr(), name)) != name:
            raise PublicError(
                f"task.model: {name} lies in the memory of {other}; to tie them, assign the same nn.Parameter to both"
            )


def _check_buffers(
    module: nn.Module, task: Task, integers: dict[str, Tensor], shapes: dict[str, torch.Size]
) -> None:
    """Refuse buffers that change in a way which no vector carries from one machine to another."""
    after = _integers(module)
    changed = [
        name
        for name, before in integers.items()
        if name not in after or not torch.equal(before, after[name])
    ]
    if changed:
        raise PublicError(
            f"task.model {task.model.name!r}: {some(changed)} changed in training, but a model travels as float32: integers "
            "stay behind, and every device would begin again; keep such a count in a float32 buffer, or leave it out"
        )
    for name, tensor in persistent(module).items():
        if name not in shapes or tensor.shape != shapes[name]:
            raise PublicError(
                f"task.model {task.model.name!r}: the shape of {name} changed in training; a buffer that grows is registered "
                "with persistent=False"
            )


def _integers(module: nn.Module) -> dict[str, Tensor]:
    """Copies of the buffers that are state but no floating-point numbers."""
    counters = {
        f"{prefix}.{COUNTER}" if prefix else COUNTER
        for prefix, layer in module.named_modules()
        if isinstance(layer, _BatchNorm)
    }
    return {
        name: tensor.clone()
        for name, tensor in persistent(module).items()
        if not tensor.is_floating_point() and name not in counters
    }


def _floats(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    for name, tensor in persistent(module).items():
        if tensor.is_floating_point():
            yield name, tensor


def _unmoved(module: nn.Module) -> tuple[str, ...]:
    return tuple(name for name, one in module.named_parameters() if one.grad is None)


def _samples(inputs: Tensor) -> str:
    return "1 sample" if len(inputs) == 1 else f"{len(inputs)} samples"
