"""The `agent` command. Heavy modules are imported where they are used: an idle agent on a small device needs few."""

from __future__ import annotations

from typing import ClassVar

from covey.shared.cli import Commands, Entries, Entry, program


class AgentCommands(Commands):
    """The commands of a device, and those for simulated fleets."""

    front: ClassVar[Entries] = {
        "start": Entry("covey.agent.cli.device:start", "Stay connected, and train when asked"),
        "join": Entry("covey.agent.cli.device:join", "Get credentials with a one-time code"),
        "check": Entry("covey.agent.cli.data:check", "Look for faults in this machine's data"),
        "examples": Entry("covey.agent.cli.data:examples", "Make a folder of data to try it"),
        "predict": Entry("covey.agent.cli.models:predict", "Predict with the model in use"),
        "serve": Entry("covey.agent.cli.models:serve", "Answer other programs with predictions"),
    }
    lab: ClassVar[Entries] = {
        "bench": Entry("covey.agent.cli.device:bench", "Measure the work of a round here"),
        "export": Entry("covey.agent.cli.models:export", "Write a model as a program"),
        "fleet": Entry("covey.agent.cli.simulation:fleet", "Run the agents of a simulated fleet"),
        "keys": Entry("covey.agent.cli.device:keys", "Print the signing key for secure sums"),
        "model": Entry("covey.agent.cli.simulation:model", "Write a scenario's initial weights"),
        "policy": Entry("covey.agent.cli.device:show_policy", "Print the limits of this device"),
        "reset": Entry("covey.agent.cli.models:reset", "Forget which publication came last"),
        "service": Entry(
            "covey.agent.cli.device:service", "Print a systemd unit for this agent", passes_on=True
        ),
    }


app = program("agent", "Learn on this machine's data, which never leaves it.", AgentCommands)
