"""Commands about this machine's data: check it, and copy examples."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import covey
from covey.agent.cli.options import Data
from covey.shared.cli import Json
from covey.shared.errors import UserError
from covey.shared.own_code.consent import NO_CODE

if TYPE_CHECKING:
    from covey.shared.numerics.split import TensorsOfRole


def check(
    *,
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
            help="print a scenario that fits the data; with --json, a description of the data for `coordinator init --from`: "
            "counts, and the values of columns that have few",
        ),
    ] = False,
    also: Annotated[
        list[str] | None,
        typer.Option(
            help="with --propose: data of another device of the same fleet, or its description; repeatable"
        ),
    ] = None,
    names: Annotated[
        str,
        typer.Option(
            help="with --propose: the names of the columns, with commas between them, of files that begin with a sample"
        ),
    ] = "",
    words: Annotated[
        list[str] | None,
        typer.Option(
            help="with --propose: a column whose words are classes of things, although they are many or seldom repeat; "
            "repeatable"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Look at the data: print what it contains, what the coordinator would receive, and errors (exit code 2)."""
    if propose:
        if scenario is not None:
            raise UserError("--propose makes a scenario: omit --scenario, or omit --propose")
        from covey.extras.proposals.proposal_data import show_proposal

        show_proposal([data, *(also or ())], label, words or (), names, as_json=as_json)
        return
    if names:
        raise UserError("--names needs --propose; a scenario lists them in task.read.names")
    if words:
        raise UserError("--words needs --propose; a scenario lists the words of task.categories")
    if also:
        raise UserError("--also needs --propose: check the data of each device by itself")
    parts = () if scenario is None else _parts_of_model(scenario)
    from covey.extras.proposals.check_report import show

    if not show(data, label, scenario, as_json=as_json, parts=parts):
        raise typer.Exit(2)


def _parts_of_model(scenario: Path) -> Sequence[TensorsOfRole]:
    """What travels of a scenario's model, what stays here and what does not train; empty if all of it travels.

    Raises:
        UserError: the model has no such part, or cannot be built here.
    """
    from covey.agent.learner_choice import learner_name
    from covey.agent.worker.learners import load_learner
    from covey.shared.scenario.load import load_without_files
    from covey.shared.strategies.base import Strategy
    from covey.shared.work.order_settings import split_by

    loaded = load_without_files(scenario)
    task = loaded.task
    is_own = ":" in task.model.name  # code of the user's own needs consent
    divides = (
        task.share or task.keep or task.freeze or type(loaded.strategy).split is not Strategy.split
    )
    if is_own or not divides:
        return ()
    learner = load_learner(learner_name(None))
    split = split_by(
        loaded.strategy, learner.layout(task, NO_CODE), task.share, task.keep, task.freeze
    )
    return () if split is None else split.parts()


def examples(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="the folder to make, with the data of one device; without it all examples are copied to `examples`"
        ),
    ] = None,
) -> None:
    """Make a folder of real data, for a first `agent start --data FOLDER`. Needs no network.

    The folder has scans of handwritten digits, which fit scenarios/devices.yaml. Folders, or machines,
    whose names end in 1, 2 and 3 have different ones. Without a name, the folder `examples` gets four data sets, each divided among three devices.
    """
    if folder is not None:
        device = copy_device(folder)
        print(f"{folder} has the scans of {device}; `agent check --data {folder}` shows them")
        return
    for data in copy_examples(Path("examples")):
        print(data)


EXAMPLES = Path(covey.__file__).parent / "examples"  # in a checkout a link to its folder `examples`


def copy_device(folder: Path) -> str:
    """Copy the digits of one device into a new folder: that of the last figure of its name, else of this machine's name.

    Returns:
        The name of the device among the examples.

    Raises:
        UserError: the folder exists, or this installation has no examples.
    """
    figures = [name[-1] for name in (folder.name, socket.gethostname()) if name[-1:].isdecimal()]
    place = int(figures[0]) - 1 if figures else 0
    digits = EXAMPLES / "digits"
    devices = sorted(path.name for path in digits.glob("device-*")) or ["device-1"]
    device = devices[place % len(devices)]
    _copied(digits / device, folder)
    return device


def copy_examples(folder: Path) -> list[Path]:
    """Copy all examples into a new folder.

    Returns:
        The data of each device, sorted: values for `agent start --data`.

    Raises:
        UserError: the folder exists, or this installation has no examples.
    """
    _copied(EXAMPLES, folder)
    return sorted(folder.glob("*/device-*"))


def _copied(source: Path, folder: Path) -> None:
    """Copy a folder of the examples to a new place."""
    if not source.is_dir():
        raise UserError(f"{source} does not exist: install Covey again")
    if folder.exists():
        raise UserError(f"{folder} exists already; name another folder")
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("__pycache__"))
