"""`coordinator lab plan`: estimate what a run costs before it starts."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from rich.table import Table

from covey.coordinator.cli.options import ScenarioFile, Set, out, warn
from covey.coordinator.plan.plan import plan as planned
from covey.coordinator.processes import launch
from covey.shared.cli import Allow, Json
from covey.shared.own_code.consent import AllowedCode
from covey.shared.scenario.code import check_code
from covey.shared.scenario.describe import dump
from covey.shared.scenario.load import load
from covey.shared.storage import json_text
from covey.shared.storage.files import write_atomically


def plan(
    scenario: ScenarioFile, overrides: Set = None, allow: Allow = None, as_json: Json = False
) -> None:
    """Estimate what a run costs before it starts: traffic per agent and in total, memory, disk."""
    loaded = load(scenario, overrides or [])
    allowed = AllowedCode.parse(allow)
    check_code(loaded, allowed)
    warn(loaded.aggregation.remark)
    with tempfile.TemporaryDirectory() as folder:
        write_atomically(Path(folder) / "scenario.yaml", dump(loaded).encode())
        setup = asyncio.run(launch.initial(Path(folder), loaded, allowed))
    figures = planned(loaded, setup)
    if as_json:
        print(json_text.dumps(figures.to_json()))
        return

    table = Table(title=f"{loaded.name}: {loaded.strategy.name}", show_header=False)
    for label, text in figures.rows():
        table.add_row(label, text)
    out().print(table)
