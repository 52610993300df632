"""`coordinator run` over a broker: prepare the folder, start the child processes, serve the rounds, write the results."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import resource
import shlex
import sys
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covey.coordinator.cli.options import (
    BROKER_OF_A_RUN,
    Aggregators,
    AuditKey,
    Cluster,
    Embedded,
    InProcess,
    ScenarioFile,
    Set,
    Track,
    complain,
    distinct_brokers,
    ensure_role,
    in_federation,
    out,
    refuse_contradictions,
    show_line,
)
from covey.coordinator.odd import read_odd
from covey.coordinator.processes import launch
from covey.coordinator.record.notices import BrokerReady, ModelChosen, Observer
from covey.coordinator.report.odd_list import show_odd
from covey.coordinator.report.progress import ProgressBar
from covey.coordinator.run.effects import Effect
from covey.coordinator.run.folder import Origin, copy_start, origin_of, prepared
from covey.coordinator.run.options import RunOptions
from covey.coordinator.run.rules import rules_of
from covey.coordinator.run.run import Run
from covey.coordinator.serve.connect import connected, fitted
from covey.coordinator.serve.exclusive import ensure_single_coordinator
from covey.coordinator.serve.service import Service, last_will
from covey.coordinator.serve.signals import StopSignals
from covey.coordinator.view.printed import json_line, json_notice, results_table, show_words
from covey.shared import extras
from covey.shared.cli import (
    Allow,
    BrokerAddresses,
    DataRoot,
    Json,
    failed,
    stopped,
    with_connection,
)
from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import DEFAULT_BROKER, BrokerUrl
from covey.shared.mqtt.credentials import COORDINATOR
from covey.shared.mqtt.link import Link
from covey.shared.own_code.consent import AllowedCode
from covey.shared.scenario.code import check_code
from covey.shared.scenario.load import load
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import Setup
from covey.shared.wire.topics import Topics

if TYPE_CHECKING:
    from covey.extras.outlets.tracking import TrackedObserver

ID_DIGITS = 12  # of a run, hexadecimal
MAX_CAUSES = 3  # odd devices in the sentence of a run that is given up
CLIENT_DIGITS = 8  # of the coordinator's MQTT client id
MAX_DESCRIPTORS = 65_536  # where the system has no limit


def resume_command(arguments: Sequence[str]) -> str:
    """The command that continues a stopped run: as typed, plus --resume, with stars for a password."""
    shown = [
        re.sub(r"((?:mqtt|ws)s?://[^:/@]*:).*@", r"\1***@", argument) for argument in arguments
    ]
    if "--resume" not in shown:
        shown.append("--resume")
    return shlex.join(["coordinator", *shown])


@with_connection(BROKER_OF_A_RUN, several=True)
def run_command(
    context: typer.Context,
    scenario: ScenarioFile,
    *,
    folder: Annotated[
        Path | None, typer.Option("--out", help="the run's folder  [default: runs/<name>]")
    ] = None,
    connection: BrokerAddresses,
    cluster: Cluster = False,
    embedded: Embedded = False,
    aggregators: Aggregators = False,
    overrides: Set = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="continue from the checkpoint in the folder")
    ] = False,
    origin: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="folder of a finished run: begin with its models and groups, for more rounds or with other settings",
        ),
    ] = None,
    give_up_after: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            metavar="<seconds>",
            help="end the run, with exit code 2, once it has waited for agents this long  [default: it keeps waiting]",
        ),
    ] = None,
    in_process: InProcess = False,
    data_root: DataRoot = None,
    metrics: Annotated[
        str | None, typer.Option(help="serve Prometheus metrics at [HOST:]PORT, path /metrics")
    ] = None,
    audit_key: AuditKey = None,
    track: Track = None,
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """Run a scenario to its end, and write models, records and results to a folder.

    A scenario with a fleet section starts its simulated agents. Without one, the run waits for
    agents that `agent start` runs. Ctrl-C stops the run; --resume continues it.
    """
    refuse_contradictions(context)
    if track:
        finish_tracked = extras.part("outlets", "tracked_run", "--track").finish_tracked
        trackers = extras.part("outlets", "tracking", "--track")

        trackers.check_trackers(track)
    metrics_address = None
    if metrics is not None:
        metrics_address = extras.part("outlets", "prometheus", "--metrics").address(metrics)
    if not (in_process or embedded):
        ensure_role(connection, COORDINATOR)
    loaded = load(scenario, overrides or [])
    if not (in_process or embedded):
        loaded = in_federation(connection, loaded)
    options = RunOptions(
        folder or Path("runs") / loaded.name,
        resume,
        embedded,
        data_root,
        metrics_address,
        audit_key,
        origin,
        AllowedCode.parse(allow),
        distinct_brokers(connection),
        cluster,
        aggregators,
        math.inf if give_up_after is None else give_up_after,
    )
    observing: AbstractContextManager[Observer]
    observing = nullcontext(json_notice) if as_json else ProgressBar(out(), loaded.rounds.count)
    following: AbstractContextManager[TrackedObserver | None] = nullcontext()
    if track:
        following = trackers.tracking(track, loaded, options.folder, complain)
    result = None
    with suppress(KeyboardInterrupt), following as tracked, observing as shown:
        observer = shown if tracked is None else tracked.before(shown)
        if in_process:
            result = extras.part("simulate", "driver", "--in-process").alone(
                loaded, options, observer
            )
        else:
            try:
                result = asyncio.run(run(loaded, options, observer))
            except RunGivenUpError as error:
                again = resume_command(sys.argv[1:])
                raise UserError(f"{error}; to continue: {again}") from None
        if result is not None and tracked is not None:
            finish_tracked(tracked, options.folder, result)
    if result is None:
        if not options.folder.exists():
            raise stopped("nothing was started yet")
        raise stopped(f"to continue: {resume_command(sys.argv[1:])}")
    from covey.coordinator.report import tables

    # figures that their owners keep are no failure of the run; a comparison cannot do without
    of_run = result.get("failure") or not result.get("kept_back")
    problem = tables.none_evaluated(result) if of_run else ""
    if as_json:
        json_line({"event": "result", **result})
    else:
        show_words(out(), tables.results([result]), results_table)
        for remark in (
            tables.regression(result),
            tables.baseline(result),
            tables.used(result),
            tables.participation(result),
            tables.newcomers(result),
            tables.unevaluated(result),
        ):
            if remark:
                show_line(remark)
        odd = read_odd(result.get("odd", ()))
        if odd or (not problem and extras.has("doctor")):
            show_odd(out(), odd)
        show_line(f"models, records and the result are in {options.folder}")
    if problem:
        raise failed(problem)


class RunGivenUpError(UserError):
    """The run was given up, and can be resumed."""


@dataclass(frozen=True)
class _Addresses:
    """The brokers of a run, as their two kinds of clients reach them."""

    coordinator: Sequence[BrokerUrl]
    fleet: Sequence[BrokerUrl]  # for simulated agents


async def run(
    scenario: Scenario, options: RunOptions, observer: Observer, children: Children | None = None
) -> dict[str, Any] | None:
    """Run a scenario to its end.

    Args:
        scenario: what to run.
        options: how.
        observer: receives what happens.
        children: the processes of several runs; None: this one starts its own.

    Returns:
        the result, as result.json has it; None if the operator stopped the run

    Raises:
        RunGivenUpError: the run was given up
        UserError: the run cannot start
    """
    raise_descriptor_limit()
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - this is a coroutine
    with StopSignals(task.cancel) as signals:
        try:
            return await _run(scenario, options, observer, signals, children)
        except asyncio.CancelledError:
            return None


def raise_descriptor_limit() -> None:
    """Let this process and its children open as many files and connections as the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):  # a system may allow less
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


async def _run(
    scenario: Scenario,
    options: RunOptions,
    observer: Observer,
    signals: StopSignals,
    children: Children | None,
) -> dict[str, Any] | None:
    check_code(scenario, options.allowed)
    if options.aggregators:
        extras.part("scale", "partial_sums", "--aggregators").check_aggregators(scenario)
    publishes = scenario.fleet is None and scenario.rounds.publish != "never"
    if publishes and "publish" in scenario.rounds.model_fields_set:
        extras.part("in_use", "finished", f"rounds.publish: {scenario.rounds.publish}")
    urls = addresses(scenario, options)
    if options.cluster and (len(urls) < 2 or scenario.fleet is not None):
        raise UserError(
            f"--cluster: expected several addresses of --broker, and a scenario for devices; got {len(urls)} "
            f"addresses and {'a' if scenario.fleet is not None else 'no'} section `fleet`"
        )
    scenario = at_brokers(fitted(scenario, urls), options)
    key = None
    if options.audit_key is not None:
        key = extras.part("audit", "key", "--audit-key").read_key(options.audit_key)
    await asyncio.gather(*[ensure_single_coordinator(url, scenario.federation) for url in urls])
    if options.cluster:
        crossing = extras.part("scale", "crossing", "--cluster")
        await crossing.ensure_one_cluster(urls, scenario.federation)
    # The stack ends what it holds in reverse order: metrics, link, fleet, broker, lock of the folder.
    async with AsyncExitStack() as stack:
        origin = origin_of(options.origin, scenario) if options.origin is not None else None
        resume = stack.enter_context(prepared(scenario, options))
        if origin is not None and not resume:
            copy_start(origin, options.folder)
        children = children or Children(stack)
        brokers = await children.brokers(scenario, options, urls, observer)
        fleet = await children.fleet(scenario, options, brokers.fleet)
        setup = await launch.initial(options.folder, scenario, options.allowed)
        observer(ModelChosen(scenario.task.model.name, list(setup.whole.frozen)))
        this, first = await _new_or_resumed(scenario, options, setup, key, origin, resume=resume)
        if fleet is not None:  # they keep nothing through a power cut either
            this.simulate(evaluates_busy=False)
        link = await _connect(stack, brokers.coordinator, this, options.cluster)
        service = Service(
            this,
            link,
            observer=observer,
            aggregators=options.aggregators,
            give_up_after_s=options.give_up_after_s,
        )
        if options.metrics is not None:  # the client library is imported only then
            prometheus = extras.part("outlets", "prometheus", "--metrics")
            stack.enter_context(prometheus.serving(options.metrics, service))
        # From here on a signal stops the service, which ends in order, and no longer cancels the task.
        cancel = signals.stop
        signals.stop = service.stop
        reason = await _serve(service, first, fleet)
        signals.stop = cancel
        if reason == "":
            from covey.coordinator.processes.finish import finish

            async with service.ends_in_order():
                if publishes and extras.has("in_use") and this.engine.round:
                    await extras.part("in_use", "finished").publish_finished(this, link, observer)
                return finish(this, service.odd)
    if reason is None:
        return None
    others = "; ".join(f"{one.who}: {one.what}" for one in service.odd[:MAX_CAUSES])
    text = f"the run was given up after round {this.engine.round}: {reason}"
    raise RunGivenUpError(f"{text}; odd: {others}" if others else text)


def addresses(scenario: Scenario, options: RunOptions) -> list[BrokerUrl]:
    """The brokers to connect to, by their numbers; none if the run starts its own.

    Raises UserError, before anything starts, for an invalid address or unreadable TLS files.
    """
    if options.embedded:
        return []
    urls = list(options.brokers) or [BrokerUrl.parse(text) for text in _named(scenario)]
    for url in urls:
        url.tls_context()
    return urls


def at_brokers(scenario: Scenario, options: RunOptions) -> Scenario:
    """The scenario with the several brokers that the options name: a group of a secure sum lies within one."""
    if len(options.brokers) < 2 or options.cluster:
        return scenario
    named = tuple(map(str, options.brokers))
    return scenario.model_copy(update={"broker": None, "brokers": named})


def _named(scenario: Scenario) -> Sequence[str]:
    """The addresses that the scenario names, or the one of this machine for real agents."""
    match scenario.brokers:
        case int():
            return []
        case tuple() as several:
            return several
    if scenario.broker:
        return [scenario.broker]
    return [DEFAULT_BROKER] if scenario.fleet is None else []


# -- the steps of a start, in order --------------------------------------------------------------------------------


class Children:
    """The brokers and the simulated fleet that a run starts: for itself, or for several runs, one after another.

    Args:
        stack: ends them.
    """

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._brokers: list[launch.StartedBroker] = []
        self._fleet: launch.Child | None = None

    async def brokers(
        self, scenario: Scenario, options: RunOptions, urls: Sequence[BrokerUrl], observer: Observer
    ) -> _Addresses:
        """The addresses of the brokers at `urls`, or of those that are started."""
        for url in urls:
            observer(BrokerReady("yours", str(url), ""))
        if urls:
            return _Addresses(urls, urls)
        count = scenario.brokers if isinstance(scenario.brokers, int) else 1
        for _ in range(count - len(self._brokers)):
            start = launch.broker(options.folder, scenario, embedded=options.embedded)
            self._brokers.append(await self._stack.enter_async_context(start))
        for this in self._brokers:
            observer(BrokerReady(this.name, str(this.url), this.note))
        return _Addresses(
            [this.url for this in self._brokers], [this.fleet_url for this in self._brokers]
        )

    async def fleet(
        self, scenario: Scenario, options: RunOptions, brokers: Sequence[BrokerUrl]
    ) -> launch.Child | None:
        """Have the simulated agents brought up; None if the scenario has none."""
        if scenario.fleet is None:
            return None
        if self._fleet is None or self._fleet.process.returncode is not None:
            start = launch.fleet(options.folder, brokers, options.data_root, options.allowed)
            self._fleet = await self._stack.enter_async_context(start)
        else:
            self._fleet.play(options.folder)
        return self._fleet


async def _new_or_resumed(
    scenario: Scenario,
    options: RunOptions,
    setup: Setup,
    key: bytes | None,
    origin: Origin | None,
    *,
    resume: bool,
) -> tuple[Run, Sequence[Effect]]:
    """A new run, or the one in the folder, with the effects to carry out first."""
    rules = rules_of(scenario)
    now = asyncio.get_running_loop().time()
    if resume:
        return await asyncio.to_thread(
            Run.resume, options.folder, scenario, setup, rules=rules, now=now, audit_key=key
        )
    name = uuid.uuid4().hex[:ID_DIGITS]
    this = await asyncio.to_thread(
        Run.start,
        options.folder,
        scenario,
        setup,
        rules=rules,
        run=name,
        now=now,
        audit_key=key,
        origin=origin,
    )
    return this, ()


async def _connect(
    stack: AsyncExitStack, urls: Sequence[BrokerUrl], run: Run, cluster: bool
) -> Link:
    """The coordinator's link to the broker, or to all of them, with a client id that no other coordinator has."""
    suffix = uuid.uuid4().hex[:CLIENT_DIGITS]
    federation = run.scenario.federation
    topics, client_id = Topics(federation), f"covey-{federation}-coordinator-{suffix}"
    will = last_will(topics, run)
    return await connected(stack, urls, topics, client_id, will=will, cluster=cluster)


async def _serve(
    service: Service, first: Sequence[Effect], fleet: launch.Child | None
) -> str | None:
    """Serve the run to its end, and stop it if its simulated fleet ends earlier.

    Returns:
        the reason why the run was given up; empty if it was finished, None if the operator stopped it

    Raises:
        UserError: the simulated fleet ended during the run
    """
    if fleet is None:
        return await service.serve(first)
    serving = asyncio.ensure_future(service.serve(first))
    fleet_ended = asyncio.ensure_future(fleet.process.wait())
    await asyncio.wait({serving, fleet_ended}, return_when=asyncio.FIRST_COMPLETED)
    if not serving.done():
        service.stop()
        await serving
        log = fleet.messages()
        raise UserError(f"the simulated fleet ended during the run; its last messages:\n{log}")
    fleet_ended.cancel()
    return serving.result()
