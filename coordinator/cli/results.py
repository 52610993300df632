"""Commands after a run: its models go to devices, its figures into a report, its models into programs."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covey.coordinator.cli.options import (
    BROKERS_OF_DEVICES,
    AuditKey,
    Shards,
    command_group,
    ensure_role,
    out,
    several_brokers,
    show_line,
)
from covey.shared import json_text
from covey.shared.cli import Allow, Connection, Json, ProgramFormat, check_name, with_connection
from covey.shared.consent import AllowedCode
from covey.shared.errors import UserError
from covey.shared.mqtt.credentials import COORDINATOR

if TYPE_CHECKING:
    from covey.coordinator.commands.promote import Promoted

commands = command_group()


RunFolder = Annotated[Path, typer.Argument(help="the folder of the run", metavar="RUN")]
DeviceFederation = Annotated[
    str | None,
    typer.Option(help="the devices' federation  [default: the run's]", show_default=False),
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


@commands.command()
@with_connection(BROKERS_OF_DEVICES)
def promote(
    folder: RunFolder,
    *,
    number: Annotated[
        int | None,
        typer.Option("--round", help="publish the models of this round  [default: the last one]"),
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="publish the models with the best evaluation of the run")
    ] = False,
    force: Force = False,
    wait: Wait = 30.0,
    connection: Connection,
    shard: Shards = None,
    federation: DeviceFederation = None,
    audit_key: AuditKey = None,
    as_json: Json = False,
) -> None:
    """Publish a version of a run's models for use on the devices.

    Devices that run `agent start --model-dir` fetch the model of their cluster, compare it with the one in use, and take
    it over unless it is worse. Those that are offline do so when they connect. The command prints how many devices took the
    models and how many rejected them; it ends with 1 if one did.
    """
    from covey.coordinator.commands import promote as command

    if federation is not None:
        check_name("--federation", federation)
    version = command.chosen(folder, number, best=best)
    ensure_role(connection, COORDINATOR)
    urls = several_brokers(connection, shard) or [connection.url()]
    sent = command.send(
        folder, version, "promote", urls, federation, audit_key, force=force, wait_s=wait
    )
    _show_promoted(asyncio.run(sent), as_json=as_json)


@commands.command()
@with_connection(BROKERS_OF_DEVICES)
def rollback(
    folder: RunFolder,
    *,
    force: Force = False,
    wait: Wait = 30.0,
    connection: Connection,
    shard: Shards = None,
    federation: DeviceFederation = None,
    audit_key: AuditKey = None,
    as_json: Json = False,
) -> None:
    """Publish the models that devices used before the present ones: of this run, or of the run before it.

    Repeat it to go back further. deployments.jsonl in the run's folder lists what was published. Devices check these
    models as any others; --force overrides that. The command ends with 1 if a device rejects them.
    """
    from covey.coordinator.commands import promote as command

    if federation is not None:
        check_name("--federation", federation)
    version = command.before(folder)
    ensure_role(connection, COORDINATOR)
    urls = several_brokers(connection, shard) or [connection.url()]
    sent = command.send(
        folder, version, "rollback", urls, federation, audit_key, force=force, wait_s=wait
    )
    _show_promoted(asyncio.run(sent), as_json=as_json)


def _show_promoted(promoted: Promoted, *, as_json: bool) -> None:
    if as_json:
        print(json_text.dumps(promoted.to_json()))
    else:
        show_line(promoted.sentence)
    if promoted.uptake.rejected:
        raise typer.Exit(1)


@commands.command()
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

    command.report(command.Request(folders, html, svg or [], as_json), out)


@commands.command()
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
        with nullcontext() if as_json else out.status(f"{model.name}: loading torch"):
            asyncio.run(launch.exported(model, written, folder / "export.log", allowed))
        if as_json:
            json_line({"cluster": model.stem.removeprefix("cluster-"), "file": str(written)})
        else:
            show_line(str(written))
