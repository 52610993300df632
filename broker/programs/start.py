"""Which broker runs here: Mosquitto where it is installed, else the embedded one, with one line that says so."""

from __future__ import annotations

from collections.abc import Callable

from covey.broker.programs.embedded import EmbeddedBroker
from covey.broker.programs.mosquitto import Mosquitto, find

FALLBACK = "mosquitto is not installed: using the embedded broker (pure Python, fine for trying things out)"


def available_broker(say: Callable[[str], None] = print) -> type[Mosquitto] | type[EmbeddedBroker]:
    """To be made with `broker.options.Options`, for `async with`; gives `url`, `name` and `pid`."""
    if find() is not None:
        return Mosquitto
    say(FALLBACK)
    return EmbeddedBroker
