"""`coordinator validate` and `coordinator lab base`: check a scenario, and describe the weights that it begins with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from covey.coordinator.cli.options import ScenarioFile, Set, warn
from covey.shared.cli import Allow, Json
from covey.shared.own_code.consent import AllowedCode
from covey.shared.scenario.base import entry_of
from covey.shared.scenario.code import check_found, check_model_name
from covey.shared.scenario.describe import dump
from covey.shared.scenario.load import load
from covey.shared.storage import json_text


def validate(
    scenario: ScenarioFile, overrides: Set = None, allow: Allow = None, as_json: Json = False
) -> None:
    """Check a scenario and print it with all defaults; unknown keys are reported with their lines."""
    loaded = load(scenario, overrides or [])
    allowed = AllowedCode.parse(allow)
    check_model_name(loaded, allowed)
    check_found(loaded, allowed)
    warn(loaded.aggregation.remark)
    if as_json:
        print(json_text.dumps(loaded.model_dump(mode="json")))
    else:
        print(dump(loaded), end="")


def base(
    file: Annotated[Path, typer.Argument(help="weights as .safetensors")], as_json: Json = False
) -> None:
    """Print the entry task.base for a file of weights: `coordinator lab base backbone.safetensors`."""
    entry, tensors = entry_of(file)
    if as_json:
        print(json_text.dumps({**entry.model_dump(), "bytes": entry.size, "tensors": tensors}))
        return
    print(f"base: {{file: {json_text.dumps(entry.file)}, digest: {entry.digest}}}")
    typer.echo(
        f"{len(tensors)} tensors, {entry.size / 1e6:.1f} MB; put the line into the section task",
        err=True,
    )
