"""The `agent` command. Heavy modules are imported where they are used: an idle agent on a small device needs few."""

from __future__ import annotations

from covey.agent.cli import data, device, models, simulation
from covey.shared.cli import program

app = program(
    "agent", "Learn on this machine's data, as part of a fleet. The data never leaves the machine."
)
# The help lists the commands in this order: those of a device come first.
for group in (device, data, models, simulation):
    app.add_typer(group.commands)
