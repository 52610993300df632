"""Publish a version of a run's models to the devices of a federation: retained, for use and not for training.

Each agent's own document comes first, then the models, and last the document that makes all of it valid. A device that
reads in between sees the previous deployment, whose models it has already. A candidate for some devices leaves that of all
devices alone, and the next publication to all devices ends it.
"""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from covey.coordinator.disk.versions import ModelVersion
from covey.extras.in_use.uptake import ATTEMPTS, ECHO_S, PAUSE_S, InForce, held, in_force
from covey.shared.errors import UserError
from covey.shared.mqtt.link import Link
from covey.shared.seeds import generator
from covey.shared.sentences import some
from covey.shared.strategies.base import ClientId
from covey.shared.wire.codec import Codec, encode_model
from covey.shared.wire.deployments import Deployment, DeploymentShare, Origin, latest_serial
from covey.shared.wire.messages import ModelRef, digest
from covey.shared.wire.parts import part_count, split
from covey.shared.wire.topics import Topics, deployed_key

DRAIN_S = 0.02  # what has arrived already is there at once
PUBLISHERS = 32  # documents of agents under way at once


@dataclass(frozen=True)
class Published:
    """One publication, and what was in force before."""

    serial: int
    before: InForce
    devices: tuple[ClientId, ...] = ()  # that try it; empty for all


async def publish(
    link: Link,
    topics: Topics,
    version: ModelVersion,
    *,
    origin: Origin,
    part_bytes: int,
    tune: Mapping[str, Any] = MappingProxyType({}),
    judge: Mapping[str, Any] = MappingProxyType({}),
    name: str = "",
    force: bool = False,
    devices: Sequence[ClientId] = (),
    before: InForce | None = None,
) -> Published:
    """Publish a version.

    Args:
        link: connected, with the coordinator's credentials.
        topics: of the federation.
        version: the models.
        origin: the run that has finished, or an operator.
        part_bytes: the largest part of a model.
        tune: training settings with which a device trains the model at home; empty: it uses the model as it is.
        judge: for the judge on a device, as `scenario.judging_at_home` gives it.
        name: of the version, for people.
        force: ask devices to take the models over without their check.
        devices: that try the version, as a candidate. Empty: it is for all devices, and a candidate is over.
        before: what the broker holds, as the decision knows it; None: it is read.

    Raises:
        UserError: the broker did not take a message, holds a publication of the future (unless `force`), or holds a
            candidate of another version; or another operator has published meanwhile.
    """
    if before is None:
        before = await in_force(link, topics)
    wall = time.time()
    serial = int(wall * 1000)
    newest = before.newest
    if newest is not None and newest.serial <= latest_serial(wall):
        serial = max(serial, newest.serial + 1)
    elif newest is not None and not force:
        raise UserError(
            f"the broker holds a publication with the serial {newest.serial}, more than a day ahead of this machine's "
            "clock, which devices refuse. Check the clock. If it is right, another party has the coordinator's credentials: "
            "renew them, then replace the publication with `coordinator promote --force`"
        )
    old = before.candidate
    on_trial = bool(devices)
    if on_trial and old is not None and not old.is_same_version(version.run, version.round):
        raise UserError(
            f"{some(old.devices)} try another candidate, {old.title}; first end it with "
            "`coordinator promote candidate` or `coordinator rollback`"
        )
    among = {
        agent: cluster
        for agent, cluster in version.assignment.items()
        if not devices or agent in devices
    }
    await _publish_shares(link, topics, among, serial)
    models: list[ModelRef] = []
    for cluster, model in enumerate(version.models):
        content = encode_model(model, version.layout.digest, Codec(), generator(0, "deployed"))
        key = deployed_key(cluster, on_trial=on_trial)
        models.append(
            await _publish_model(
                link, topics, key, content=content, part_bytes=part_bytes, about=version.round
            )
        )
    _check_alone(await held(link, topics, quiet_s=DRAIN_S), known=before)
    deployment = Deployment(
        serial=serial,
        name=name,
        run=version.run,
        round=version.round,
        origin=origin,
        task=dict(version.task),
        layout=version.layout.to_wire(),
        models=models,
        force=force,
        tune=dict(tune),
        judge=dict(judge),
        devices=list(devices),
    )
    topic = topics.candidate if on_trial else topics.deployment
    await _retain(link, topic, deployment.to_bytes())
    echo = await held(link, topics, until=serial)
    if echo.newest is None or echo.newest.serial < serial:
        raise UserError(
            f"the broker did not publish the models within {ECHO_S:g} s; check that these credentials are the "
            "coordinator's"
        )
    _check_alone(echo, known=before, own=serial)
    replaced = old if on_trial else before.all_devices
    if replaced is not None:
        await _clear(link, topics, replaced.models, models)
    if old is not None and not on_trial:
        await _retain(link, topics.candidate, b"")
        await _clear(link, topics, old.models, ())
    return Published(serial, before, tuple(devices))


def _check_alone(seen: InForce, *, known: InForce, own: int = 0) -> None:
    """UserError if another operator has published since the decision."""
    decided = 0 if known.newest is None else known.newest.serial
    for one in (seen.all_devices, seen.candidate):
        if one is not None and one.serial > decided and one.serial != own:
            raise UserError(
                f"another operator published {one.title} meanwhile (deployment {one.serial}). Look at `coordinator versions`, "
                "agree on one version, and publish that one again"
            )


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
    link: Link, topics: Topics, key: str, *, content: bytes, part_bytes: int, about: int
) -> ModelRef:
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
