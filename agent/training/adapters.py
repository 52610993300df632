"""Adapters in a torch module, next to the weights of its layers (`covey.shared.scenario.adapters`)."""

from __future__ import annotations

import math
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from covey.shared.errors import PublicError
from covey.shared.scenario.adapters import A, Adapters, B
from covey.shared.sentences import some

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
                f"task.model.adapters.targets: {pattern!r} names no layer for an adapter; the model has linear and "
                f"convolutional layers {some(list(layers)) or 'nowhere'}, and * leaves the last one out"
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
