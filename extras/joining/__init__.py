"""Joining codes: a device gets its credentials over TLS with a code that works once."""

from covey.shared.commands import CommandEntry

COMMANDS = {
    "agent join": CommandEntry(
        "command:join", "Get credentials with a one-time code", before="predict"
    )
}
