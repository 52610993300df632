"""`coordinator lab aggregate`: a process near one broker that adds the reports of its agents up for the coordinator."""

from covey.shared.commands import CommandEntry

COMMANDS = {
    "coordinator lab aggregate": CommandEntry("aggregate:aggregate", "Add up reports near a broker")
}
