"""`coordinator promote` and `coordinator rollback`: choose the version of a run's models that devices use."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covey.coordinator.deploy.log import Act, in_force, note
from covey.coordinator.deploy.publish import publish
from covey.coordinator.run.audit_trail import trail_of_finished
from covey.coordinator.run.versions import (
    ModelVersion,
    best_version,
    is_kept,
    last_version,
    round_name,
    save_version,
    version_of_round,
)
from covey.coordinator.serve.connect import connected
from covey.coordinator.serve.sharded_link import ShardedLink
from covey.shared.audit import read_key
from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.scenario.load import load
from covey.shared.scenario.scenario import Scenario
from covey.shared.wire.topics import Topics

CLIENT_DIGITS = 8  # of the MQTT client id


@dataclass(frozen=True)
class Promoted:
    """What was published."""

    run: str
    round: int
    federation: str
    models: int
    agents: int  # whose cluster was published with them
    serial: int

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))

    @property
    def sentence(self) -> str:
        """For a person."""
        noun = "model" if self.models == 1 else "models"
        text = f"round {self.round} of run {self.run}: {self.models} {noun} published"
        return f"{text} for federation {self.federation}; each device checks its model before it uses it"


def scenario_of(folder: Path) -> Scenario:
    """The scenario of a run's folder. Raises UserError if there is none."""
    path = folder / "scenario.yaml"
    if not path.is_file():
        raise UserError(f"{folder}: no run's folder; expected one that `coordinator run` has made")
    return load(path)


def chosen(folder: Path, number: int | None, *, best: bool) -> ModelVersion:
    """The version that the options name: a round, the best one, or the last one.

    Raises:
        UserError: the run did not keep it, or both options are given.
    """
    if number is not None and best:
        raise UserError("--round and --best name two versions; give one of them")
    if number is not None:
        return version_of_round(folder, number)
    if best:
        return best_version(folder)
    return last_version(folder)


def before(folder: Path) -> ModelVersion:
    """The version that was in force before the present one. Raises UserError if there is none."""
    rounds = in_force(folder)
    if len(rounds) < 2:
        raise UserError(
            f"{folder}: there is nothing to go back to: fewer than two versions of this run were published. "
            "To publish another run's models, use `coordinator promote` with its folder"
        )
    return version_of_round(folder, rounds[-2])


async def send(
    folder: Path,
    version: ModelVersion,
    act: Act,
    urls: Sequence[BrokerUrl],
    federation: str | None,
    audit_key: Path | None = None,
) -> Promoted:
    """Publish a version, and note it in the run's folder and in its audit log.

    Only the coordinator's user may write the topics; the broker enforces that.

    Args:
        folder: of the run.
        version: the models.
        act: what to note.
        urls: the devices' brokers; several are independent of each other, and each gets everything.
        federation: of the devices; None: that of the run.
        audit_key: file with the key of the run's audit log, if it is signed.

    Raises:
        UserError: a broker cannot be reached, or does not take the models; a coordinator is at work in the folder;
            the audit log is signed and the key is missing.
    """
    key = None if audit_key is None else read_key(audit_key)
    with trail_of_finished(folder, key) as trail:
        promoted = await _publish(folder, version, act, urls, federation)
        number = promoted.round
        name = promoted.federation
        trail.note(act, round=number, federation=name, serial=promoted.serial)
    return promoted


async def _publish(
    folder: Path, version: ModelVersion, act: Act, urls: Sequence[BrokerUrl], federation: str | None
) -> Promoted:
    scenario = scenario_of(folder)
    name = federation or scenario.federation
    if not is_kept(folder, round_name(version.round)):  # so that a rollback finds it later
        save_version(folder, round_name(version.round), version)
    suffix = uuid.uuid4().hex[:CLIENT_DIGITS]
    topics = Topics(name)
    try:
        async with AsyncExitStack() as stack:
            link = await connected(stack, urls, topics, f"covey-promote-{suffix}")
            if isinstance(link, ShardedLink):
                await link.all_up()
            serial = await publish(
                link,
                topics,
                version,
                origin="operator",
                part_bytes=scenario.wire.part_bytes,
            )
    except UserError as error:
        addresses = ", ".join(map(str, urls))
        raise UserError(f"{addresses}: {error}") from None
    note(folder, act, version.round, serial)
    models = len(version.models)
    agents = len(version.assignment)
    return Promoted(version.run, version.round, name, models, agents, serial)
