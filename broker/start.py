"""Start a broker here: Mosquitto where it is installed, else the embedded one, with one line that says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from broker.embedded import EmbeddedBroker
from broker.mosquitto import Mosquitto, find
from broker.options import Options

Prefer = Literal["auto", "mosquitto", "embedded"]
FALLBACK = "mosquitto is not installed: using the embedded broker (pure Python, fine for trying things out)"


def start_broker(
    prefer: Prefer = "auto", options: Options | None = None, *, say: Callable[[str], None] = print
) -> Mosquitto | EmbeddedBroker:
    """For `async with`; gives `url`, `name` and `pid`. Raises UserError like the two brokers."""
    if prefer == "embedded":
        return EmbeddedBroker(options)
    if prefer == "auto" and find() is None:
        say(FALLBACK)
        return EmbeddedBroker(options)
    return Mosquitto(options)
