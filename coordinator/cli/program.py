"""The command `coordinator`. The module of a command is imported when it is typed, so that `--help` is quick."""

from __future__ import annotations

from typing import Any, ClassVar

from covey.coordinator.serve.signals import as_ctrl_c
from covey.shared.cli import Commands, program
from covey.shared.commands import CommandEntry, Entries


class CoordinatorCommands(Commands):
    """The commands of this program. SIGTERM and a closed terminal stop each of them as Ctrl-C does."""

    front: ClassVar[Entries] = {  # they follow the life of a run
        "validate": CommandEntry(
            "covey.coordinator.cli.validate:validate",
            "Check a scenario; print it with all defaults",
        ),
        "run": CommandEntry("covey.coordinator.cli.run:run_command", "Run a scenario to its end"),
        "report": CommandEntry(
            "covey.coordinator.cli.report:report_command", "Show the results of finished runs"
        ),
    }
    lab: ClassVar[Entries] = {
        "base": CommandEntry(
            "covey.coordinator.cli.validate:base", "Print the entry task.base for a file of weights"
        ),
        "methods": CommandEntry(
            "covey.coordinator.cli.reference:methods", "List the training methods"
        ),
        "new-method": CommandEntry(
            "covey.coordinator.cli.new_method:new_method", "Begin a method of your own"
        ),
        "schema": CommandEntry(
            "covey.coordinator.cli.reference:schema", "Print the JSON schema of a scenario"
        ),
    }

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was typed."""
        with as_ctrl_c():
            return super().invoke(ctx)


app = program("coordinator", "Run federated training over MQTT.", CoordinatorCommands)
