"""The command `broker`: runs a broker on this machine, manages its users, examines any broker."""

from __future__ import annotations

from typing import ClassVar

from covey.shared.cli import Commands, program
from covey.shared.commands import CommandEntry, Entries


class BrokerCommands(Commands):
    """The commands of a broker and its folder."""

    front: ClassVar[Entries] = {
        "up": CommandEntry("covey.broker.cli.serving:up", "Run a broker until Ctrl-C")
    }


app = program("broker", "Run and secure the MQTT broker of a Covey federation.", BrokerCommands)
