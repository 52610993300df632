"""Publish a run's models to devices, for use."""

from covey.shared.commands import CommandEntry

COMMANDS = {
    "coordinator promote": CommandEntry(
        "promote:promote", "Publish a run's models to the devices", before="ls"
    ),
    "coordinator rollback": CommandEntry(
        "promote:rollback", "Publish the version before", before="ls"
    ),
    "coordinator versions": CommandEntry(
        "versions:versions_command", "List what was published", before="ls"
    ),
    "coordinator lab export": CommandEntry("export:export", "Write a run's models as programs"),
    "agent predict": CommandEntry("models:predict", "Predict with the model in use"),
    "agent serve": CommandEntry("models:serve", "Answer other programs with predictions"),
    "agent lab export": CommandEntry("models:export", "Write a model as a program"),
    "agent lab reset": CommandEntry("models:reset", "Forget which publication came last"),
}
