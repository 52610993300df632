"""Comparisons: the grid of cells and its tables."""

from covey.shared.commands import CommandEntry

COMMANDS = {
    "coordinator compare": CommandEntry(
        "compare:compare_command", "Run several methods, and compare them", before="report"
    )
}
