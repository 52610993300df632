"""Commands that train: one run, or a comparison of many."""

from __future__ import annotations

import asyncio
import math
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from covey.shared.cli import Allow, Connection, DataRoot, Json, failed, stopped, with_connection
from covey.shared.consent import AllowedCode
from covey.shared.errors import UserError
from covey.shared.mqtt.credentials import COORDINATOR

if TYPE_CHECKING:
    from covey.coordinator.track.tracking import TrackedObserver


def resume_command(arguments: Sequence[str]) -> str:
    """The command that continues a stopped run: as typed, plus --resume, with stars for a password."""
    shown = [
        re.sub(r"((?:mqtt|ws)s?://[^:/@]*:).*@", r"\1***@", argument) for argument in arguments
    ]
    if "--resume" not in shown:
        shown.append("--resume")
    return shlex.join(["coordinator", *shown])


@with_connection(BROKER_OF_A_RUN, several=True)
def run(
    context: typer.Context,
    scenario: ScenarioFile,
    *,
    folder: Annotated[
        Path | None, typer.Option("--out", help="the run's folder  [default: runs/<name>]")
    ] = None,
    connection: Connection,
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
            help="folder of a finished run: begin with its models and clusters, for more rounds or with other settings",
            show_default=False,
        ),
    ] = None,
    give_up_after: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            metavar="<seconds>",
            help="end the run, with exit code 2, once it has waited so long for agents  [default: it waits on]",
            show_default=False,
        ),
    ] = None,
    in_process: InProcess = False,
    data_root: DataRoot = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            help="serve Prometheus metrics at [HOST:]PORT, path /metrics", show_default=False
        ),
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
    from covey.coordinator.commands import run as command
    from covey.coordinator.record.notices import Observer
    from covey.coordinator.report.progress import ProgressBar
    from covey.coordinator.report.stayed_out import StayedOut
    from covey.coordinator.report.tables import (
        baseline,
        newcomers,
        none_evaluated,
        own_models,
        participation,
        regression,
        results,
        unevaluated,
    )
    from covey.coordinator.run.options import Options
    from covey.coordinator.view.printed import json_line, json_notice, results_table, show_words
    from covey.shared.scenario.load import load

    refuse_contradictions(context)
    if track:
        from covey.coordinator.commands.tracked_run import finish_tracked
        from covey.coordinator.track.tracking import check_trackers, tracking

        check_trackers(track)
    metrics_address = None
    if metrics is not None:
        from covey.coordinator.serve.prometheus import address

        metrics_address = address(metrics)
    if not (in_process or embedded):
        ensure_role(connection, COORDINATOR)
    loaded = load(scenario, overrides or [])
    if not (in_process or embedded):
        loaded = in_federation(connection, loaded)
    options = Options(
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
        following = tracking(track, loaded, options.folder, complain)
    result = None
    with suppress(KeyboardInterrupt), following as tracked, observing as shown:
        observer = stayed_out = StayedOut(shown if tracked is None else tracked.before(shown))
        if in_process:
            from covey.coordinator.simulate import driver

            result = driver.alone(loaded, options, observer)
        else:
            try:
                result = asyncio.run(command.run(loaded, options, observer))
            except command.RunGivenUpError as error:
                again = resume_command(sys.argv[1:])
                raise UserError(f"{error}; to continue: {again}") from None
        if result is not None and tracked is not None:
            finish_tracked(tracked, options.folder, result)
    if result is None:
        if not options.folder.exists():
            raise stopped("nothing was started yet")
        raise stopped(f"to continue: {resume_command(sys.argv[1:])}")
    if as_json:
        json_line({"event": "result", **result})
    else:
        show_words(out(), results([result]), results_table)
        for remark in (
            regression(result),
            baseline(result),
            own_models(result),
            participation(result),
            newcomers(result),
            stayed_out.sentence(result["took_part"]),
        ):
            if remark:
                show_line(remark)
        if missing := unevaluated(result):
            show_line(missing)
        show_line(f"models, records and the result are in {options.folder}")
    # figures that their owners keep are no failure of the run; a comparison cannot do without
    if not result.get("kept_back") and (problem := none_evaluated(result)):
        raise failed(problem)


def replay(
    record: Annotated[Path, typer.Argument(help="the folder of a buffered run", metavar="RUN")],
    *,
    folder: Annotated[
        Path | None, typer.Option("--out", help="the folder of the replay  [default: RUN.replay]")
    ] = None,
    data_root: DataRoot = None,
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """Repeat a run with buffered rounds in its recorded order of arrivals, and compare the models byte for byte.

    Only runs of a simulated fleet can be repeated: other data stays on its devices. The exit code is 1 if models differ.
    """
    from covey.coordinator.record.notices import ignore
    from covey.coordinator.report.progress import ProgressBar
    from covey.coordinator.run.options import Options
    from covey.coordinator.simulate.replay import replay as command
    from covey.coordinator.view.printed import json_line
    from covey.shared.scenario.load import load

    beside = record.with_name(f"{record.name}.replay")
    options = Options(folder or beside, data_root=data_root, allowed=AllowedCode.parse(allow))
    rounds = load(record / "scenario.yaml").rounds.count
    with nullcontext(ignore) if as_json else ProgressBar(out(), rounds) as observer:
        replayed = command(record, options, observer)
    models = len(replayed.models)
    if as_json:
        json_line({"event": "replay", "models": models, "different": list(replayed.different)})
    if replayed.different:
        named = ", ".join(replayed.different)
        raise failed(
            f"{named}: not the bytes of {record}; expected identical models. Was the run on another kind of machine, or "
            "with other versions of the libraries?"
        )
    if not as_json:
        show_line(f"{models} models are byte-identical to those of {record}")


@with_connection(BROKER_OF_A_RUN, several=True)
def compare(
    context: typer.Context,
    scenario: ScenarioFile,
    *,
    folder: Annotated[
        Path | None, typer.Option("--out", help="the comparison's folder  [default: runs/<name>]")
    ] = None,
    cells: Annotated[
        list[str] | None,
        typer.Option(
            help="run these cells only, e.g. fedavg/1,fedclust; repeatable", show_default=False
        ),
    ] = None,
    known: Annotated[
        list[Path] | None,
        typer.Option(
            help="compare.json of an earlier comparison, whose cells count as finished; repeatable",
            show_default=False,
        ),
    ] = None,
    no_run: Annotated[
        bool,
        typer.Option(
            "--no-run", help="only print the finished cells; written only if --out is given"
        ),
    ] = False,
    in_process: InProcess = False,
    executor: Annotated[
        str,
        typer.Option(
            metavar="<address>",
            help="run the cells on a Dask cluster, dask://host:port of its scheduler, instead of on this machine; "
            "without a broker, as --in-process",
            show_default=False,
        ),
    ] = "",
    html: Annotated[
        bool,
        typer.Option(
            "--html", help="also write a page with tables and curves, report.html, to the folder"
        ),
    ] = False,
    track: Track = None,
    connection: Connection,
    embedded: Embedded = False,
    overrides: Set = None,
    data_root: DataRoot = None,
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """Run every method of a scenario's compare section, and print tables of mean results.

    A cell is one run: one method, one partition, one seed. Finished cells are kept, interrupted
    cells resume: type the same command to continue. --known adds cells that were run elsewhere.
    The tables are also written to the comparison's folder; with --no-run, only if --out names one.
    """
    from covey.coordinator.commands import compare as command
    from covey.coordinator.run.options import Options
    from covey.shared.scenario.load import load

    refuse_contradictions(context)
    if not (in_process or embedded or executor):
        ensure_role(connection, COORDINATOR)
    loaded = load(scenario, overrides or [])
    if not (in_process or embedded or executor):
        loaded = in_federation(connection, loaded)
    options = Options(
        folder or Path("runs") / loaded.name,
        False,
        embedded,
        data_root,
        allowed=AllowedCode.parse(allow),
        brokers=distinct_brokers(connection),
    )
    if executor and not executor.startswith("dask://"):
        raise UserError(f"--executor {executor}: expected dask://host:port of a Dask scheduler")
    request = command.Request(
        cells or [],
        known or [],
        run=not no_run,
        in_process=in_process,
        executor=executor,
        write=not no_run or folder is not None,
        html=html,
        track=track or [],
    )
    done = False
    with suppress(KeyboardInterrupt):
        done = command.compare(loaded, options, request, None if as_json else out())
    if not done:
        raise stopped("the same command continues")
