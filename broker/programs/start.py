"""The choice of the broker: Mosquitto if it is installed, else the embedded one with a notice."""

from __future__ import annotations

from collections.abc import Callable

from covey.broker.programs.embedded import EmbeddedBroker
from covey.broker.programs.mosquitto import Mosquitto, find

FALLBACK = "mosquitto is not installed: using the embedded broker (pure Python, fine for trying things out)"


def available_broker(say: Callable[[str], None] = print) -> type[Mosquitto] | type[EmbeddedBroker]:
    """The class of the broker to start. Create it with `Options` and enter it with `async with`.

    Args:
        say: shows a line to the user; called if Mosquitto is not installed.
    """
    if find() is not None:
        return Mosquitto
    say(FALLBACK)
    return EmbeddedBroker
