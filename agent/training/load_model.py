"""A model's file as a torch module."""

from __future__ import annotations

import torch
from torch import nn

from covey.agent.kept.model_file import ModelFile
from covey.agent.learning import SAME_VERSION
from covey.agent.training.models import build, check_claims, layout_of, tensors_of
from covey.shared.consent import NO_CODE, AllowedCode
from covey.shared.errors import UserError


def module_of(file: ModelFile, number: int = 0, allowed: AllowedCode = NO_CODE) -> nn.Module:
    """The module with the weights of one of a file's models, in evaluation mode.

    Args:
        file: what `read_model` returned.
        number: which of its models.
        allowed: the user's own code that may be imported for the model.

    Raises:
        UserError: the file's tensors are not those of its model.
        ConsentError: the model is not built in, and `allowed` does not name it.
    """
    check_claims(file)
    module = build(file.task, 0, allowed)
    named = file.models[number]
    if not layout_of(module).fits(named):
        name = file.task.model.name
        raise UserError(f"{file.path}: its tensors are not those of {name}; {SAME_VERSION}")
    own = tensors_of(module)
    with torch.no_grad():
        for tensor, array in named.items():
            own[tensor].copy_(torch.from_numpy(array))
    return module.eval()
