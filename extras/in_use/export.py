"""`coordinator lab export`: a run's models as programs that run without Covey."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from covey.coordinator.cli.options import out, show_line
from covey.coordinator.processes import launch
from covey.coordinator.record.records import finished
from covey.coordinator.view.printed import json_line
from covey.shared.cli import Allow, Json, ProgramFormat
from covey.shared.errors import UserError
from covey.shared.own_code.consent import AllowedCode
from covey.shared.storage.files import model_files


def export(
    folder: Annotated[Path, typer.Argument(help="the folder of a finished run")],
    to: Annotated[
        Path | None, typer.Option("--out", help="output folder  [default: <folder>/export]")
    ] = None,
    kind: Annotated[
        ProgramFormat, typer.Option("--format", help="pt2 for PyTorch, or onnx")
    ] = "pt2",
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """Write each group's model as a program that runs without Covey.

    The input is a batch of features as they are in the data. The output is a score for each
    class, of which the largest is the answer, or the predicted numbers.
    """
    allowed = AllowedCode.parse(allow)
    finished(folder)
    models = model_files(folder / "models")
    if not models:
        raise UserError(
            f"{folder}: this run has no models to export; its method keeps none on the server"
        )
    for model in models:
        written = (to or folder / "export") / f"{model.stem}.{kind}"
        with nullcontext() if as_json else out().status(f"{model.name}: loading torch"):
            asyncio.run(launch.exported(model, written, folder / "export.log", allowed))
        if as_json:
            json_line({"cluster": model.stem.removeprefix("cluster-"), "file": str(written)})
        else:
            show_line(str(written))
