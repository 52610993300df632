"""`coordinator try`: from files to a verdict, without a broker and without a scenario.

`coordinator init` knows what files are, and the verdict of the comparison whether it pays. Only what is printed is made here.
"""

from __future__ import annotations

import contextlib
import math
import re
import shlex
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from covey.coordinator.cli.options import out
from covey.coordinator.record.notices import Notice, Observer, PhaseFolded
from covey.coordinator.run.options import RunOptions
from covey.coordinator.view.lines import phase_line
from covey.coordinator.view.printed import json_line, results_table, show_words
from covey.coordinator.view.table import Table, columns_of
from covey.extras.compare.compare import try_cells
from covey.extras.compare.comparison_files import finished_rows
from covey.extras.compare.grid import Cell, grid
from covey.extras.compare.rows import TITLES, ComparisonRow
from covey.extras.compare.verdict import Verdict, deciding, fields, verdicts
from covey.extras.proposals.choices import WIDTH, Proposal
from covey.extras.proposals.description import DataDescription
from covey.extras.proposals.fleet_columns import fleet_columns
from covey.extras.proposals.init import described, odd_among
from covey.extras.proposals.proposal import checked, propose
from covey.extras.proposals.targets import candidates
from covey.shared import extras
from covey.shared.cli import Json
from covey.shared.errors import UserError
from covey.shared.own_code.plugins import SQLITE
from covey.shared.programs.terminal import Terminal
from covey.shared.scenario.load import from_mapping
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.simulated_agents import agent_name
from covey.shared.sentences import some
from covey.shared.storage.files import write_atomically

ROUNDS = 10  # half of those that `init` proposes, for an answer within a minute
MANY = 4096  # samples of a device, from which steps are larger: an answer takes about a minute
MOST = 12_000  # samples of all devices that train, for the same reason
LEAST = 30  # of a device, however many the others have
# methods and references in plain words, in the order of the table
WAYS: Mapping[str, str] = {
    "local": "alone",
    "fedavg": "one model",
    "fedclust": "groups",
    "trees": "trees",
    "constant": "constant",
}
METHODS = ("local", "fedavg", "fedclust")
MOST_NAMED = 20  # columns that could be predicted
PARTS = {"train", "test"}  # of the data of one device
HOW_TO_DIVIDE = (
    "each file is a device; if a column of a table names the machine, the person or the place of its rows, "
    "divide it by that one: --by COLUMN"
)


def try_command(
    files: Annotated[
        list[str],
        typer.Argument(
            help="the data of one device each, as for `agent start --data`, or one folder that has them"
        ),
    ],
    *,
    target: Annotated[str, typer.Option(help="the column of a table to predict")] = "",
    by: Annotated[
        str,
        typer.Option(
            help="of one table with the rows of all devices, the column that names the device; a file for each is written"
        ),
    ] = "",
    to: Annotated[
        Path | None,
        typer.Option(
            "--out", help="scenario file, replaced if it is there  [default: named after the data]"
        ),
    ] = None,
    whole: Annotated[
        bool,
        typer.Option(
            "--all",
            help=f"train on all samples, however long it takes, and not on about {MOST} that are drawn",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Find out from files whether training together is worth it, without a broker.

    Each file, or folder, is a device. The command trains each device alone, one model for all, and a model for each group, for ten
    rounds on one seed, and writes the scenario for real devices. Small tables take about a minute. `coordinator compare` repeats
    it with more seeds.
    """
    begun = time.monotonic()
    if by:
        files = divided(files, by)
    sources = sources_of(files)
    devices = described(sources, [target] if target else ())
    ask_for_target(devices, target)
    proposal = propose(devices, target=target or None)
    proposal.odd += [odd.sentence for odd in odd_among(devices, proposal)]
    place = _place(to, proposal)
    task = checked(proposal).task
    of_devices = extras.part("trial", "devices", "a trial")
    counts = [of_devices.training_samples(task, device) for device in devices]
    limit = None if whole else limit_of(counts)
    plan = planned(proposal, max(counts) * (limit or sum(counts)) // sum(counts))
    rows, failures = _tried(plan, sources, limit)
    write_atomically(place, proposal.to_yaml().encode())
    named = {agent_name(i, len(sources)): file_of(source).name for i, source in enumerate(sources)}
    seconds = round(time.monotonic() - begun)
    odd = [*proposal.remarks(), *(f"no figure: {way}: {why}" for way, why in failures.items())]
    answer = answer_of(plan, rows, named)
    steps = next_steps(sources[0], place)
    if as_json:
        verdict = answer.verdict.to_json() | {"sentence": answer.sentence}
        table = [dict(zip(answer.table.headers, row, strict=True)) for row in answer.table.rows]
        facts = {
            "odd": odd,
            "scenario": str(place),
            "next": steps,
            "seconds": seconds,
            "drawn": limit,
        }
        json_line(
            {"event": "try", **verdict, "worse_for": list(answer.worse), "ways": table} | facts
        )
        return
    console = out()
    width = min(console.width, WIDTH)
    console.print(answer.sentence, highlight=False, width=width)
    show_words(console, answer.table, results_table)
    lines = [*(odd or ["nothing odd"])]
    if limit is not None:
        lines.append(f"trained on {limit} of {sum(counts)} samples, drawn; --all takes all")
    lines += [f"{ROUNDS} rounds, one seed, {len(sources)} devices, {seconds} s. With real devices:"]
    for line in lines:
        console.print(line, highlight=False, width=width)
    for step in steps:
        console.print(f"  {step}", highlight=False, soft_wrap=True)


# -- decisions -----------------------------------------------------------------------------------------------------


def sources_of(files: Sequence[str]) -> list[str]:
    """The data of each device: the files and queries, or what is in the one folder that is named.

    Raises UserError for a file that does not exist or is named twice, and where there is one device alone.
    """
    for file in files:
        if not file_of(file).exists():
            raise UserError(
                f"{file}: there is no such file or folder; name the data of each device"
            )
    sources, folder = list(files), Path(files[0])
    if len(files) == 1 and folder.is_dir():
        found = sorted(one for one in folder.iterdir() if not one.name.startswith("."))
        sources = [] if {one.stem for one in found} <= PARTS else [str(one) for one in found]
    if len(sources) < 2:
        raise UserError(f"{files[0]}: one device has nobody to train with: {HOW_TO_DIVIDE}")
    if len({(file_of(one).resolve(), one.partition("?")[2]) for one in sources}) < len(sources):
        raise UserError("one file is named twice; name the data of each device once")
    return sources


def divided(files: Sequence[str], by: str) -> list[str]:
    """The files of the devices in one table, in a folder that has its name. UserError for several tables, and one that is not there."""
    if len(files) > 1 or not file_of(files[0]).is_file():
        raise UserError(f"--by {by}: expected one file, with the rows of all devices")
    folder = Path(f"{file_of(files[0]).stem}-by-{re.sub(r'[^A-Za-z0-9]+', '-', by).strip('-')}")
    found: list[str] = extras.part("trial", "devices", "a trial").divided(files[0], by, folder)
    return found


def file_of(source: str) -> Path:
    """The file of a database, or a source itself."""
    if source.startswith(SQLITE):
        source = source.removeprefix(SQLITE).partition("?")[0]
    return Path(source)


def ask_for_target(devices: Sequence[DataDescription], target: str) -> None:
    """UserError with what could be predicted, unless `target` is a column or the data is no table."""
    if {device.kind for device in devices} != {"table"}:
        return
    columns = fleet_columns(devices)
    if target in [column.name for column in columns]:
        return
    found = candidates(columns)
    if not found:
        seen = some([repr(column.name) for column in columns], MOST_NAMED) or "no column"
        raise UserError(
            f"all devices have {seen}, and nothing that could be predicted; expected columns between ',', ';', tabs or '|'"
        )
    what = f"no column is called {target!r}" if target else "name the column to predict"
    raise UserError(f"{what}; choose one with --target: {some(found, MOST_NAMED)}")


def planned(proposal: Proposal, samples: int) -> Scenario:
    """The proposal as it is trained: for fewer rounds, with the methods of `WAYS` on its seed, and of many `samples` more at once."""
    content = proposal.content()
    training = content["training"]
    training["batch"] *= max(1, min(samples // MANY * 2, 8))
    compare = {"methods": [{"name": name} for name in METHODS], "seeds": [proposal.seed]}
    rounds = content["rounds"] | {"count": ROUNDS}
    return from_mapping(content | {"rounds": rounds, "compare": compare})


def limit_of(counts: Sequence[int]) -> int | None:
    """How many samples of all devices train, of which each has `counts`; None: all of them.

    They are drawn, of each device the same share, and of the smallest one `LEAST`.
    """
    total, smallest = sum(counts), min(counts)
    limit = max(MOST, math.ceil(total * min(LEAST / smallest, 1)))
    return limit if limit < total else None


@dataclass(frozen=True)
class Answer:
    """The verdict, in words and as a table."""

    verdict: Verdict  # on the way that is best for use
    worse: Sequence[str]  # the devices whose own figure is worse than with the best reference
    table: Table

    @property
    def sentence(self) -> str:
        """The verdict's own, in words, and for whom it does not hold."""
        words = WAYS.get(self.verdict.method, self.verdict.method)
        said = replace(self.verdict, method=words).sentence
        said = re.sub(r"^groups, (?=\S+ groups:)", "", said)
        return f"{said}; worse for {some(self.worse)}" if self.worse else said


def answer_of(
    scenario: Scenario, rows: Sequence[ComparisonRow], named: Mapping[str, str]
) -> Answer:
    """The verdict on the better way of training together, and the compared figures of all ways.

    Args:
        scenario: the comparison.
        rows: its finished cells.
        named: the file of each agent.

    Raises:
        UserError: no way of training together has a figure to compare.
    """
    found = verdicts(scenario, rows)
    table = deciding(scenario, rows)
    if not found or table is None:
        raise UserError("nothing could be compared: no way of training together has a figure")
    sign = -1 if found[0].measure.lower_is_better else 1
    verdict = best_way(found)
    [field] = fields(scenario, rows)
    [(own, other)] = field.pairs(verdict.method, verdict.references[0].method)
    worse = [
        named[agent]
        for agent in sorted(own.agents.keys() & other.agents.keys())
        if sign * (own.agents[agent] - other.agents[agent]) < 0
    ]
    by_name = {row[0]: row[1:] for row in table.rows}
    lines = [[word, *by_name[name]] for name, word in WAYS.items() if name in by_name]
    columns = columns_of(["way", TITLES[verdict.mode], "models"])
    return Answer(verdict, worse, replace(table, columns=columns, rows=lines))


def best_way(found: Sequence[Verdict]) -> Verdict:
    """The verdict on the way that is best for use.

    If one model is the best that groups are compared with, and they are not worth it, the question is what one model is worth.
    One group is one model.
    """
    found = [one for one in found if one.method == "fedavg" or {*one.clusters} != {1}] or found
    of_use = [
        one for one in found if one.outcome == "worth it" or one.references[0].strategy != "fedavg"
    ]
    sign = -1 if found[0].measure.lower_is_better else 1
    return max(of_use or found, key=lambda one: sign * one.figure)


def next_steps(first: str, scenario: Path) -> list[str]:
    """The commands for real devices, the first of which stands for all."""
    data, place = shlex.quote(first), shlex.quote(str(scenario))
    agent_id = re.sub(r"[^A-Za-z0-9]+", "-", file_of(first).stem).strip("-")[:64] or "device"
    return ["broker up", f"agent start --data {data} --id {agent_id}", f"coordinator run {place}"]


def _place(to: Path | None, proposal: Proposal) -> Path:
    """Where the scenario goes. UserError where that would replace a file that nobody named."""
    place = to or Path(f"{proposal.name}.yaml")
    if to is None and place.exists() and place.read_bytes() != proposal.to_yaml().encode():
        raise UserError(f"{place} is there already; name another file for the scenario with --out")
    return place


# -- training ------------------------------------------------------------------------------------------------------


def _tried(
    plan: Scenario, sources: Sequence[str], limit: int | None
) -> tuple[list[ComparisonRow], Mapping[str, str]]:
    """The rows of all methods, and why some ways failed. UserError where all did, KeyboardInterrupt where the user stopped it."""
    with tempfile.TemporaryDirectory(prefix="covey-try-") as place, _bar(plan) as observing:
        folder = Path(place) / "devices"
        folder.mkdir()
        # what is on devices is read by the agent's modules
        extras.part("trial", "devices", "a trial").devices_in(folder, sources)
        rule = {"name": "by_group", "split": "time"}
        fleet = {"agents": len(sources), "data": str(folder), "partition": rule, "limit": limit}
        whole = from_mapping({**plan.model_dump(mode="json"), "fleet": fleet})
        options = RunOptions(Path(place) / "run")
        outcome = try_cells(
            whole, options, (), observing, in_process=True, complain=lambda *_: None
        )
        if outcome.stopped:
            raise KeyboardInterrupt
        failures = {
            WAYS[cell.label]: outcome.failures[cell.name]
            for cell in grid(whole)
            if cell.name in outcome.failures
        }
        if len(failures) == len(METHODS):  # data that cannot be read are so in each way
            raise UserError(_as_named("; ".join(dict.fromkeys(failures.values())), folder, sources))
        return finished_rows(whole, options.folder), failures


def _as_named(why: str, folder: Path, sources: Sequence[str]) -> str:
    """A reason that names the database whose rows were copied."""
    for number, source in enumerate(sources):
        why = why.replace(f"{folder / f'{number:05}'}.jsonl", str(file_of(source)))
    return why


@contextlib.contextmanager
def _bar(plan: Scenario) -> Iterator[Any]:
    """A bar over the rounds of all methods on stderr; gives what `try_cells` takes as `observing`."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TimeElapsedColumn())
    with Progress(*columns, console=Terminal(stderr=True), transient=True) as progress:
        task = progress.add_task("reading", total=ROUNDS * len(METHODS))

        def observe(cell: Cell) -> contextlib.AbstractContextManager[Observer]:
            before = ROUNDS * METHODS.index(cell.label)
            progress.update(task, completed=before, description=WAYS[cell.label])

            def show(notice: Notice) -> None:
                if isinstance(notice, PhaseFolded):
                    rounds = phase_line(notice.to_json()).rounds
                    progress.update(task, completed=before + rounds)

            return contextlib.nullcontext(show)

        yield observe
