"""A cluster's model, or what a device uses, as a program that runs without Covey and without its data.

Its inputs are features (n, *task.features) float32 as the agents' files have them: `task.scale` and standardisation are
part of the program. Its outputs are logits (n, classes), or values (n, 1) in the units of the data for a regression
task. Of a task with columns the inputs are those of `covey.agent.data.local.prepared`: numbers without missing cells, and
categories as one input per word.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor, nn

from covey.agent.data.scaling import target_scale_of
from covey.agent.learning import SAME_VERSION
from covey.agent.training.models import build, built_in_size, layout_of, merged, tensors_of
from covey.agent.training.objective import InputScaling
from covey.extras.in_use.model_file import MixedPart, ModelFile, read_model
from covey.shared.candidate_names import NONE, in_words
from covey.shared.cli import ProgramFormat
from covey.shared.errors import UserError, install
from covey.shared.numerics.measures import Kind
from covey.shared.own_code.consent import NO_CODE, AllowedCode
from covey.shared.own_code.faults import said
from covey.shared.scenario.task import Task
from covey.shared.storage.files import write_atomically


def check_claims(file: ModelFile) -> None:
    """Refuse a file whose header claims another size of a built-in model than its tensors have, before memory is taken.

    Raises:
        UserError: it does, or the options of the model are wrong.
    """
    if built_in_size(file.task) not in (None, file.values):
        name = file.task.model.name
        raise UserError(f"{file.path}: its tensors are not those of {name}; {SAME_VERSION}")


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


class Deployed(nn.Module):
    """Scaling, standardisation and model in one module."""

    shift: Tensor  # float32 (channels, 1, ...), or (1,) without standardisation
    factor: Tensor  # likewise

    def __init__(self, module: nn.Module, task: Task) -> None:
        super().__init__()
        scaling = InputScaling.of(task)
        shift = torch.zeros(1) if scaling.shift is None else scaling.shift
        factor = torch.ones(1) if scaling.factor is None else scaling.factor
        self.module = module
        self._target_scale = target_scale_of(task)
        self.register_buffer("shift", shift)
        self.register_buffer("factor", factor)

    def forward(self, features: Tensor) -> Tensor:
        outputs: Tensor = self.module(torch.addcmul(self.shift, features, self.factor))
        if self._target_scale is None:
            return outputs
        return outputs * self._target_scale.std + self._target_scale.mean


class Mixed(nn.Module):
    """Several models, and a constant, whose answers are mixed; its outputs mean the same as those of one model."""

    weights: Tensor  # of the models, in the last place of the constant
    constant: Tensor

    def __init__(
        self, modules: Sequence[nn.Module], weights: Sequence[float], constant: Tensor, kind: Kind
    ) -> None:
        super().__init__()
        self.models = nn.ModuleList(modules)
        self.kind = kind
        self.register_buffer("weights", torch.tensor(weights, dtype=torch.float32))
        self.register_buffer("constant", constant)

    def forward(self, features: Tensor) -> Tensor:
        answers = [self._answers(model(features)) for model in self.models]
        mixed = self.weights[-1] * self.constant.expand_as(answers[0])
        for place, answer in enumerate(answers):
            mixed = mixed + self.weights[place] * answer
        if self.kind == "values":
            return mixed
        least = torch.finfo(mixed.dtype).tiny
        logs = torch.log(mixed.clamp_min(least))
        return logs if self.kind == "classes" else logs - torch.log((1 - mixed).clamp_min(least))

    def _answers(self, outputs: Tensor) -> Tensor:
        match self.kind:
            case "classes":
                return torch.softmax(outputs, dim=1)
            case "labels":
                return torch.sigmoid(outputs)
        return outputs


def export(model: Path, out: Path, allowed: AllowedCode = NO_CODE) -> str:
    """Write the model of a finished run, or what a device uses, as .pt2 (PyTorch) or .onnx.

    Args:
        model: the run's `cluster-<k>.safetensors`.
        out: the file to write; its suffix names the format.
        allowed: which code of the user's own may be imported for the model.

    Returns:
        What the device uses besides, which no program can have; empty for nothing.

    Raises:
        UserError: `model` was not left by a run, or its module cannot be exported.
    """
    kind = out.suffix.removeprefix(".")
    formats = get_args(ProgramFormat)
    if kind not in formats:
        suffixes = " or ".join(f".{one}" for one in formats)
        raise UserError(f"--out {out}: give a name that ends in {suffixes}")
    task, module, left_out = load(model, allowed)
    example = torch.zeros(2, *task.features)  # two: a batch of one would be taken for a constant
    try:
        program = torch.export.export(
            module.eval(), (example,), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},)
        )
    except (Exception, SystemExit) as error:  # the user's own module may do what no program can
        raise UserError(f"{task.model.name} cannot be exported: {said(error)}") from error
    content = _pt2(program, task) if kind == "pt2" else _onnx(program, task)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, content)
    return left_out


def load(model: Path, allowed: AllowedCode = NO_CODE) -> tuple[Task, nn.Module, str]:
    """The task in a model's file, a module of it with scaling and standardisation, adapters merged, and what is left out.

    Raises:
        UserError: the file is not a model's, there is no model in use in it, or its tensors are not those of its model.
        ConsentError: its model is not built in, and `allowed` does not name it.
    """
    file = read_model(model)
    task = file.task
    used = [place for place, weight in enumerate(file.weights) if weight]
    constants = [part for part in file.parts if _is_number(part)]
    left_out = {part.name: part.weight for part in file.parts if not _is_number(part)}
    if not used:
        what = in_words({part.name: part.weight for part in file.parts})
        raise UserError(
            f"{model}: this device uses no model that a program can have ({what}); export the groups' models of the run instead"
        )
    modules = [Deployed(merged(module_of(file, place, allowed)), task) for place in used]
    if len(modules) == 1 and not constants:
        return task, modules[0], in_words(left_out) if left_out else ""
    weights = [file.weights[place] for place in used] + [sum(part.weight for part in constants)]
    shares = [weight / sum(weights) for weight in weights]
    constant = torch.zeros(1)
    if constants:
        constant = torch.from_numpy(constants[0].arrays["answer"].astype("float32"))
    mixed = Mixed(modules, shares, constant, task.kind)
    return task, mixed, in_words(left_out) if left_out else ""


def _is_number(part: MixedPart) -> bool:
    """Whether a part is a constant, and not the last value of a forecast, which is none."""
    return part.name == NONE and part.arrays["answer"].size > 0


def _pt2(program: torch.export.ExportedProgram, task: Task) -> bytes:
    content = io.BytesIO()
    torch.export.save(program, content, extra_files={"task.json": task.model_dump_json()})
    return content.getvalue()


def _onnx(program: torch.export.ExportedProgram, task: Task) -> bytes:
    try:
        import onnxscript  # noqa: F401  torch's exporter needs it
    except ImportError:
        raise UserError(f"ONNX needs onnx and onnxscript: {install('onnx')}") from None
    with _without_export_warnings():
        made = torch.onnx.export(
            program,
            (),
            dynamo=True,
            verbose=False,
            input_names=["features"],
            output_names=["outputs"],
        )
        assert made is not None  # noqa: S101  with dynamo=True it is there
        made.model.metadata_props["task"] = task.model_dump_json()
        content: bytes = made.model_proto.SerializeToString()
    return content


@contextlib.contextmanager
def _without_export_warnings() -> Iterator[None]:
    """Suppress the exporter's remarks on packages that are not installed."""
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(level)
