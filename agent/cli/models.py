"""Commands about finished models: predict with them, and export them as programs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from covey.agent.cli.options import Device, LearnerOption, command_group
from covey.shared.cli import Allow, Json
from covey.shared.errors import UserError

commands = command_group()


@commands.command()
def predict(
    data: Annotated[
        Path,
        typer.Option(
            help="new samples: a table, an .npz file, an image or a folder of images, with or without targets"
        ),
    ],
    *,
    model_dir: Annotated[
        Path | None,
        typer.Option(
            help="folder of `agent start --model-dir`: use the model in use",
            envvar="COVEY_MODEL_DIR",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            help="one model file, such as models/cluster-0.safetensors of a run", show_default=False
        ),
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="the column of a table that holds targets; it is left out")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="the file to write  [default: print]", show_default=False)
    ] = None,
    device: Device = None,
    learner: LearnerOption = None,
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """Predict the targets of new samples with the model in use. Needs no broker and no network.

    Prints a table with the columns row, prediction and, for classes, probability. Images have the column file too.
    """
    from covey.agent.learner_choice import learner_name
    from covey.agent.policy import DEFAULT, Rules
    from covey.agent.training.predict import as_csv, as_json_lines, model_in_use
    from covey.agent.training.predict import predict as predicted
    from covey.shared.consent import AllowedCode
    from covey.shared.files import write_atomically
    from covey.shared.printable import printable_lines

    if model is None and model_dir is None:
        raise UserError(
            "no model: name the agent's folder with --model-dir, or a file with --model"
        )
    file = model
    if file is None and model_dir is not None:
        file = model_in_use(model_dir)
    assert file is not None  # noqa: S101 - one of the two was given
    policy = DEFAULT if device is None else DEFAULT.with_limits([f"device={device}"])
    rules = Rules(policy, AllowedCode.parse(allow), learner_name(learner))
    predictions = predicted(file, data, label, rules)
    text = as_json_lines(predictions) if as_json else as_csv(predictions)
    if out is None:
        # names of classes come with the model, which others made
        print(printable_lines(text) if sys.stdout.isatty() else text, end="")
        return
    write_atomically(out, text.encode())


@commands.command()
def reset(
    model_dir: Annotated[
        Path,
        typer.Option(
            help="folder of `agent start --model-dir`; stop the agent first",
            envvar="COVEY_MODEL_DIR",
        ),
    ],
) -> None:
    """Forget which publication this device dealt with last: it takes the next one, whatever its serial.

    The model in use and the earlier ones stay. Needed after a publication with a serial ahead of time.
    """
    from covey.agent.kept.model_dir import INDEX, ModelDir
    from covey.shared.files import folder_lock

    if not (model_dir / INDEX).is_file():
        raise UserError(
            f"{model_dir / INDEX}: no such file; expected a folder of agent start --model-dir"
        )
    with folder_lock(model_dir, f"{model_dir}: an agent keeps its models here; stop it first"):
        models = ModelDir(model_dir)
        if models.damage:
            raise UserError(models.damage)
        models.settle(0, pinned=False)
    print(f"{model_dir}: the next publication is dealt with, whatever its serial")


@commands.command()
def export(
    model: Annotated[
        Path, typer.Argument(help="models/cluster-0.safetensors of a finished run", exists=True)
    ],
    out: Annotated[Path, typer.Option(help="the .pt2 or .onnx file to write")],
    allow: Allow = None,
) -> None:
    """Write a cluster's model as a program that runs without Covey. It maps raw features to logits or values."""
    from covey.agent.training.export import export as written
    from covey.shared.consent import AllowedCode

    written(model, out, AllowedCode.parse(allow))
