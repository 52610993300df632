"""`coordinator lab replay`: repeat a run with buffered rounds, and compare the models."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from covey.coordinator.cli.options import out, show_line
from covey.coordinator.record.notices import ignore
from covey.coordinator.report.progress import ProgressBar
from covey.coordinator.run.options import RunOptions
from covey.coordinator.simulate.replay import replay as command
from covey.coordinator.view.printed import json_line
from covey.shared.cli import Allow, DataRoot, Json, failed
from covey.shared.own_code.consent import AllowedCode
from covey.shared.scenario.load import load


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
    beside = record.with_name(f"{record.name}.replay")
    options = RunOptions(folder or beside, data_root=data_root, allowed=AllowedCode.parse(allow))
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
