"""The page of a run, the dashboard, and the pictures on both."""

from covey.shared.commands import CommandEntry

COMMANDS = {
    "coordinator dashboard": CommandEntry(
        "dashboard:dashboard", "Show a run in a browser", before="stop"
    )
}
