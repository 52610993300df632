"""The command `broker`: runs a broker on this machine, manages its users, examines any broker."""

from __future__ import annotations

from typing import ClassVar

from covey.shared.cli import Commands, program
from covey.shared.commands import CommandEntry, Entries


class BrokerCommands(Commands):
    """The commands of a broker and its folder."""

    front: ClassVar[Entries] = {
        "up": CommandEntry("covey.broker.cli.serving:up", "Run a broker until Ctrl-C"),
        "init": CommandEntry("covey.broker.cli.users:init", "Make the folder of a broker with TLS"),
        "enroll": CommandEntry(
            "covey.broker.cli.users:enroll", "Add users; write their credentials"
        ),
        "expel": CommandEntry("covey.broker.cli.users:expel", "Revoke the credentials of agents"),
        "list": CommandEntry("covey.broker.cli.users:list_users", "List users, and who is online"),
    }
    lab: ClassVar[Entries] = {
        "renew": CommandEntry("covey.broker.cli.users:renew", "Replace the broker's certificate"),
        "rotate": CommandEntry("covey.broker.cli.users:rotate", "Replace the credentials of users"),
        "sign": CommandEntry("covey.broker.cli.users:sign", "Sign entries for secure sums again"),
    }


app = program("broker", "Run and secure the MQTT broker of a Covey federation.", BrokerCommands)
