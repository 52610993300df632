"""The commands that list what is odd about a fleet, or about a broker."""

from covey.shared.commands import CommandEntry

COMMANDS = {
    "coordinator doctor": CommandEntry(
        "command:doctor", "List what is odd about a fleet", before="stop"
    ),
    "broker doctor": CommandEntry("broker_command:doctor", "Check what a broker provides"),
}
