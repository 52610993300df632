"""Commands before a run: make a scenario, check it, estimate its costs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from covey.coordinator.cli.options import (
    BROKER_OF_A_RUN,
    ScenarioFile,
    Set,
    distinct_brokers,
    ensure_role,
    in_federation,
    out,
)
from covey.shared import json_text
from covey.shared.cli import Allow, Connection, DataRoot, Json, stopped, with_connection
from covey.shared.consent import AllowedCode
from covey.shared.errors import UserError
from covey.shared.mqtt.credentials import COORDINATOR
from covey.shared.printable import printable_lines


def init(
    sources: Annotated[
        list[str],
        typer.Option(
            "--from",
            help="data of one device, as for `agent start --data`, or a .json file that `agent check --propose --json` "
            "wrote on a device; repeatable",
        ),
    ],
    targets: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            help="the column of a table to predict; repeated, for labels that a row has or not  [default: a usual name, else "
            "the last]",
            show_default=False,
        ),
    ] = None,
    anomalies: Annotated[
        bool, typer.Option("--anomalies", help="find unusual rows; --target may label them")
    ] = False,
    horizon: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="forecast the target of a series for this number of rows",
            show_default=False,
        ),
    ] = None,
    agents: Annotated[
        int | None,
        typer.Option(
            min=1, help="number of devices  [default: one per --from]", show_default=False
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="the scenario's name  [default: after the data]", show_default=False),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="file to write once the proposal is made; `> FILE` would empty it before  [default: print it]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Propose a scenario for your own data, with the reason of each choice next to it.

    `coordinator init --from pi-1.csv --from pi-2.csv --out scenario.yaml`. Differences between the devices are named
    in the file and on stderr.
    """
    from covey.coordinator.commands import init as command
    from covey.shared.files import write_atomically

    proposal = command.init(
        command.Request(sources, targets or (), agents, name, anomalies, horizon)
    )
    if to is None:
        print(proposal.to_yaml(), end="")
    else:
        write_atomically(to, proposal.to_yaml().encode())
    for remark in proposal.remarks():
        typer.echo(printable_lines(remark), err=True)


def validate(
    scenario: ScenarioFile, overrides: Set = None, allow: Allow = None, as_json: Json = False
) -> None:
    """Check a scenario and print it with all defaults; unknown keys are reported with their lines."""
    from covey.shared.scenario.code import check_found, check_model_name
    from covey.shared.scenario.describe import dump
    from covey.shared.scenario.load import load

    loaded = load(scenario, overrides or [])
    allowed = AllowedCode.parse(allow)
    check_model_name(loaded, allowed)
    check_found(loaded, allowed)
    _warn(loaded.aggregation.remark)
    if as_json:
        print(json_text.dumps(loaded.model_dump(mode="json")))
    else:
        print(dump(loaded), end="")


def plan(
    scenario: ScenarioFile, overrides: Set = None, allow: Allow = None, as_json: Json = False
) -> None:
    """Estimate what a run costs before it starts: traffic per agent and in total, memory, disk."""
    import tempfile

    from covey.coordinator.plan.plan import plan as planned
    from covey.coordinator.processes import launch
    from covey.shared.files import write_atomically
    from covey.shared.scenario.code import check_code
    from covey.shared.scenario.describe import dump
    from covey.shared.scenario.load import load

    loaded = load(scenario, overrides or [])
    allowed = AllowedCode.parse(allow)
    check_code(loaded, allowed)
    _warn(loaded.aggregation.remark)
    with tempfile.TemporaryDirectory() as folder:
        write_atomically(Path(folder) / "scenario.yaml", dump(loaded).encode())
        setup = asyncio.run(launch.initial(Path(folder), loaded, allowed))
    figures = planned(loaded, setup)
    if as_json:
        print(json_text.dumps(figures.to_json()))
        return
    from rich.table import Table

    table = Table(title=f"{loaded.name}: {loaded.strategy.name}", show_header=False)
    for label, text in figures.rows():
        table.add_row(label, text)
    out().print(table)


@with_connection(BROKER_OF_A_RUN, several=True)
def advise(
    scenario: Annotated[
        Path | None,
        typer.Argument(
            help="the scenario file  [default: with --from, as `coordinator init` proposes it]",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    *,
    connection: Connection,
    sources: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            help="data of one device, as for `agent start --data`, in place of a fleet; repeatable",
        ),
    ] = None,
    overrides: Set = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            "--try",
            min=3,
            help="after the cards, train this many rounds, in which the agents vote  [default: cards alone]",
            show_default=False,
        ),
    ] = None,
    svg: Annotated[
        Path | None,
        typer.Option(help="write the distances of the cards as a picture", show_default=False),
    ] = None,
    data_root: DataRoot = None,
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """Find out which shift a fleet has and whether clusters would help, from cards alone: nothing is trained.

    With --from the devices' data is read here. Else a scenario with a fleet section is asked in process, any other over
    the broker. Its method does not count.
    """
    from covey.coordinator.commands import advise as command
    from covey.coordinator.record.notices import ignore
    from covey.coordinator.run.options import Options
    from covey.coordinator.view.printed import show
    from covey.shared.scenario.load import load

    if scenario is None and not sources:
        raise UserError("advise needs a scenario file, or the data of each device: --from")
    if scenario is None and overrides:
        raise UserError("--set changes a scenario file: name one, or omit --set")
    loaded = None if scenario is None else load(scenario, overrides or [])
    if loaded is not None and loaded.fleet is None and not sources:
        ensure_role(connection, COORDINATOR)
        loaded = in_federation(connection, loaded)
    options = Options(
        Path(),
        data_root=data_root,
        allowed=AllowedCode.parse(allow),
        brokers=distinct_brokers(connection),
    )
    if sources:
        found = command.advise_files(sources, loaded, options, rounds=rounds, picture=svg)
    else:
        assert loaded is not None  # noqa: S101 - checked above
        found = command.advise(loaded, options, ignore, rounds=rounds, picture=svg)
    if found is None:
        raise stopped("nothing was found out")
    if svg is not None and found.picture is None:
        _warn(f"{svg} is not written: no test found a shift, or there are too many agents to draw")
    if as_json:
        print(json_text.dumps(found.to_json()))
        return
    for line in (found.sentence, *found.votes):
        out().print(line, highlight=False, markup=False)
    for table in (found.tests, found.members):
        if table.rows:
            show(out(), table)


def base(
    file: Annotated[Path, typer.Argument(help="weights as .safetensors")], as_json: Json = False
) -> None:
    """Print the entry task.base for a file of weights: `coordinator lab base backbone.safetensors`."""
    from covey.shared.scenario.base import entry_of

    entry, tensors = entry_of(file)
    if as_json:
        print(json_text.dumps({**entry.model_dump(), "bytes": entry.size, "tensors": tensors}))
        return
    print(f"base: {{file: {json_text.dumps(entry.file)}, digest: {entry.digest}}}")
    typer.echo(
        f"{len(tensors)} tensors, {entry.size / 1e6:.1f} MB; put the line into the section task",
        err=True,
    )


def _warn(remark: str) -> None:
    """Print a remark on settings that do not do what they seem to do, if there is one."""
    if remark:
        typer.echo(f"warning: {remark}", err=True)
