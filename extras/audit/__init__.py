"""What the audit log of a run proves, and the story of one device in it."""

from covey.shared.commands import CommandEntry

COMMANDS = {
    "coordinator lab audit": CommandEntry("audit:audit", "Check a run's audit log"),
    "coordinator lab story": CommandEntry("story:story", "Print what happened to one agent"),
}
