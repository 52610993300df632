"""The command `coordinator`. The module of a command is imported when it is typed, so that `--help` is quick."""

from __future__ import annotations

from typing import Any, ClassVar

from covey.coordinator.serve.signals import as_ctrl_c
from covey.shared.cli import Commands, Entries, Entry, program


class CoordinatorCommands(Commands):
    """The commands of this program. SIGTERM and a closed terminal stop each of them as Ctrl-C does."""

    front: ClassVar[Entries] = {  # they follow the life of a run
        "init": Entry(
            "covey.coordinator.cli.preparing:init", "Propose a scenario for your own data"
        ),
        "validate": Entry(
            "covey.coordinator.cli.preparing:validate",
            "Check a scenario; print it with all defaults",
        ),
        "run": Entry("covey.coordinator.cli.running:run", "Run a scenario to its end"),
        "compare": Entry(
            "covey.coordinator.cli.running:compare", "Run several methods, and compare them"
        ),
        "report": Entry(
            "covey.coordinator.cli.results:report", "Show the results of finished runs"
        ),
        "status": Entry("covey.coordinator.cli.watching:status", "List a run's agents"),
        "dashboard": Entry("covey.coordinator.cli.watching:dashboard", "Show a run in a browser"),
        "stop": Entry("covey.coordinator.cli.control:stop", "Stop the running coordinator"),
        "promote": Entry(
            "covey.coordinator.cli.results:promote", "Publish a run's models to the devices"
        ),
        "rollback": Entry(
            "covey.coordinator.cli.results:rollback", "Publish what was in use before"
        ),
        "versions": Entry("covey.coordinator.cli.results:versions", "List what was published"),
        "advise": Entry(
            "covey.coordinator.cli.preparing:advise", "Find out whether clusters would help"
        ),
        "ls": Entry("covey.coordinator.cli.results:list_runs", "List the runs in a folder"),
        "prune": Entry("covey.coordinator.cli.results:prune", "Remove the folders of old runs"),
    }
    lab: ClassVar[Entries] = {
        "aggregate": Entry(
            "covey.coordinator.cli.aggregating:aggregate", "Add up reports near a broker"
        ),
        "audit": Entry("covey.coordinator.cli.watching:audit", "Check a run's audit log"),
        "base": Entry(
            "covey.coordinator.cli.preparing:base",
            "Print the entry task.base for a file of weights",
        ),
        "export": Entry("covey.coordinator.cli.results:export", "Write a run's models as programs"),
        "forget": Entry("covey.coordinator.cli.control:forget", "Remove an agent from the run"),
        "methods": Entry("covey.coordinator.cli.reference:methods", "List the training methods"),
        "pause": Entry("covey.coordinator.cli.control:pause", "Pause the running coordinator"),
        "plan": Entry("covey.coordinator.cli.preparing:plan", "Estimate what a run costs"),
        "release": Entry(
            "covey.coordinator.cli.control:release", "Release an agent from quarantine"
        ),
        "replay": Entry(
            "covey.coordinator.cli.running:replay", "Repeat a run with buffered rounds"
        ),
        "resume": Entry("covey.coordinator.cli.control:resume", "Continue after a pause"),
        "schema": Entry(
            "covey.coordinator.cli.reference:schema", "Print the JSON schema of a scenario"
        ),
        "story": Entry("covey.coordinator.cli.watching:story", "Print what happened to one agent"),
    }

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was typed."""
        with as_ctrl_c():
            return super().invoke(ctx)


app = program("coordinator", "Run federated training over MQTT.", CoordinatorCommands)
