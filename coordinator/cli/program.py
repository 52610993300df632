"""The command `coordinator`. The module of a command is imported when it is typed, so that `--help` is quick."""

from __future__ import annotations

from typing import Any, ClassVar

from covey.coordinator.serve.signals import as_ctrl_c
from covey.shared.cli import CommandEntry, Commands, Entries, program


class CoordinatorCommands(Commands):
    """The commands of this program. SIGTERM and a closed terminal stop each of them as Ctrl-C does."""

    front: ClassVar[Entries] = {  # they follow the life of a run
        "init": CommandEntry(
            "covey.coordinator.cli.init:init_command", "Propose a scenario for your own data"
        ),
        "validate": CommandEntry(
            "covey.coordinator.cli.validate:validate",
            "Check a scenario; print it with all defaults",
        ),
        "run": CommandEntry("covey.coordinator.cli.run:run_command", "Run a scenario to its end"),
        "compare": CommandEntry(
            "covey.coordinator.cli.compare:compare_command", "Run several methods, and compare them"
        ),
        "report": CommandEntry(
            "covey.coordinator.cli.report:report_command", "Show the results of finished runs"
        ),
        "status": CommandEntry("covey.coordinator.cli.status:status", "List a run's agents"),
        "doctor": CommandEntry(
            "covey.coordinator.cli.doctor:doctor", "List what is odd about a fleet"
        ),
        "dashboard": CommandEntry(
            "covey.coordinator.cli.dashboard:dashboard", "Show a run in a browser"
        ),
        "stop": CommandEntry("covey.coordinator.cli.control:stop", "Stop the running coordinator"),
        "promote": CommandEntry(
            "covey.coordinator.cli.promote:promote", "Publish a run's models to the devices"
        ),
        "rollback": CommandEntry(
            "covey.coordinator.cli.promote:rollback", "Publish what was in use before"
        ),
        "versions": CommandEntry(
            "covey.coordinator.cli.versions:versions_command", "List what was published"
        ),
        "advise": CommandEntry(
            "covey.coordinator.cli.advise:advise_command", "Find out whether clusters would help"
        ),
        "ls": CommandEntry("covey.coordinator.cli.runs:list_runs", "List the runs in a folder"),
        "prune": CommandEntry("covey.coordinator.cli.runs:prune", "Remove the folders of old runs"),
    }
    lab: ClassVar[Entries] = {
        "aggregate": CommandEntry(
            "covey.coordinator.cli.aggregate:aggregate", "Add up reports near a broker"
        ),
        "audit": CommandEntry("covey.coordinator.cli.audit:audit", "Check a run's audit log"),
        "base": CommandEntry(
            "covey.coordinator.cli.validate:base", "Print the entry task.base for a file of weights"
        ),
        "export": CommandEntry(
            "covey.coordinator.cli.export:export", "Write a run's models as programs"
        ),
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
        "replay": CommandEntry(
            "covey.coordinator.cli.replay:replay", "Repeat a run with buffered rounds"
        ),
        "resume": CommandEntry("covey.coordinator.cli.control:resume", "Continue after a pause"),
        "schema": CommandEntry(
            "covey.coordinator.cli.reference:schema", "Print the JSON schema of a scenario"
        ),
        "story": CommandEntry(
            "covey.coordinator.cli.story:story", "Print what happened to one agent"
        ),
    }

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was typed."""
        with as_ctrl_c():
            return super().invoke(ctx)


app = program("coordinator", "Run federated training over MQTT.", CoordinatorCommands)
