"""What `coordinator status` reads: a run's folder, or the retained documents of a running fleet."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

from covey.coordinator.run.records import newest_privacy
from covey.shared.errors import DecodeError, UserError
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.mqtt.link import Down, Message, Up
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.wire.messages import CoordinatorStatus, RosterMessage
from covey.shared.wire.topics import Topics

WITHIN_S = 3.0


def from_folder(folder: Path) -> dict[str, Any]:
    """The newest roster that a run has left in its folder, when it was written, and whether the run is finished."""
    path = folder / "roster.json"
    try:
        roster, written = RosterMessage.from_bytes(path.read_bytes()), path.stat().st_mtime
    except FileNotFoundError:
        raise UserError(f"{folder}: no roster is here; {_instead(folder)}") from None
    except DecodeError as error:
        raise UserError(f"{path}: {error}") from None
    finished = (folder / "result.json").exists()
    return {
        "status": None,
        "roster": roster.model_dump(mode="json"),
        "written": written,
        "finished": finished,
        "privacy": newest_privacy(folder),
    }


def _instead(folder: Path) -> str:
    """What to do about a folder without a roster."""
    if (folder / "result.json").exists():
        return f"a run without a broker keeps none. It is finished: `coordinator report {folder}` shows its result"
    if (folder / "scenario.yaml").exists():
        return "a run without a broker keeps none, any other from the moment when its first agent is there"
    return "is it a run's folder?"


async def from_broker(url: BrokerUrl, federation: str) -> dict[str, Any]:
    """Coordinator status and roster as the broker holds them. UserError where there are none."""
    topics = Topics(federation)
    found: dict[str, Any] = {}
    account: dict[str, Any] | None = None
    up = False
    try:
        async with (
            asyncio.timeout(WITHIN_S),
            MqttLink(url, client_id=f"covey-status-{uuid.uuid4().hex[:8]}") as link,
        ):
            async for incoming in link.incoming():
                match incoming:
                    case Up():
                        up = True
                        await link.subscribe(
                            [topics.metrics]
                        )  # first: it need not exist, and is not waited for
                        await link.subscribe([topics.coordinator_status, topics.roster])
                    case Down(why):
                        raise UserError(
                            f"{url}: {why}; is a broker there? `broker doctor {url}` tells more"
                        )
                    case Message(topic, payload) if topic == topics.metrics:
                        account = _account(payload)
                    case Message(topic, payload):
                        kind = RosterMessage if topic == topics.roster else CoordinatorStatus
                        found[topic] = kind.from_bytes(payload).model_dump(mode="json")
                if len(found) == 2:
                    break
    except TimeoutError:
        pass
    except DecodeError as error:
        raise UserError(f"{url}: what is retained there is not Covey's ({error})") from None
    if not up:
        raise UserError(f"{url}: no answer within {WITHIN_S:g} s; `broker doctor {url}` tells more")
    if topics.roster not in found:
        raise UserError(f"{url}: no run of federation {federation!r} has been seen there")
    return {
        "status": found.get(topics.coordinator_status),
        "roster": found[topics.roster],
        "privacy": account,
    }


def _account(payload: bytes) -> dict[str, Any] | None:
    """The privacy account in the newest line of the record; None where there is none that can be read."""
    try:
        line = json.loads(payload)
    except ValueError:
        return None
    account = line.get("privacy") if isinstance(line, dict) else None
    return account if isinstance(account, dict) else None
