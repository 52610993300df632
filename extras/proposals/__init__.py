"""From descriptions of devices' data to a scenario that fits them. Pure, without numpy: the data itself is read elsewhere."""

from covey.shared.commands import CommandEntry

COMMANDS = {
    "coordinator init": CommandEntry(
        "init:init_command", "Propose a scenario for your own data", before="validate"
    )
}
