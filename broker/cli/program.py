"""The command `broker`: runs a broker on this machine, manages its users, examines any broker."""

from __future__ import annotations

from covey.broker.cli import examining, serving, users
from covey.shared.cli import program

app = program("broker", "Run and secure the MQTT broker of a Covey federation.")
# The help lists the commands in this order.
for group in (serving, users, examining):
    app.add_typer(group.commands)
