"""`coordinator validate` and `coordinator lab base`: check a scenario, and describe the weights that it begins with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from covey.coordinator.cli.options import ScenarioFile, Set, warn
from covey.coordinator.engine.cohort import cohort_size
from covey.shared import extras
from covey.shared.cli import Allow, Json
from covey.shared.numerics.split import FLOAT32_BYTES
from covey.shared.own_code.consent import AllowedCode
from covey.shared.scenario.base import entry_of
from covey.shared.scenario.code import check_found, check_model_name
from covey.shared.scenario.describe import dump
from covey.shared.scenario.load import load
from covey.shared.scenario.scenario import Scenario
from covey.shared.storage import json_text


def validate(
    scenario: ScenarioFile,
    overrides: Set = None,
    allow: Allow = None,
    whole: Annotated[
        bool, typer.Option("--all", help="also the keys that are seldom set, with their defaults")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check a scenario and print it with defaults; unknown keys are reported with their lines."""
    loaded = load(scenario, overrides or [])
    allowed = AllowedCode.parse(allow)
    check_model_name(loaded, allowed)
    check_found(loaded, allowed)
    warn(loaded.aggregation.remark)
    warn(loaded.evaluation.remark)
    if as_json:
        print(json_text.dumps(loaded.model_dump(mode="json")))
    else:
        print(dump(loaded, whole=whole), end="")
    if traffic := _traffic(loaded):
        typer.echo(traffic, err=True)


def _traffic(scenario: Scenario) -> str:
    """What models weigh in all rounds; empty where only torch or the fleet knows their size or the number of agents."""
    fleet, rounds = scenario.fleet, scenario.rounds
    agents = fleet.agents if fleet is not None else rounds.start_agents
    light = extras.has("light")
    found = extras.part("light", "sketch").sketched(scenario.task) if light else None
    if found is None or not (agents or rounds.agents):
        return ""
    _, layout, _ = found
    drawn = cohort_size(agents or 0, rounds.participation, rounds.agents)
    models = scenario.strategy.starts
    size = FLOAT32_BYTES * layout.size / 1e6
    total = (models + 1) * drawn * rounds.count * size
    return (
        f"about {total:.3g} MB of models: {drawn} agents x {rounds.count} rounds x {size:.3g} MB, "
        f"{models} to each agent and 1 back"
    )


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
