"""Publish a version of a run's models to the devices of a federation: retained, for use and not for training.

Each agent's own document comes first, then the models, and last the document that makes all of it valid. A device that
reads in between sees the previous deployment, whose models it has already.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from covey.coordinator.disk.versions import ModelVersion
from covey.shared.client import encode_model
from covey.shared.errors import DecodeError, UserError
from covey.shared.mqtt.link import Down, Incoming, Link, Message
from covey.shared.seeds import generator
from covey.shared.strategies.base import ClientId
from covey.shared.wire.codec import Codec
from covey.shared.wire.deployments import Deployment, DeploymentShare, Origin, latest_serial
from covey.shared.wire.messages import ModelRef, digest
from covey.shared.wire.parts import part_count, split
from covey.shared.wire.topics import Topics, deployed_key

RETAINED_S = 1.0  # a broker sends what it retains at once
ECHO_S = 10.0  # then a deployment that was published must have come back
ATTEMPTS = 20  # to reach the broker
PAUSE_S = 0.5  # between two of them
REPORTED_S = 0.1  # what the link has reported is there at once
PUBLISHERS = 32  # documents of agents under way at once


@dataclass(frozen=True)
class Published:
    """One publication, and the one that it took the place of."""

    serial: int
    before: Deployment | None


async def publish(
    link: Link,
    topics: Topics,
    version: ModelVersion,
    *,
    origin: Origin,
    part_bytes: int,
    force: bool = False,
) -> Published:
    """Publish a version.

    Args:
        link: connected, with the coordinator's credentials.
        topics: of the federation.
        version: the models.
        origin: the run that has finished, or an operator.
        part_bytes: the largest part of a model.
        force: ask devices to take the models over without their check.

    Raises:
        UserError: the broker did not take a message, or holds a publication of the future (unless `force`).
    """
    await _subscribed(link, topics)
    before = await _newest(link, topics, RETAINED_S)
    wall = time.time()
    serial = int(wall * 1000)
    if before is not None and before.serial <= latest_serial(wall):
        serial = max(serial, before.serial + 1)
    elif before is not None and not force:
        raise UserError(
            f"the broker holds a publication with the serial {before.serial}, more than a day ahead of this machine's "
            "clock, which devices refuse. Check the clock. If it is right, another party has the coordinator's credentials: "
            "renew them, then replace the publication with `coordinator promote --force`"
        )
    await _publish_shares(link, topics, version.assignment, serial)
    models: list[ModelRef] = []
    for cluster, model in enumerate(version.models):
        content = encode_model(model, version.layout.digest, Codec(), generator(0, "deployed"))
        ref = await _publish_model(link, topics, cluster, content, part_bytes, version.round)
        models.append(ref)
    deployment = Deployment(
        serial=serial,
        run=version.run,
        round=version.round,
        origin=origin,
        task=dict(version.task),
        layout=version.layout.to_wire(),
        models=models,
        force=force,
    )
    await _retain(link, topics.deployment, deployment.to_bytes())
    echo = await _newest(link, topics, ECHO_S, least=serial)
    if echo is None:
        raise UserError(
            f"the broker did not publish the models within {ECHO_S:g} s; check that these credentials are the "
            "coordinator's"
        )
    if before is not None:
        await _clear(link, topics, before.models, models)
    return Published(serial, before)


async def _subscribed(link: Link, topics: Topics) -> None:
    """Subscribe to the deployment, as soon as the link is connected."""
    for _ in range(ATTEMPTS):
        if await link.subscribe([topics.deployment]):
            return
        await asyncio.sleep(PAUSE_S)
    why = await _newest_end(link)
    reason = f": {why}" if why else ""
    raise UserError(
        f"the broker cannot be reached{reason}; check address and credentials with `broker doctor`"
    )


async def _newest_end(link: Link) -> str:
    """Why the newest connection ended, as far as the link has reported it."""
    why = ""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REPORTED_S):
            async for incoming in link.incoming():
                if isinstance(incoming, Down):
                    why = incoming.why
    return why


async def _newest(link: Link, topics: Topics, within_s: float, least: int = 0) -> Deployment | None:
    """The first deployment that arrives with this serial or a greater one; None if none does."""
    try:
        async with asyncio.timeout(within_s):
            async for incoming in link.incoming():
                found = _deployment_in(incoming, topics)
                if found is not None and found.serial >= least:
                    return found
    except TimeoutError:
        pass
    return None


def _deployment_in(incoming: Incoming, topics: Topics) -> Deployment | None:
    if not isinstance(incoming, Message) or incoming.topic != topics.deployment:
        return None
    try:
        return Deployment.from_bytes(incoming.payload)
    except DecodeError:  # cleared, or of another version
        return None


async def _publish_shares(
    link: Link, topics: Topics, assignment: Mapping[ClientId, int], serial: int
) -> None:
    gate = asyncio.Semaphore(PUBLISHERS)

    async def publish_one(agent: ClientId, cluster: int) -> None:
        share = DeploymentShare(serial=serial, cluster=cluster)
        async with gate:
            await _retain(link, topics.deployment_share(agent), share.to_bytes())

    await asyncio.gather(*[publish_one(agent, cluster) for agent, cluster in assignment.items()])


async def _publish_model(
    link: Link, topics: Topics, cluster: int, content: bytes, part_bytes: int, about: int
) -> ModelRef:
    key = deployed_key(cluster)
    name = digest(content)
    size = len(content)
    source = io.BytesIO(content)
    for part in split(source, digest=name, size=size, part_bytes=part_bytes, about=about):
        await _retain(link, f"{topics.model(key)}/{part.index}", part.to_bytes())
    return ModelRef(key=key, digest=name, parts=part_count(size, part_bytes), size=size)


async def _clear(
    link: Link, topics: Topics, before: Iterable[ModelRef], now: Iterable[ModelRef]
) -> None:
    """Take back parts that only the previous deployment had."""
    parts = {ref.key: ref.parts for ref in now}
    for ref in before:
        for part in range(parts.get(ref.key, 0), ref.parts):
            await _retain(link, f"{topics.model(ref.key)}/{part}", b"")


async def _retain(link: Link, topic: str, payload: bytes) -> None:
    for _ in range(ATTEMPTS):
        if await link.publish(topic, payload, retain=True):
            return
        await asyncio.sleep(PAUSE_S)
    raise UserError(
        f"{topic}: the broker did not take the message; check that it runs, and that these credentials are the "
        "coordinator's"
    )
