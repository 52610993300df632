"""The command `coordinator`. The module of a command is imported when it is typed, so that `--help` is quick."""

from __future__ import annotations

from typing import Any, ClassVar

from covey.coordinator.serve.signals import as_ctrl_c
from covey.shared.cli import CommandEntry, Commands, Entries, program


class CoordinatorCommands(Commands):
    """The commands of this program. SIGTERM and a closed terminal stop each of them as Ctrl-C does."""

    front: ClassVar[Entries] = {  # they follow the life of a run
        "try": CommandEntry("trial:try_command", "Try your files: does it pay?", extra="trial"),
        "init": CommandEntry(
            "init:init_command", "Propose a scenario for your own data", extra="proposals"
        ),
        "validate": CommandEntry(
            "covey.coordinator.cli.validate:validate",
            "Check a scenario; print it with all defaults",
        ),
        "run": CommandEntry("covey.coordinator.cli.run:run_command", "Run a scenario to its end"),
        "compare": CommandEntry(
            "compare:compare_command", "Run several methods, and compare them", extra="compare"
        ),
        "report": CommandEntry(
            "covey.coordinator.cli.report:report_command", "Show the results of finished runs"
        ),
        "status": CommandEntry("covey.coordinator.cli.status:status", "List a run's agents"),
        "doctor": CommandEntry("command:doctor", "List what is odd about a fleet", extra="doctor"),
        "dashboard": CommandEntry("dashboard:dashboard", "Show a run in a browser", extra="pages"),
        "stop": CommandEntry("covey.coordinator.cli.control:stop", "Stop the running coordinator"),
        "promote": CommandEntry(
            "promote:promote", "Publish a run's models to the devices", extra="in_use"
        ),
        "rollback": CommandEntry("promote:rollback", "Publish the version before", extra="in_use"),
        "versions": CommandEntry(
            "versions:versions_command", "List what was published", extra="in_use"
        ),
        "advise": CommandEntry(
            "advise:advise_command", "Find out whether clusters would help", extra="groups"
        ),
        "ls": CommandEntry("covey.coordinator.cli.runs:list_runs", "List the runs in a folder"),
        "prune": CommandEntry("covey.coordinator.cli.runs:prune", "Remove the folders of old runs"),
    }
    lab: ClassVar[Entries] = {
        "aggregate": CommandEntry(
            "aggregate:aggregate", "Add up reports near a broker", extra="scale"
        ),
        "audit": CommandEntry("audit:audit", "Check a run's audit log", extra="audit"),
        "base": CommandEntry(
            "covey.coordinator.cli.validate:base", "Print the entry task.base for a file of weights"
        ),
        "export": CommandEntry("export:export", "Write a run's models as programs", extra="in_use"),
        "forget": CommandEntry(
            "covey.coordinator.cli.control:forget", "Remove an agent from the run"
        ),
        "methods": CommandEntry(
            "covey.coordinator.cli.reference:methods", "List the training methods"
        ),
        "new-method": CommandEntry(
            "covey.coordinator.cli.new_method:new_method", "Begin a method of your own"
        ),
        "pause": CommandEntry(
            "covey.coordinator.cli.control:pause", "Pause the running coordinator"
        ),
        "release": CommandEntry(
            "covey.coordinator.cli.control:release", "Release an agent from quarantine"
        ),
        "resume": CommandEntry("covey.coordinator.cli.control:resume", "Continue after a pause"),
        "schema": CommandEntry(
            "covey.coordinator.cli.reference:schema", "Print the JSON schema of a scenario"
        ),
        "story": CommandEntry("story:story", "Print what happened to one agent", extra="audit"),
    }

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was typed."""
        with as_ctrl_c():
            return super().invoke(ctx)


app = program("coordinator", "Run federated training over MQTT.", CoordinatorCommands)
