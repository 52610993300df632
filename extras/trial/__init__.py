"""A first answer for files of one's own: whether a federation would be worth it."""

from covey.shared.commands import CommandEntry

COMMANDS = {
    "coordinator try": CommandEntry(
        "trial:try_command", "Try your files: does it pay?", before="init"
    )
}
