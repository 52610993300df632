"""Predictions over MQTT, next to those over HTTP: `agent serve --topic`, at a broker such as that of Home Assistant.

    TOPIC/rows           ask: a table, as `POST /predict` takes it, CSV text or JSON
    TOPIC/predictions    the answer, as over HTTP: all predictions and the model; or {"error"}
    TOPIC/prediction     retained: the prediction for the last row, and the model
    TOPIC/status         retained: online, or offline

With discovery Home Assistant shows the newest prediction as a sensor of a device that has the agent's name.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from covey.extras.in_use.serve import CSV, JSON, MOST_BYTES, Models, answer, refusal
from covey.shared.errors import UserError
from covey.shared.mqtt.link import Down, Echo, Link, Received, Up, Will
from covey.shared.storage import json_text

ONLINE, OFFLINE = b"online", b"offline"
NO_TOPIC = re.compile(r"[#+\x00-\x1f]|^/|//|/$")


@dataclass(frozen=True)
class ServeTopics:
    """Where a device answers. Raises UserError for a topic that no message can have."""

    topic: str
    agent: str
    discovery: str = (
        ""  # first word of the topics that Home Assistant looks at; empty: it is not asked to
    )

    def __post_init__(self) -> None:
        for option, topic in (("--topic", self.topic), ("--discovery", self.discovery or "x")):
            if not topic or NO_TOPIC.search(topic):
                raise UserError(
                    f"{option} {topic!r}: expected words with a slash between them, such as home/pi-7, without # and +"
                )

    @property
    def status(self) -> str:
        return f"{self.topic}/status"

    @property
    def rows(self) -> str:
        return f"{self.topic}/rows"

    @property
    def will(self) -> Will:
        return Will(self.status, OFFLINE)

    def announcement(self) -> tuple[str, bytes]:
        """Topic and payload of the sensor for Home Assistant (its MQTT discovery)."""
        unique = re.sub(r"[^A-Za-z0-9_-]", "_", f"covey_{self.agent}")
        newest = f"{self.topic}/prediction"
        config = {
            "name": "Prediction",
            "unique_id": unique,
            "state_topic": newest,
            "value_template": "{{ value_json.prediction }}",
            "json_attributes_topic": newest,
            "availability_topic": self.status,
            "device": {"identifiers": [unique], "name": self.agent, "manufacturer": "Covey"},
        }
        return f"{self.discovery}/sensor/{unique}/config", json_text.dumps(config).encode()


def answers(place: ServeTopics, models: Models, rows: bytes) -> Iterator[tuple[str, bytes, bool]]:
    """What a device publishes when it was asked: topic, payload, and whether the broker retains it."""
    try:
        if not 0 < len(rows) <= MOST_BYTES:
            raise UserError(f"the request has {len(rows)} bytes; expected 1 to {MOST_BYTES}")
        kind = JSON if rows.lstrip()[:1] in (b"{", b"[") else CSV
        found = answer(models, rows, kind, [])
        newest = {**found["predictions"][-1], "model": found["model"]}
        predictions, prediction = json_text.dumps(found), json_text.dumps(newest)
    except Exception as error:  # no message ends the program: a retained one would at each start
        yield f"{place.topic}/predictions", json_text.dumps(refusal(error)).encode(), False
        return
    yield f"{place.topic}/predictions", predictions.encode(), False
    yield f"{place.topic}/prediction", prediction.encode(), True


def _silent(text: str) -> None:
    return None


async def serve(
    link: Link, place: ServeTopics, models: Models, show: Callable[[str], object] = _silent
) -> None:
    """Answer what arrives on a link, whose last will is that of the place, until it is closed.

    Args:
        link: open.
        place: where to answer.
        models: that answer.
        show: gets a line for people about the link.
    """
    try:
        async for item in link.incoming():
            if isinstance(item, Up):
                await link.subscribe([place.rows, place.status])
                await link.publish(place.status, ONLINE, retain=True)
                if place.discovery:
                    await link.publish(*place.announcement(), retain=True)
            elif isinstance(item, Down | Echo):
                show(item.why)
            elif isinstance(item, Received) and item.topic == place.rows:
                for topic, payload, retain in await asyncio.to_thread(
                    lambda rows: list(answers(place, models, rows)), item.payload
                ):
                    await link.publish(topic, payload, retain=retain)
    finally:
        await link.publish(place.status, OFFLINE, retain=True)
