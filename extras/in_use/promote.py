"""`coordinator promote` and `coordinator rollback`: choose the version of a run's models that devices use."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
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
from covey.coordinator.record.audit_trail import Trail
from covey.coordinator.record.records import finished, run_folders
from covey.coordinator.run.early_stop import figure_after
from covey.coordinator.serve.connect import connected, fitted
from covey.coordinator.serve.placement import Sharded
from covey.extras.audit.check import trail_of_finished
from covey.extras.audit.key import read_key
from covey.extras.in_use.decide import (
    Command,
    DeploymentPlan,
    DeploymentTarget,
    as_devices_have_it,
    check_known,
    plan,
)
from covey.extras.in_use.finished import withheld
from covey.extras.in_use.publish import publish
from covey.extras.in_use.registry import (
    CANDIDATE,
    CHAMPION,
    DeploymentOutcome,
    Publication,
    Registry,
    RegistryEntry,
    note,
    note_outcome,
    operator,
    outcome_of,
    registry,
)
from covey.extras.in_use.uptake import RetainedFleet, follow, survey
from covey.extras.in_use.versions import known_in
from covey.extras.judge.judge import of_deployment
from covey.shared.cli import BrokerAddresses, Json, check_name, with_connection
from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.mqtt.credentials import COORDINATOR
from covey.shared.mqtt.link import Link
from covey.shared.scenario.load import load
from covey.shared.scenario.scenario import Scenario
from covey.shared.storage import json_text
from covey.shared.storage.files import folder_lock, naming
from covey.shared.wire.topics import Topics

CLIENT_DIGITS = 8  # of the MQTT client id
BEST = "best"  # after @: the round with the best evaluation
# in the folder of runs: the lock of its operators. Its text is who took it last
AT_WORK = ".at-work"

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
    float, typer.Option(min=0.0, help="seconds to wait for the devices' decisions; 0: do not wait")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="print which version would replace which, and end")
]


@with_connection(BROKERS_OF_DEVICES, several=True)
def promote(
    version: Annotated[
        str,
        typer.Argument(
            help="a run's folder or its name in --runs, with @NUMBER or @best for another round than the last; or a version: "
            "candidate, champion, or a name given with --as"
        ),
    ],
    *,
    on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<device>", help="only this device tries it, as the candidate; repeatable"
        ),
    ] = None,
    share: Annotated[
        str | None,
        typer.Option(
            metavar="<percent>",
            help="only this share of the devices tries it, as the candidate, such as 10%",
        ),
    ] = None,
    alias: Annotated[
        str, typer.Option("--as", help="a name of your own for the version", show_default=False)
    ] = "",
    force: Force = False,
    dry_run: DryRun = False,
    wait: Wait = 30.0,
    runs: Runs = Path("runs"),
    connection: BrokerAddresses,
    federation: Annotated[
        str | None, typer.Option(help="the devices' federation", show_default="the run's")
    ] = None,
    audit_key: AuditKey = None,
    as_json: Json = False,
) -> None:
    """Publish a version of a run's models for use on the devices, or on some of them.

    Devices that run `agent start --model-dir` fetch the model of their group, compare it with the one in use, and take
    it over unless it is worse. Those that are offline do so when they connect. With --on or --share some devices try the
    version first; `coordinator promote candidate` then publishes it to all, and `coordinator rollback` takes it back.

    The command prints which version it replaces before it begins, and afterwards how many devices took the models over,
    rejected them, or have not answered. It ends with 1 if a device rejected them, with 3 if none did and some have not
    answered or are offline; with --wait 0 it ends with 0.
    """
    if federation is not None:
        check_name("--federation", federation)
    command = Command(
        force=force,
        on=tuple(on or ()),
        share=None if share is None else _percent(share),
        alias=alias,
    )
    # a mistake is named before anything connects
    chosen(version, known_in(runs, federation or "default"))
    ensure_role(connection, COORDINATOR)
    urls = distinct_brokers(connection) or connection.urls()
    way = Way(urls, runs, federation, audit_key, wait_s=wait, dry_run=dry_run)
    _carry_out(command, version, way, as_json=as_json)


@with_connection(BROKERS_OF_DEVICES, several=True)
def rollback(
    *,
    to: Annotated[
        str,
        typer.Option(
            metavar="<version>",
            help="go back to this version  [default: the one before]",
            show_default=False,
        ),
    ] = "",
    force: Force = False,
    dry_run: DryRun = False,
    wait: Wait = 30.0,
    runs: Runs = Path("runs"),
    connection: BrokerAddresses,
    federation: DeviceFederation = "default",
    audit_key: AuditKey = None,
    as_json: Json = False,
) -> None:
    """Publish the version before again: an earlier one of any run, or the champion in place of a candidate.

    It prints both versions before it begins. Devices check these models like all others, unless you --force them. As long
    as a device rejects the version, or has not answered, the command goes to the same version again; --to goes further
    back. `coordinator versions` lists what was published. Exit codes are those of `coordinator promote`.
    """
    check_name("--federation", federation)
    known = known_in(runs, federation)
    if to:
        chosen(to, known)
    else:
        known.before()  # nothing to go back to is named before anything connects
    ensure_role(connection, COORDINATOR)
    urls = distinct_brokers(connection) or connection.urls()
    way = Way(urls, runs, federation, audit_key, wait_s=wait, dry_run=dry_run)
    command = Command("rollback", force=force, names_target=bool(to))
    _carry_out(command, to, way, as_json=as_json)


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


def _carry_out(command: Command, words: str, way: Way, *, as_json: bool) -> None:
    """Print the plan, carry it out, and print what devices made of it."""

    def show_plan(plan: DeploymentPlan) -> None:
        if not as_json:
            show_line(plan.sentence)

    done = asyncio.run(deploy(command, words, way, show_plan))
    if as_json:
        print(json_text.dumps(done.to_json()))
    elif done.serial:
        show_line(done.sentence)
    if done.serial and way.wait_s > 0 and done.outcome.exit_code:
        raise typer.Exit(done.outcome.exit_code)


@dataclass(frozen=True)
class Chosen:
    """What to publish."""

    folder: Path  # of the run
    version: ModelVersion
    name: str  # of the version, for people

    @property
    def target(self) -> DeploymentTarget:
        return DeploymentTarget((self.version.run, self.version.round), self.name)


@dataclass(frozen=True)
class Way:
    """Where a deployment goes, and how long it may take."""

    urls: Sequence[BrokerUrl]  # several are independent of each other, and each gets everything
    runs: Path  # the registry
    federation: str | None = None  # None: that of the run
    audit_key: Path | None = None  # file with the key of the run's audit log, if it is signed
    wait_s: float = 0.0  # for the devices' decisions
    dry_run: bool = False


@dataclass(frozen=True)
class DeploymentDone:
    """A deployment that was carried out, or only planned."""

    plan: DeploymentPlan
    federation: str
    models: int
    serial: int = 0  # its id; 0: it was only planned
    outcome: DeploymentOutcome = field(default_factory=DeploymentOutcome)

    def to_json(self) -> dict[str, Any]:
        return {
            **self.plan.to_json(),
            "federation": self.federation,
            "models": self.models,
            "serial": self.serial,
            "outcome": self.outcome.to_json(),
        }

    @property
    def sentence(self) -> str:
        """For a person."""
        text = self.outcome.sentence
        if self.outcome.rejected and not self.plan.force:
            text += f"; `{self.plan.forced}` overrides their check"
        return text


def scenario_of(folder: Path) -> Scenario:
    """The scenario of a run's folder. Raises UserError if there is none."""
    path = folder / "scenario.yaml"
    if not path.is_file():
        raise UserError(
            f"{folder}: not the folder of a run; expected one that `coordinator run` has made"
        )
    return load(path)


def chosen(words: str, known: Registry) -> Chosen:
    """The version that a person names: RUN, RUN@ROUND, RUN@best, or the name of a version such as `candidate`.

    RUN is a folder, or the name of one in the registry's folder, or the id of a run there.

    Raises:
        UserError: there is no such run or name, or the run did not keep the round.
    """
    named = known.named(words)
    if named is not None:
        return kept(named, known)
    name, at, which = words.rpartition("@")
    if not at or Path(words).is_dir():
        name, which = words, ""
    folder = _folder_of(name, known.folder)
    if not which:
        return _named(folder, last_version(folder), known)
    if which == BEST:
        return _named(folder, best_version(folder), known)
    if not which.isdecimal():
        raise UserError(f"{words}: expected RUN@ROUND or RUN@{BEST}, such as {folder}@12")
    return _named(folder, version_of_round(folder, int(which)), known)


def kept(entry: RegistryEntry, known: Registry) -> Chosen:
    """The version of a publication. Raises UserError if its run no longer has it."""
    return _named(entry.folder, version_of_round(entry.folder, entry.publication.round), known)


def _named(folder: Path, version: ModelVersion, known: Registry) -> Chosen:
    """A version with the name that people have for it. UserError if what its run has published is not known."""
    inside, runs = folder.resolve(), known.folder.resolve()
    for bad, why in known.faults.items():
        if bad.resolve() == inside:
            raise UserError(why)
    own = inside.relative_to(runs).as_posix() if inside.is_relative_to(runs) else inside.name
    name = known.title((version.run, version.round)) or f"{own}@{version.round}"
    return Chosen(folder, version, name)


def _folder_of(name: str, runs: Path) -> Path:
    if Path(name).is_dir():
        return Path(name)
    if (runs / name).is_dir() and name not in ("", ".", ".."):
        return runs / name
    for path in run_folders(runs):
        with suppress(UserError, OSError):  # one that is damaged, or has not begun
            if _run_of(path) == name:
                return path
    raise UserError(
        f"{name}: not the folder of a run, and {runs} has no run or version of this name; `coordinator versions {runs}` lists those "
        "that were published"
    )


def _run_of(folder: Path) -> str:
    """The id of the run in a folder. Raises UserError if it has no checkpoint."""
    return str(Checkpoint(folder / "checkpoint").facts()["run"]["run"])


async def deploy(
    command: Command, words: str, way: Way, show: Callable[[DeploymentPlan], None] = lambda _: None
) -> DeploymentDone:
    """Carry out a command: look at the fleet, decide, show the plan, publish, and note what devices make of it.

    The version is noted in the audit log of its run. Only the coordinator's user may write the topics; the broker enforces
    that.

    Args:
        command: as typed.
        words: that name the version; "": of a rollback, the one before.
        way: where to.
        show: is given the plan before anything changes.

    Raises:
        UserError: a broker cannot be reached, or does not take the models; a device does not exist; another operator or a
            coordinator is at work; the audit log is signed and the key is missing.
    """
    key = None if way.audit_key is None else read_key(way.audit_key)
    with _alone(way):
        known = registry(way.runs, way.federation or "default")
        if words and way.federation is None:
            federation = scenario_of(chosen(words, known).folder).federation
            known = registry(way.runs, federation)
        else:
            federation = way.federation or "default"
        topics = Topics(federation)
        try:
            async with AsyncExitStack() as stack:
                client = f"covey-promote-{uuid.uuid4().hex[:CLIENT_DIGITS]}"
                link = await connected(stack, way.urls, topics, client)
                if isinstance(link, Sharded):
                    await link.all_up()
                fleet = await survey(link, topics)
                known = as_devices_have_it(known, fleet.statuses)
                if not words or words in (CHAMPION, CANDIDATE):
                    check_known(known, fleet.held)
                choice = chosen(words, known) if words else kept(known.before(), known)
                if words and not command.force:
                    check_worth(choice.folder, choice.version)
                decided = plan(command, choice.target, known, fleet.held, fleet.statuses)
                show(decided)
                if way.dry_run or decided.is_done:
                    return DeploymentDone(decided, federation, len(choice.version.models))
                with trail_of_finished(choice.folder, key) as trail:
                    return await _publish(
                        DeploymentJob(decided, choice, command, federation, trail), link, fleet, way
                    )
        except UserError as error:
            addresses = ", ".join(map(str, way.urls))
            raise UserError(f"{addresses}: {error}") from None


@contextlib.contextmanager
def _alone(way: Way) -> Iterator[None]:
    """Hold the registry against other operators of this machine. UserError, with the name of the first, if one is at work."""
    if not way.runs.is_dir() or way.dry_run:
        yield
        return
    lock = way.runs / AT_WORK
    lock.touch()
    busy = (
        f"{way.runs}: another `coordinator promote` or `rollback` is at work with it, of {lock.read_text() or 'somebody'}; "
        "wait until it ends, look at `coordinator versions`, then decide"
    )
    with folder_lock(lock, busy):
        with naming(lock):
            lock.write_text(f"{operator()} since {time.strftime('%H:%M')}")
        yield


@dataclass(frozen=True)
class DeploymentJob:
    """A plan, and what it takes to carry it out."""

    plan: DeploymentPlan
    choice: Chosen
    command: Command
    federation: str
    trail: Trail  # the audit log of the run


def check_worth(folder: Path, version: ModelVersion) -> None:
    """UserError for the models of a run that are worse than none on most devices."""
    try:
        result = finished(folder)
    except UserError:
        return
    worse, compared = result.get("worse_than_none", []), result["accuracy"].get("baseline", {})
    why = withheld(worse, compared.get("agents", 0)) if version.round == result["rounds"] else ""
    if why:
        raise UserError(f"{why}; --force overrides this")


def _known_fleet(folder: Path) -> dict[str, Any] | None:
    """What the run knew of its fleet's weights when it ended."""
    try:
        known = finished(folder).get("fleet")
    except UserError:
        return None
    return known or None


async def _publish(
    job: DeploymentJob, link: Link, fleet: RetainedFleet, way: Way
) -> DeploymentDone:
    """Publish what was decided, and note it and its outcome."""
    folder, version, decided = job.choice.folder, job.choice.version, job.plan
    scenario = scenario_of(folder)
    if not is_kept(folder, round_name(version.round)):  # so that a rollback finds it later
        save_version(folder, round_name(version.round), version)
    published = await publish(
        link,
        fleet.topics,
        version,
        origin="operator",
        part_bytes=fitted(scenario, way.urls).wire.part_bytes,
        tune=scenario.tuning_at_home,
        judge=of_deployment(scenario.evaluation, _known_fleet(folder), is_open=scenario.is_open),
        name=decided.target,
        force=decided.force,
        devices=decided.devices,
        before=fleet.held,
    )
    before_run, before_round = decided.before_version or ("", 0)
    line = Publication(
        act=decided.act,
        round=version.round,
        serial=published.serial,
        run=version.run,
        federation=job.federation,
        who=operator(),
        figure=version.figure or _figure(folder, scenario, version),
        devices=published.devices,
        alias=job.command.alias,
        force=decided.force,
        before_run=before_run,
        before_round=before_round,
    )
    note(job.trail, line)
    fleet.deployments.clear()  # what arrives from now on is another operator's

    def outcome() -> DeploymentOutcome:
        return outcome_of(fleet.statuses, line.version, line.serial, line.devices)

    if way.wait_s > 0:
        await follow(link, fleet, way.wait_s, lambda: bool(outcome().undecided))
        note_outcome(job.trail, line.serial, outcome())
        newest = fleet.held.newest
        if newest is not None and newest.serial > line.serial:
            raise UserError(
                f"deployment {line.serial} of {decided.target} was replaced meanwhile: another operator published {newest.title}; look with `coordinator versions`"
            )
    models = len(version.models)
    return DeploymentDone(
        replace(decided, devices=published.devices), job.federation, models, line.serial, outcome()
    )


def _figure(folder: Path, scenario: Scenario, version: ModelVersion) -> dict[str, Any]:
    """The figure of a version in its run's evaluations; empty if the run did not evaluate it."""
    facts = Checkpoint(folder / "checkpoint").facts()
    run = facts["run"]
    rounds = facts["engine"]["round"]
    return figure_after(scenario, run["history"], run["evaluation"], version.round, rounds)
