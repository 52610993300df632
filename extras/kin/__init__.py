"""Whether groups would help: `coordinator advise`, and the method Kin, which finds groups by what devices are like."""

from covey.shared.commands import CommandEntry

COMMANDS = {
    "coordinator advise": CommandEntry(
        "advise:advise_command", "Find out whether groups would help", before="ls"
    )
}

METHODS = {"kin": "Kin"}
