"""Commands about this machine's data: check it, and copy examples."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

import covey
from covey.agent.cli.options import Data, command_group
from covey.shared.cli import Json
from covey.shared.errors import UserError

commands = command_group()


@commands.command()
def check(
    data: Data,
    label: Annotated[
        str | None,
        typer.Option(
            "--label", "--target", help="the column of a table to predict", envvar="COVEY_LABEL"
        ),
    ] = None,
    scenario: Annotated[
        Path | None, typer.Option(help="scenario whose task to compare the data with")
    ] = None,
    propose: Annotated[
        bool,
        typer.Option(
            "--propose",
            help="print a scenario that fits the data; with --json, the description of the data that `coordinator init "
            "--from` reads: counts, and the values that occur in columns with few of them",
        ),
    ] = False,
    also: Annotated[
        list[str] | None,
        typer.Option(
            help="with --propose: data of another device of the same fleet; repeatable",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Inspect the data: print its contents, what the coordinator would receive, and errors (exit code 2)."""
    if propose:
        from covey.agent.data.check_report import show_proposal

        if scenario is not None:
            raise UserError("--propose makes a scenario: omit --scenario, or omit --propose")
        show_proposal([data, *(also or ())], label, as_json=as_json)
        return
    if also:
        raise UserError("--also needs --propose: check the data of each device by itself")
    from covey.agent.data.check_report import show

    if not show(data, label, scenario, as_json=as_json):
        raise typer.Exit(2)


@commands.command()
def examples(
    out: Annotated[Path, typer.Option(help="the folder to make")] = Path("examples"),
) -> None:
    """Copy small real data sets, each divided among three devices: tables, and a folder of images. Needs no network."""
    for data in copy_examples(out):
        print(data)


EXAMPLES = Path(covey.__file__).parent / "examples"  # in a checkout a link to its folder `examples`


def copy_examples(folder: Path) -> list[Path]:
    """Copy all examples into a new folder.

    Returns:
        The data of each device, sorted: values for `agent start --data`.

    Raises:
        UserError: the folder exists, or this installation has no examples.
    """
    if not EXAMPLES.is_dir():
        raise UserError(f"{EXAMPLES} does not exist: install Covey again")
    if folder.exists():
        raise UserError(f"{folder} exists already; choose another folder with --out")
    shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return sorted(folder.glob("*/device-*"))
