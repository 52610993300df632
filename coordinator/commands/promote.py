"""`coordinator promote` and `coordinator rollback`: choose the version of a run's models that devices use."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covey.coordinator.deploy.log import Act, in_force, note
from covey.coordinator.deploy.publish import publish
from covey.coordinator.deploy.uptake import Uptake, observe
from covey.coordinator.disk.checkpoint import Checkpoint
from covey.coordinator.disk.versions import (
    ModelVersion,
    best_version,
    is_kept,
    last_version,
    round_name,
    save_version,
    version_of_round,
)
from covey.coordinator.record.audit_trail import trail_of_finished
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
    force: bool
    uptake: Uptake

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "uptake": self.uptake.to_json()}

    @property
    def sentence(self) -> str:
        """For a person."""
        noun = "model" if self.models == 1 else "models"
        text = f"round {self.round} of run {self.run}: {self.models} {noun} published"
        text = f"{text} for federation {self.federation}; {self.uptake.sentence}"
        if self.uptake.rejected and not self.force:
            text += "; --force overrides their check"
        return text


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
    """The version that was in use before the present one: of this run, or of the run before it.

    Raises:
        UserError: there was none, or the folder of its run is not found.
    """
    published = in_force(folder)
    if len(published) > 1:
        return version_of_round(folder, published[-2].round)
    if not published:
        raise UserError(
            f"{folder}: there is nothing to go back to: no models of this run are in use. Roll back the run whose models "
            "are, or publish another run's with `coordinator promote`"
        )
    first = published[0]
    if not first.before_run:
        raise UserError(
            f"{folder}: there is nothing to go back to: no models were published before those of round {first.round}. "
            "To publish another run's models, use `coordinator promote` with its folder"
        )
    other = _folder_of(first.before_run, folder.resolve().parent)
    if other is None:
        raise UserError(
            f"{folder}: round {first.before_round} of run {first.before_run} was in use before, and its folder is not "
            f"next to this one; publish it with `coordinator promote ITS-FOLDER --round {first.before_round} --force`"
        )
    return version_of_round(other, first.before_round)


def _folder_of(run: str, parent: Path) -> Path | None:
    """The folder of a run among those in `parent`."""
    for path in sorted(parent.iterdir()):
        if not (path / "checkpoint").exists():
            continue
        with contextlib.suppress(UserError):  # a damaged one
            if Checkpoint(path / "checkpoint").facts()["run"]["run"] == run:
                return path
    return None


async def send(
    folder: Path,
    version: ModelVersion,
    act: Act,
    urls: Sequence[BrokerUrl],
    federation: str | None,
    audit_key: Path | None = None,
    *,
    force: bool = False,
    wait_s: float = 0.0,
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
        force: ask devices to take the models over without their check.
        wait_s: how long to wait for the devices' decisions.

    Raises:
        UserError: a broker cannot be reached, or does not take the models; a coordinator is at work in the folder;
            the audit log is signed and the key is missing.
    """
    key = None if audit_key is None else read_key(audit_key)
    scenario = scenario_of(folder)
    name = federation or scenario.federation
    topics = Topics(name)
    suffix = uuid.uuid4().hex[:CLIENT_DIGITS]
    fields: dict[str, Any] = {"force": True} if force else {}
    with trail_of_finished(folder, key) as trail:
        if version.run != Checkpoint(folder / "checkpoint").facts()["run"]["run"]:
            fields["run"] = version.run
        elif not is_kept(folder, round_name(version.round)):  # so that a rollback finds it later
            save_version(folder, round_name(version.round), version)
        try:
            async with AsyncExitStack() as stack:
                link = await connected(stack, urls, topics, f"covey-promote-{suffix}")
                if isinstance(link, ShardedLink):
                    await link.all_up()
                published = await publish(
                    link,
                    topics,
                    version,
                    origin="operator",
                    part_bytes=scenario.wire.part_bytes,
                    force=force,
                )
                note(folder, act, version, published)
                trail.note(
                    act, round=version.round, federation=name, serial=published.serial, **fields
                )
                uptake = Uptake(version.run, version.round, published.serial)
                if wait_s > 0:
                    await observe(link, topics, uptake, wait_s)
        except UserError as error:
            addresses = ", ".join(map(str, urls))
            raise UserError(f"{addresses}: {error}") from None
    return Promoted(
        run=version.run,
        round=version.round,
        federation=name,
        models=len(version.models),
        agents=len(version.assignment),
        serial=published.serial,
        force=force,
        uptake=uptake,
    )
