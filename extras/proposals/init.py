"""`coordinator init`: a scenario for data of the user's own.

The coordinator reads no data itself: it starts `agent check --propose --json` and combines the descriptions that this prints. A source may also be such a description, which a device has written: then no row leaves the device.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from covey.coordinator.odd import Odd
from covey.extras.doctor.examine import Facts, examine
from covey.extras.doctor.moments import columns_of_descriptions, target_of
from covey.extras.proposals.choices import WIDTH, Proposal
from covey.extras.proposals.description import DataDescription, is_description, read_description
from covey.extras.proposals.proposal import propose
from covey.shared.errors import UserError
from covey.shared.programs.child import environment, python
from covey.shared.programs.terminal import Terminal
from covey.shared.scenario.task import Task
from covey.shared.storage.files import write_atomically

FAILURE_MARK = "error: "


def init_command(
    *,
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
        ),
    ] = None,
    anomalies: Annotated[
        bool, typer.Option("--anomalies", help="find unusual rows; --target may label them")
    ] = False,
    horizon: Annotated[
        int | None,
        typer.Option(min=1, help="forecast the target of a series for this number of rows"),
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Option(
            help="a column whose words are classes of things, although they are many or seldom repeat: they become part of "
            "the scenario; repeatable"
        ),
    ] = None,
    names: Annotated[
        str,
        typer.Option(
            help="the names of the columns, with commas between them, of text files that begin with a sample"
        ),
    ] = "",
    agents: Annotated[
        int | None, typer.Option(min=1, help="number of devices  [default: one per --from]")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="the scenario's name  [default: after the data]")
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="file to write once the proposal is made; `> FILE` would empty it before  [default: print it]",
        ),
    ] = None,
) -> None:
    """Propose a scenario for your own data, with the reason of each choice next to it.

    `coordinator init --from pi-1.csv --from pi-2.csv --out scenario.yaml`. The file and the terminal name what is
    different from device to device.
    """
    request = InitRequest(
        sources, targets or (), agents, name, anomalies, horizon, words or (), names
    )
    proposal = init(request)
    if to is None:
        print(proposal.to_yaml(), end="")
    else:
        write_atomically(to, proposal.to_yaml().encode())
    for remark in proposal.remarks():
        Terminal(stderr=True).print(remark, highlight=False, width=WIDTH)
    place = "FILE" if to is None else shlex.quote(str(to))
    before = "write this to a file (--out FILE), then " if to is None else ""
    typer.echo(f"next: {before}coordinator validate {place}", err=True)


@dataclass(frozen=True)
class InitRequest:
    """What `coordinator init` was asked for."""

    sources: Sequence[str]  # data of one device each, or its description
    targets: Sequence[str] = ()
    agents: int | None = None
    name: str | None = None
    anomalies: bool = False
    horizon: int | None = None
    words: Sequence[str] = ()  # columns whose words are classes
    names: str = ""  # of the columns of files without them


def init(request: InitRequest) -> Proposal:
    """The proposed scenario.

    Raises:
        UserError: a source cannot be read, or the data of the devices does not go together.
    """
    devices = described(request.sources, [*request.targets, *request.words], request.names)
    proposal = propose(
        devices,
        target=request.targets,
        anomalies=request.anomalies,
        horizon=request.horizon,
        agents=request.agents,
        name=request.name,
    )
    proposal.odd += [odd.sentence for odd in odd_among(devices, proposal)]
    return proposal


def odd_among(devices: Sequence[DataDescription], proposal: Proposal) -> list[Odd]:
    """The odd devices by their data, in the columns that the proposed task uses."""
    task = Task.model_validate(proposal.content()["task"])
    columns = columns_of_descriptions(devices)
    target = target_of(task)
    if target == "" and isinstance(task.target, str):
        columns = {name: of for name, of in columns.items() if name != task.target}
    unused = set(task.ignore or ())
    used = {name: of for name, of in columns.items() if name not in unused}
    return examine(Facts(columns=used, target=target))


def described(
    sources: Sequence[str], words: Sequence[str] = (), names: str = ""
) -> list[DataDescription]:
    """A description of each source, in their order.

    Args:
        sources: data, or files with its description.
        words: columns whose words are listed, whatever they are.
        names: of the columns of text files that begin with a sample, with commas between them.
    """
    found = {source: read_description(Path(source)) for source in sources if is_description(source)}
    data = [source for source in sources if source not in found]
    if data:
        found |= zip(data, _described_by_agent(data, words, names, also=[*found]), strict=True)
    return [found[source] for source in sources]


def _described_by_agent(
    data: Sequence[str], words: Sequence[str], names: str, also: Sequence[str]
) -> list[DataDescription]:
    """One program describes them all, with what it finds in the descriptions of others. UserError with its message if it fails."""
    first, *others = data
    options = ["--propose", "--json", "--data", first]
    for other in (*others, *also):
        options += ["--also", other]
    for name in words:
        options += ["--words", name]
    options += ["--names", names] if names else []
    done = subprocess.run(
        python("covey.agent.cli", "check", *options),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    if done.returncode != 0:
        raise UserError(
            _failure(done.stderr)
            or f"{first}: it cannot be described; `agent check --data {first}` shows why"
        )
    return [DataDescription.model_validate_json(line) for line in done.stdout.splitlines()]


def _failure(printed: str) -> str:
    """The message of a program that failed, without its mark: it is printed again with one."""
    _, mark, message = printed.rpartition(FAILURE_MARK)
    return message.strip() if mark else printed.strip()
