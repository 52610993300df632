"""Commands after a run: its models go to devices, its figures into a report, its models into programs."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covey.coordinator.cli.options import (
    BROKERS_OF_DEVICES,
    READERS,
    AuditKey,
    distinct_brokers,
    ensure_role,
    out,
    show_line,
)
from covey.shared import json_text
from covey.shared.cli import (
    Allow,
    Connection,
    Json,
    ProgramFormat,
    broker_option,
    check_name,
    with_connection,
)
from covey.shared.consent import AllowedCode
from covey.shared.errors import UserError
from covey.shared.mqtt.credentials import COORDINATOR
from covey.shared.sentences import counted

if TYPE_CHECKING:
    from covey.coordinator.commands.promote import Promoted


Runs = Annotated[
    Path, typer.Option("--runs", help="the folder that has the folders of runs: the registry")
]
DeviceFederation = Annotated[str, typer.Option(help="the devices' federation")]
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
    from covey.coordinator.commands import promote as command
    from covey.coordinator.deploy.registry import registry

    if federation is not None:
        check_name("--federation", federation)
    wish = command.Wish(
        federation=federation,
        audit_key=audit_key,
        force=force,
        wait_s=wait,
        to=tuple(to or ()),
        share=None if share is None else _percent(share),
        alias=alias,
    )
    choice = command.chosen(version, registry(runs, federation or "default"))
    ensure_role(connection, COORDINATOR)
    urls = distinct_brokers(connection) or connection.urls()
    _show_promoted(asyncio.run(command.send(choice, urls, wish)), as_json=as_json, waited=wait > 0)


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
    from covey.coordinator.commands import promote as command
    from covey.coordinator.deploy.registry import registry

    check_name("--federation", federation)
    known = registry(runs, federation)
    wish = command.Wish(
        act="rollback",
        federation=federation,
        audit_key=audit_key,
        force=force,
        wait_s=wait,
        replaces=known.serial,
    )
    choice = command.before(known)
    ensure_role(connection, COORDINATOR)
    urls = distinct_brokers(connection) or connection.urls()
    _show_promoted(asyncio.run(command.send(choice, urls, wish)), as_json=as_json, waited=wait > 0)


def _show_promoted(promoted: Promoted, *, as_json: bool, waited: bool) -> None:
    if as_json:
        print(json_text.dumps(promoted.to_json()))
    else:
        show_line(promoted.sentence)
    if waited and promoted.uptake.exit_code:
        raise typer.Exit(promoted.uptake.exit_code)


def list_runs(
    runs: Annotated[
        Path, typer.Argument(metavar="RUNS", help="the folder that has the folders of runs")
    ] = Path("runs"),
    as_json: Json = False,
) -> None:
    """List the runs in a folder: state, rounds, figure of the newest evaluation, size, and published versions."""
    from covey.coordinator.commands import runs as command
    from covey.coordinator.view.printed import json_line, show

    found = command.RunList(runs).lines()
    if as_json:
        json_line({"runs": [one.to_json() for one in found]})
    else:
        show(out(), command.table(found, runs))


def prune(
    runs: Annotated[
        Path, typer.Argument(metavar="RUNS", help="the folder that has the folders of runs")
    ] = Path("runs"),
    keep: Annotated[
        int, typer.Option(min=1, help="how many of the newest runs stay in any case")
    ] = 10,
    yes: Annotated[
        bool, typer.Option("--yes", help="remove the folders; without it, list them")
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove the folders of old runs, with their models, records and audit logs.

    Runs at work stay, and so do those whose versions are the champion, a candidate, or have a name, and the one that
    `coordinator rollback` would go back to. Runs of a comparison stay. Without --yes the command lists what it would
    remove.
    """
    from covey.coordinator.commands import runs as command
    from covey.coordinator.view.printed import json_line, show

    found = command.old(runs, keep)
    if yes:
        found = [command.removed(line) for line in found]
    if as_json:
        json_line({"removed": yes, "runs": [one.to_json() for one in found]})
        return
    if found:
        show(out(), command.table(found, runs))
    size = sum(one.bytes for one in found) / command.MEGABYTE
    what = "removed" if yes else "to remove; --yes removes them"
    show_line(f"{counted(len(found), 'run')}, {size:.1f} MB {what}")


@with_connection(broker_option("none: the devices are not asked"))
def versions(
    runs: Annotated[
        Path, typer.Argument(metavar="RUNS", help="the folder that has the folders of runs")
    ] = Path("runs"),
    *,
    connection: Connection,
    federation: DeviceFederation = "default",
    as_json: Json = False,
) -> None:
    """List the versions that were published to a federation, over all its runs: the newest publication first.

    Each line has the run and round, its names, its figure, when it was published and by whom. With a broker or
    credentials it also has the devices that are online and use it.
    """
    from covey.coordinator.commands import versions as command
    from covey.coordinator.view.printed import json_line, show

    check_name("--federation", federation)
    url = None
    if connection.is_named:
        ensure_role(connection, *READERS)
        url = connection.url()
    found = asyncio.run(command.versions(runs, federation, url))
    if as_json:
        json_line({"federation": federation, "versions": [one.to_json() for one in found]})
    else:
        show(out(), command.table(found, federation, asked=url is not None))


def report(
    folders: Annotated[
        list[Path], typer.Argument(help="folders of finished runs, or the folder of one comparison")
    ],
    html: Annotated[
        Path | None,
        typer.Option(
            help="write the page to this file  [default: report.html in the folder, if it is a single one]",
            show_default=False,
        ),
    ] = None,
    svg: Annotated[
        list[str] | None,
        typer.Option(
            help="also write one picture of that page: NAME=FILE, e.g. accuracy=a.svg; repeatable",
            show_default=False,
        ),
    ] = None,
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """Print the results of finished runs in one table, and write a page with curves, clusters and agents.

    A comparison may be unfinished: its report shows the cells that are there. With --json, a page is written only if
    --html names its file.
    """
    from covey.coordinator.commands import report as command

    command.report(command.Request(folders, html, svg or [], as_json), out())


def export(
    folder: Annotated[Path, typer.Argument(help="the folder of a finished run")],
    to: Annotated[
        Path | None,
        typer.Option("--out", help="output folder  [default: <folder>/export]", show_default=False),
    ] = None,
    kind: Annotated[
        ProgramFormat, typer.Option("--format", help="pt2 for PyTorch, or onnx")
    ] = "pt2",
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """Write each cluster's model as a program that runs without Covey.

    The input is a batch of features as they are in the data. The output is logits, or values for
    a regression task.
    """
    from covey.coordinator.processes import launch
    from covey.coordinator.record.records import finished
    from covey.coordinator.view.printed import json_line
    from covey.shared.model_files import model_files

    allowed = AllowedCode.parse(allow)
    finished(folder)
    models = model_files(folder / "models")
    if not models:
        raise UserError(
            f"{folder}: this run has no models to export; its method keeps none on the server"
        )
    for model in models:
        written = (to or folder / "export") / f"{model.stem}.{kind}"
        with nullcontext() if as_json else out().status(f"{model.name}: loading torch"):
            asyncio.run(launch.exported(model, written, folder / "export.log", allowed))
        if as_json:
            json_line({"cluster": model.stem.removeprefix("cluster-"), "file": str(written)})
        else:
            show_line(str(written))
