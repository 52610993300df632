"""From descriptions of devices' data to a scenario that fits them. Pure, without numpy: the data itself is read elsewhere."""

from covey.shared.commands import CommandEntry

COMMANDS = {
    "coordinator init": CommandEntry(
        "init:init_command", "Propose a scenario for your own data", before="validate"
    ),
    "agent check": CommandEntry(
        "check_command:check", "Look for faults in this machine's data", before="predict"
    ),
    "agent examples": CommandEntry(
        "check_command:examples", "Make a folder of data to try it", before="predict"
    ),
}
