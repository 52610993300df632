"""`coordinator promote` and `coordinator rollback`: choose the version of a run's models that devices use."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from covey.coordinator.cli.options import (
    BROKERS_OF_DEVICES,
    AuditKey,
    DeviceFederation,
    distinct_brokers,
    ensure_role,
    show_line,
)
from covey.coordinator.deploy.publish import InForce, in_force, publish
from covey.coordinator.deploy.registry import (
    RESERVED,
    Act,
    Entry,
    Registry,
    note,
    registry,
    run_folders,
)
from covey.coordinator.deploy.uptake import Uptake, observe, sample, statuses
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
from covey.coordinator.record.audit_check import trail_of_finished
from covey.coordinator.run.early_stop import figure_after
from covey.coordinator.serve.connect import connected, fitted
from covey.coordinator.serve.placement import Sharded
from covey.shared.cli import Connection, Json, check_name, with_connection
from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.mqtt.credentials import COORDINATOR
from covey.shared.mqtt.link import Link
from covey.shared.scenario.load import load
from covey.shared.scenario.scenario import Scenario
from covey.shared.sentences import some
from covey.shared.storage import json_text
from covey.shared.storage.audit import read_key
from covey.shared.wire.topics import Topics, is_name

CLIENT_DIGITS = 8  # of the MQTT client id
BEST = "best"  # after @: the round with the best evaluation

Runs = Annotated[
    Path, typer.Option("--runs", help="the folder that has the folders of runs: the registry")
]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="devices take the models over without their own check, unless their policy forbids it",
    ),
]
Wait = Annotated[
    float,
    typer.Option(min=0.0, help="seconds to wait for the decisions of devices; 0: do not wait"),
]


@with_connection(BROKERS_OF_DEVICES, several=True)
def promote(
    version: Annotated[
        str,
        typer.Argument(
            metavar="RUN[@ROUND]",
            help="a run's folder or its name in --runs, with @ROUND or @best for another round than the last; or the name of "
            "a version: candidate, champion, or one given with --as",
        ),
    ],
    *,
    to: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<device>",
            help="only this device tries it, as the candidate; repeatable",
            show_default=False,
        ),
    ] = None,
    share: Annotated[
        str | None,
        typer.Option(
            metavar="<percent>",
            help="only this share of the devices tries it, as the candidate, such as 10%",
            show_default=False,
        ),
    ] = None,
    alias: Annotated[
        str, typer.Option("--as", help="a name of your own for the version", show_default=False)
    ] = "",
    force: Force = False,
    wait: Wait = 30.0,
    runs: Runs = Path("runs"),
    connection: Connection,
    federation: Annotated[
        str | None,
        typer.Option(help="the devices' federation  [default: the run's]", show_default=False),
    ] = None,
    audit_key: AuditKey = None,
    as_json: Json = False,
) -> None:
    """Publish a version of a run's models for use on the devices, or on some of them.

    Devices that run `agent start --model-dir` fetch the model of their cluster, compare it with the one in use, and take
    it over unless it is worse. Those that are offline do so when they connect. With --to or --share some devices try the
    version first; `coordinator promote candidate` then publishes it to all, and `coordinator rollback` takes it back.

    The command prints how many devices took the models over, rejected them, or have not answered. It ends with 1 if a
    device rejected them, with 3 if none did and some have not answered or are offline; with --wait 0 it ends with 0.
    """
    if federation is not None:
        check_name("--federation", federation)
    wish = Wish(
        federation=federation,
        audit_key=audit_key,
        force=force,
        wait_s=wait,
        to=tuple(to or ()),
        share=None if share is None else _percent(share),
        alias=alias,
    )
    choice = chosen(version, registry(runs, federation or "default"))
    ensure_role(connection, COORDINATOR)
    urls = distinct_brokers(connection) or connection.urls()
    _show_promoted(asyncio.run(send(choice, urls, wish)), as_json=as_json, waited=wait > 0)


@with_connection(BROKERS_OF_DEVICES, several=True)
def rollback(
    *,
    force: Force = False,
    wait: Wait = 30.0,
    runs: Runs = Path("runs"),
    connection: Connection,
    federation: DeviceFederation = "default",
    audit_key: AuditKey = None,
    as_json: Json = False,
) -> None:
    """Publish what was in use before: the earlier version, of whichever run, or the champion in place of a candidate.

    Repeat it to go back further; `coordinator versions` lists what was published. Devices check these models as any
    others; --force overrides that. Exit codes are those of `coordinator promote`.
    """
    check_name("--federation", federation)
    known = registry(runs, federation)
    wish = Wish(
        act="rollback",
        federation=federation,
        audit_key=audit_key,
        force=force,
        wait_s=wait,
        replaces=known.serial,
    )
    choice = before(known)
    ensure_role(connection, COORDINATOR)
    urls = distinct_brokers(connection) or connection.urls()
    _show_promoted(asyncio.run(send(choice, urls, wish)), as_json=as_json, waited=wait > 0)


def _percent(text: str) -> float:
    """A share such as 10%. Raises UserError for anything else."""
    number = text.removesuffix("%")
    try:
        share = float(number) / 100
    except ValueError:
        share = 0.0
    if number == text or not 0 < share <= 1:
        raise UserError(f"--share {text}: expected a share of the devices, such as 10%")
    return share


def _show_promoted(promoted: Promoted, *, as_json: bool, waited: bool) -> None:
    if as_json:
        print(json_text.dumps(promoted.to_json()))
    else:
        show_line(promoted.sentence)
    if waited and promoted.uptake.exit_code:
        raise typer.Exit(promoted.uptake.exit_code)


@dataclass(frozen=True)
class Chosen:
    """What to publish."""

    folder: Path  # of the run
    version: ModelVersion


@dataclass(frozen=True)
class Wish:
    """How to publish it."""

    act: Act = "promote"
    federation: str | None = None  # None: that of the run
    audit_key: Path | None = None  # file with the key of the run's audit log, if it is signed
    force: bool = False  # ask devices to take the models over without their check
    wait_s: float = 0.0  # for the devices' decisions
    to: tuple[str, ...] = ()  # devices that try it, as a candidate
    share: float | None = None  # of the devices that try it
    alias: str = ""  # a name for the version
    replaces: int = 0  # refuse if the broker holds another publication than that with this serial; 0: never refuse

    def __post_init__(self) -> None:
        if self.to and self.share is not None:
            raise UserError("--to and --share both choose devices; give one of them")
        if self.alias and (not is_name(self.alias) or self.alias in RESERVED):
            raise UserError(
                f"--as {self.alias}: expected letters, digits, '.', '_' or '-', and none of {', '.join(RESERVED)}"
            )


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
    devices: tuple[str, ...]  # that try it; empty for all
    uptake: Uptake

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "devices": list(self.devices), "uptake": self.uptake.to_json()}

    @property
    def sentence(self) -> str:
        """For a person."""
        noun = "model" if self.models == 1 else "models"
        text = f"round {self.round} of run {self.run}: {self.models} {noun} published"
        whom = f"{some(self.devices)} of federation" if self.devices else "federation"
        text = f"{text} for {whom} {self.federation}; {self.uptake.sentence}"
        if self.uptake.rejected and not self.force:
            text += "; --force overrides their check"
        return text


def scenario_of(folder: Path) -> Scenario:
    """The scenario of a run's folder. Raises UserError if there is none."""
    path = folder / "scenario.yaml"
    if not path.is_file():
        raise UserError(f"{folder}: no run's folder; expected one that `coordinator run` has made")
    return load(path)


def chosen(words: str, known: Registry) -> Chosen:
    """The version that a person names: RUN, RUN@ROUND, RUN@best, or the name of a version such as `candidate`.

    RUN is a folder, or the name of one in the registry's folder, or the id of a run there.

    Raises:
        UserError: there is no such run or name, or the run did not keep the round.
    """
    named = known.named(words)
    if named is not None:
        return kept(named)
    name, at, which = words.rpartition("@")
    if not at or Path(words).is_dir():
        name, which = words, ""
    folder = _folder_of(name, known.folder)
    if not which:
        return Chosen(folder, last_version(folder))
    if which == BEST:
        return Chosen(folder, best_version(folder))
    if not which.isdecimal():
        raise UserError(f"{words}: expected RUN@ROUND or RUN@{BEST}, such as {folder}@12")
    return Chosen(folder, version_of_round(folder, int(which)))


def kept(entry: Entry) -> Chosen:
    """The version of a publication. Raises UserError if its run no longer has it."""
    return Chosen(entry.folder, version_of_round(entry.folder, entry.publication.round))


def _folder_of(name: str, runs: Path) -> Path:
    if Path(name).is_dir():
        return Path(name)
    if (runs / name).is_dir() and name not in ("", ".", ".."):
        return runs / name
    for path in run_folders(runs):
        with suppress(UserError):  # one that is damaged, or has not begun
            if _run_of(path) == name:
                return path
    raise UserError(
        f"{name}: no run's folder, and {runs} has no run or version of this name; `coordinator versions {runs}` lists those "
        "that were published"
    )


def _run_of(folder: Path) -> str:
    """The id of the run in a folder. Raises UserError if it has no checkpoint."""
    return str(Checkpoint(folder / "checkpoint").facts()["run"]["run"])


def before(known: Registry) -> Chosen:
    """The version that was in use before the present one, of whichever run. Raises UserError if there was none."""
    return kept(known.before())


async def send(choice: Chosen, urls: Sequence[BrokerUrl], wish: Wish) -> Promoted:
    """Publish a version, and note it in its run's folder and in the audit log there.

    Only the coordinator's user may write the topics; the broker enforces that.

    Args:
        choice: the run and the version.
        urls: the devices' brokers; several are independent of each other, and each gets everything.
        wish: for which devices, and how.

    Raises:
        UserError: a broker cannot be reached, or does not take the models; a device does not exist; a coordinator is at
            work in the folder; the audit log is signed and the key is missing.
    """
    folder, version = choice.folder, choice.version
    key = None if wish.audit_key is None else read_key(wish.audit_key)
    scenario = scenario_of(folder)
    name = wish.federation or scenario.federation
    topics = Topics(name)
    suffix = uuid.uuid4().hex[:CLIENT_DIGITS]
    fields: dict[str, Any] = {"force": True} if wish.force else {}
    with trail_of_finished(folder, key) as trail:
        if not is_kept(folder, round_name(version.round)):  # so that a rollback finds it later
            save_version(folder, round_name(version.round), version)
        try:
            async with AsyncExitStack() as stack:
                link = await connected(stack, urls, topics, f"covey-promote-{suffix}")
                if isinstance(link, Sharded):
                    await link.all_up()
                if wish.replaces:
                    _check_replaced(await in_force(link, topics), wish.replaces)
                published = await publish(
                    link,
                    topics,
                    version,
                    origin="operator",
                    part_bytes=fitted(scenario, urls).wire.part_bytes,
                    tune=scenario.tuning_at_home,
                    force=wish.force,
                    devices=await _devices(link, topics, version, wish),
                )
                figure = version.figure or _figure(folder, scenario, version)
                note(folder, wish.act, version, published, name, figure, wish.alias)
                if published.devices:
                    fields["devices"] = list(published.devices)
                trail.note(
                    wish.act,
                    round=version.round,
                    federation=name,
                    serial=published.serial,
                    **fields,
                )
                uptake = Uptake(version.run, version.round, published.serial, published.devices)
                if wish.wait_s > 0:
                    await observe(link, topics, uptake, wish.wait_s)
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
        force=wish.force,
        devices=published.devices,
        uptake=uptake,
    )


def _check_replaced(now: InForce, serial: int) -> None:
    """UserError if the broker holds a publication that the registry does not know. One that has lost its state holds none."""
    held = now.all_devices
    if held is not None and held.serial != serial:
        raise UserError(
            f"all devices should use round {held.round} of run {held.run}, which was published from elsewhere: this registry "
            "does not know what was in use before. Publish the version to go back to: `coordinator promote RUN@ROUND --force`"
        )


async def _devices(link: Link, topics: Topics, version: ModelVersion, wish: Wish) -> Sequence[str]:
    """The devices that try the version; none if it is for all. Raises UserError for one that the broker does not know."""
    if not wish.to and wish.share is None:
        return ()
    known = await statuses(link, topics)
    if wish.share is None:
        unknown = [agent for agent in wish.to if agent not in known]
        if unknown:
            raise UserError(
                f"--to {some(unknown)}: no agent of this id has been connected; `coordinator status` lists the agents"
            )
        return sorted(set(wish.to))
    able = [agent for agent, status in known.items() if status.online and status.model is not None]
    if not able:
        raise UserError(
            "--share: no device is online that keeps a model (`agent start --model-dir`)"
        )
    return sample(able, wish.share, f"{version.run}@{version.round}")


def _figure(folder: Path, scenario: Scenario, version: ModelVersion) -> dict[str, Any]:
    """The figure of a version in its run's evaluations; empty if the run did not evaluate it."""
    facts = Checkpoint(folder / "checkpoint").facts()
    run = facts["run"]
    rounds = facts["engine"]["round"]
    return figure_after(scenario, run["history"], run["evaluation"], version.round, rounds)
