"""`python -m tests.fuzz --inputs 1000000 --seed 1`: the campaign, with a progress bar; an interrupted one resumes at the same input."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from tests.fuzz.campaign import Figures, campaign
from tests.fuzz.targets import shares, targets

MAX_GROWTH = 64 << 20  # bytes of a target's process over its inputs, after the first tenth of them
MIB = 1 << 20
FINE = ("accepted", "honest")  # outcomes of inputs that are not refused


def main(
    inputs: Annotated[int, typer.Option(help="of all targets together")] = 1_000_000,
    seed: Annotated[int, typer.Option(help="the same seed makes the same inputs")] = 1,
    only: Annotated[
        list[str] | None,
        typer.Option(help="targets whose names contain this; all inputs are theirs"),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="folder of the figures; delete it to begin from the first input")
    ] = Path("runs/fuzz"),
    markdown: Annotated[
        bool, typer.Option("--markdown", help="run nothing, print the figures as a table")
    ] = False,
) -> None:
    """Feed hostile input to every reader of bytes. Exit code 1 where one crashed, grew, or refused none."""
    wanted = shares(inputs, tuple(only or ()))
    out.mkdir(parents=True, exist_ok=True)
    place = out / f"fuzz-{seed}-{inputs}.json"
    known = _read(place)
    if markdown:
        print(markdown_table(known))
        return
    console = Console()
    with Progress(
        TextColumn("{task.description:22}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TimeRemainingColumn(), console=console,
    ) as bar:  # fmt: skip
        whole = bar.add_task("all targets", total=sum(wanted.values()))
        bar.advance(
            whole,
            sum(min(known[name].inputs, count) for name, count in wanted.items() if name in known),
        )
        for name, count in wanted.items():
            figures = known.setdefault(name, Figures(name))
            before = figures.inputs
            for _ in campaign(name, seed, figures, count):
                bar.update(whole, advance=figures.inputs - before, description=name)
                before = figures.inputs
                _write(place, known)
    console.print(table(known))
    bad = [figures for figures in known.values() if figures.crashes or figures.growth > MAX_GROWTH]
    for figures in bad:
        for crash in figures.crashes[:10]:
            console.print(
                f"{figures.name} input {crash.index}: {crash.what}\n  {crash.where}", markup=False
            )
        if figures.growth > MAX_GROWTH:
            console.print(f"{figures.name} grew by {figures.growth // MIB} MiB")
    untouched = not_attacked(wanted, known)
    if untouched or not wanted:
        console.print(f"refused no input: {', '.join(untouched) or 'there is no such target'}")
    console.print(f"figures: {place}")
    if bad or untouched or not wanted:
        sys.exit(1)


def not_attacked(wanted: Iterable[str], known: Mapping[str, Figures]) -> list[str]:
    """Targets that refused no input although they refuse some kinds: what they were fed was not hostile."""
    refusing = [name for name in wanted if targets()[name].allowed]
    return [name for name in refusing if not _refused(known.get(name, Figures(name)))]


def table(known: Mapping[str, Figures]) -> Table:
    """A row per target, and their sum."""
    shown = Table(title="fuzz campaign")
    for column in ("target", "inputs", "accepted", "refused", "most frequent refusals", "crashes"):
        shown.add_column(column)
    for column in ("seconds", "slowest s", "growth MiB", "peak MiB"):
        shown.add_column(column, justify="right")
    for figures in known.values():
        shown.add_row(*_row(figures))
    inputs, crashes, seconds = _sums(known)
    shown.add_row("all", f"{inputs}", "", "", "", f"{crashes}", f"{seconds:.0f}", "", "", "")
    return shown


def markdown_table(known: Mapping[str, Figures]) -> str:
    """The same as a table of a Markdown page."""
    heads = (
        "target",
        "inputs",
        "accepted",
        "refused",
        "most frequent refusals",
        "crashes",
        "s",
        "slowest, s",
        "growth, MiB",
    )
    lines = [f"| {' | '.join(heads)} |", "|---|--:|--:|--:|---|--:|--:|--:|--:|"]
    for figures in known.values():
        name, *cells = _row(figures)[:-1]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    inputs, crashes, seconds = _sums(known)
    accepted, refused = (
        sum(int(_row(figures)[place]) for figures in known.values()) for place in (2, 3)
    )
    lines.append(
        f"| **all** | **{inputs}** | {accepted} | {refused} | | **{crashes}** | {seconds:.0f} | | |"
    )
    return "\n".join(lines)


def _sums(known: Mapping[str, Figures]) -> tuple[int, int, float]:
    """Inputs, crashes and seconds of all targets."""
    every = known.values()
    crashes = sum(len(figures.crashes) for figures in every)
    return (
        sum(figures.inputs for figures in every),
        crashes,
        sum(figures.seconds for figures in every),
    )


def _refused(figures: Figures) -> list[tuple[str, int]]:
    """The reasons of refusals and their numbers, the most frequent first."""
    reasons = figures.reasons.most_common()
    return [(reason, count) for reason, count in reasons if reason not in {*FINE, "crash"}]


def _row(figures: Figures) -> list[str]:
    refused = _refused(figures)
    accepted = sum(figures.reasons[name] for name in FINE)
    reasons = ", ".join(f"{reason} {count}" for reason, count in refused[:3])
    return [
        figures.name,
        str(figures.inputs),
        str(accepted),
        str(sum(count for _, count in refused)),
        reasons,
        str(len(figures.crashes)),
        f"{figures.seconds:.0f}",
        f"{figures.slowest:.2f}",
        f"{figures.growth / MIB:.1f}",
        f"{figures.peak / MIB:.0f}",
    ]


def _read(place: Path) -> dict[str, Figures]:
    """Figures of an interrupted campaign, in the order of the targets."""
    if not place.exists():
        return {}
    told = json.loads(place.read_text())
    return {name: Figures.from_json(told[name]) for name in targets() if name in told}


def _write(place: Path, known: Mapping[str, Figures]) -> None:
    beside = place.with_suffix(".new")
    beside.write_text(
        json.dumps({name: figures.to_json() for name, figures in known.items()}, indent=1)
    )
    beside.replace(place)


if __name__ == "__main__":
    typer.run(main)
