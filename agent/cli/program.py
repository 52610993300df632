"""The `agent` command. Heavy modules are imported where they are used: an idle agent on a small device needs few."""

from __future__ import annotations

from typing import ClassVar

from covey.shared.cli import Commands, program
from covey.shared.commands import CommandEntry, Entries


class AgentCommands(Commands):
    """The commands of a device, and those for simulated fleets."""

    front: ClassVar[Entries] = {
        "start": CommandEntry(
            "covey.agent.cli.device:start", "Stay connected, and train when asked"
        )
    }
    lab: ClassVar[Entries] = {
        "fleet": CommandEntry(
            "covey.agent.cli.simulation:fleet", "Run the agents of a simulated fleet"
        ),
        "keys": CommandEntry(
            "covey.agent.cli.device:keys", "Print the signing key for secure sums"
        ),
        "model": CommandEntry(
            "covey.agent.cli.simulation:model", "Write a scenario's initial weights"
        ),
        "policy": CommandEntry(
            "covey.agent.cli.device:show_policy", "Print the limits of this device"
        ),
        "service": CommandEntry(
            "covey.agent.cli.device:service", "Print a systemd unit for this agent", passes_on=True
        ),
    }


app = program("agent", "Learn on this machine's data, which never leaves it.", AgentCommands)
