"""The command `coordinator`. The module of a command is imported when it is typed, so that `--help` is quick."""

from __future__ import annotations

from typing import Any, ClassVar

from covey.coordinator.serve.signals import as_ctrl_c
from covey.shared.cli import Commands, Entries, Entry, program


class CoordinatorCommands(Commands):
    """The commands of this program. SIGTERM and a closed terminal stop each of them as Ctrl-C does."""

    front: ClassVar[Entries] = {  # they follow the life of a run
        "init": Entry(
            "covey.coordinator.cli.init:init_command", "Propose a scenario for your own data"
        ),
        "validate": Entry(
            "covey.coordinator.cli.validate:validate",
            "Check a scenario; print it with all defaults",
        ),
        "run": Entry("covey.coordinator.cli.run:run_command", "Run a scenario to its end"),
        "compare": Entry(
            "covey.coordinator.cli.compare:compare_command", "Run several methods, and compare them"
        ),
        "report": Entry(
            "covey.coordinator.cli.report:report_command", "Show the results of finished runs"
        ),
        "status": Entry("covey.coordinator.cli.status:status", "List a run's agents"),
        "doctor": Entry("covey.coordinator.cli.doctor:doctor", "List what is odd about a fleet"),
        "dashboard": Entry("covey.coordinator.cli.dashboard:dashboard", "Show a run in a browser"),
        "stop": Entry("covey.coordinator.cli.control:stop", "Stop the running coordinator"),
        "promote": Entry(
            "covey.coordinator.cli.promote:promote", "Publish a run's models to the devices"
        ),
        "rollback": Entry(
            "covey.coordinator.cli.promote:rollback", "Publish what was in use before"
        ),
        "versions": Entry(
            "covey.coordinator.cli.versions:versions_command", "List what was published"
        ),
        "advise": Entry(
            "covey.coordinator.cli.advise:advise_command", "Find out whether clusters would help"
        ),
        "ls": Entry("covey.coordinator.cli.runs:list_runs", "List the runs in a folder"),
        "prune": Entry("covey.coordinator.cli.runs:prune", "Remove the folders of old runs"),
    }
    lab: ClassVar[Entries] = {
        "aggregate": Entry(
            "covey.coordinator.cli.aggregate:aggregate", "Add up reports near a broker"
        ),
        "audit": Entry("covey.coordinator.cli.audit:audit", "Check a run's audit log"),
        "base": Entry(
            "covey.coordinator.cli.validate:base", "Print the entry task.base for a file of weights"
        ),
        "export": Entry("covey.coordinator.cli.export:export", "Write a run's models as programs"),
        "forget": Entry("covey.coordinator.cli.control:forget", "Remove an agent from the run"),
        "methods": Entry("covey.coordinator.cli.reference:methods", "List the training methods"),
        "new-method": Entry(
            "covey.coordinator.cli.new_method:new_method", "Begin a method of your own"
        ),
        "pause": Entry("covey.coordinator.cli.control:pause", "Pause the running coordinator"),
        "plan": Entry("covey.coordinator.cli.plan:plan", "Estimate what a run costs"),
        "release": Entry(
            "covey.coordinator.cli.control:release", "Release an agent from quarantine"
        ),
        "replay": Entry("covey.coordinator.cli.replay:replay", "Repeat a run with buffered rounds"),
        "resume": Entry("covey.coordinator.cli.control:resume", "Continue after a pause"),
        "schema": Entry(
            "covey.coordinator.cli.reference:schema", "Print the JSON schema of a scenario"
        ),
        "story": Entry("covey.coordinator.cli.story:story", "Print what happened to one agent"),
    }

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was typed."""
        with as_ctrl_c():
            return super().invoke(ctx)


app = program("coordinator", "Run federated training over MQTT.", CoordinatorCommands)
