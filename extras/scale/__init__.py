"""Several brokers: as one link of a coordinator, or as nodes of a cluster, with aggregators that add up reports near them."""

from covey.shared.commands import CommandEntry

COMMANDS = {
    "coordinator lab aggregate": CommandEntry("aggregate:aggregate", "Add up reports near a broker")
}
