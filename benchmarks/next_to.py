"""A round and a report of this tree next to those of another one, in turns, processor time first.

    git worktree add /tmp/other COMMIT
    python -m benchmarks.next_to /tmp/other [--seeds 1 2 3]

A seed is a turn, and a cell is one run of `benchmarks.rounds` or `benchmarks.reports` of one of the trees, with the packages of
this one. The other tree has to have both.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import psutil

from benchmarks.measuring import Found, record_options, resumed, show_tables

HERE = Path(__file__).parents[1]
OUT = Path(__file__).parent / "results" / "next_to.json"
TREES = ("other", "this")
COMMANDS = {
    "rounds": "rounds --kinds agents fleet --times 1 --rounds 40",
    "wide": "rounds --kinds wide --times 1 --wide-rounds 4",
    "reports": "reports --agents 100 1000 --rounds 3",
}
LIMIT_S = 900
PLAIN, PROMISES = "plain floor, cpu ms", "floor with the same promises, cpu ms"


def measured(name: str, tree: Path) -> dict[str, Any]:
    """Figures by what was measured, and the load at the start."""
    load = psutil.getloadavg()[0]
    environment = {**os.environ, "PYTHONPATH": f"{tree}:{tree / 'src'}"}
    with tempfile.TemporaryDirectory() as out:
        words = [sys.executable, "-m", *f"benchmarks.{COMMANDS[name]} --out {out}".split()]
        subprocess.run(
            words, cwd=tree, env=environment, check=True, timeout=LIMIT_S, capture_output=True
        )
        [file] = Path(out).glob("*.json")
        return figures(json.loads(file.read_text())) | {"load": round(load, 1)}


def figures(found: Any) -> dict[str, Any]:
    """What a benchmark's file has, by what was measured: milliseconds of processor and clock, and of both floors; or of a report, and
    reports in a second."""
    if isinstance(found, list):
        return {
            f"{one['agents']} agents": {
                "cpu ms": one["ms_per_report"],
                "reports a second": one["reports_per_s"],
            }
            for one in found
        }
    shown: dict[str, Any] = {}
    for row in found["rows"]:
        what, _, floor = row["what"].partition(", ")
        one = shown.setdefault(what, {"parts": row["detail"]})
        one |= {
            "cpu ms": round(1e3 * row["product"]["cpu_s"], 1),
            "clock ms": round(1e3 * row["product"]["wall_s"], 1),
            PLAIN if "plain" in floor else PROMISES: round(1e3 * row["floor"]["cpu_s"], 1),
        }
    return shown


def table(found: Found) -> str:
    """Markdown: medians of the other tree and of this one, and the ratio of this one's to it."""
    lines = [
        "| median of the turns, the other tree and this one | processor, ms | ratio | next to the plain floor | the same promises "
        "| clock, ms | ratio |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name in COMMANDS:
        cells = {tree: list(_of_tree(found, name, tree)) for tree in TREES}
        if all(cells.values()):
            measured_there = [key for key in cells["this"][0] if key != "load"]
            lines += [f"| {_line(what, cells)} |" for what in measured_there]
    return "\n".join(lines)


def _of_tree(found: Found, name: str, tree: str) -> Iterator[Mapping[str, Any]]:
    return (cell for key, cell in found.items() if key.startswith(f"{name}/{tree}/"))


def _line(what: str, cells: Mapping[str, list[Mapping[str, Any]]]) -> str:
    def medians(measure: str) -> list[float]:
        return [statistics.median(cell[what][measure] for cell in cells[tree]) for tree in TREES]

    def changed(measure: str) -> tuple[str, str]:
        before, now = medians(measure)
        digits = 2 if now < 10 else 0
        return f"{before:.{digits}f} to {now:.{digits}f}", f"{now / before:.2f}"

    processor, processor_ratio = changed("cpu ms")
    if "clock ms" not in cells["this"][0][what]:
        rate, rate_ratio = changed("reports a second")
        cells_of_line = [f"a report of {what}", processor, processor_ratio, "", ""]
        return " | ".join([*cells_of_line, f"{rate} reports a second", rate_ratio])

    def apart(floor: str) -> str:
        before, now = (
            cost / least for cost, least in zip(medians("cpu ms"), medians(floor), strict=True)
        )
        return f"{before:.1f} to {now:.1f}"

    clock, clock_ratio = changed("clock ms")
    cells_of_line = [f"`{what}`", processor, processor_ratio, apart(PLAIN), apart(PROMISES)]
    return " | ".join([*cells_of_line, clock, clock_ratio])


def _commit(tree: Path) -> str:
    words = ["git", "-C", str(tree), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    parser = record_options(__doc__, OUT, [1, 2, 3])
    parser.add_argument(
        "other", type=Path, nargs="?", default=HERE, help="a tree of another commit"
    )
    options = parser.parse_args()
    trees = {"other": options.other.resolve(), "this": HERE}
    planned = {
        f"{name}/{tree}/{turn}": partial(measured, name, trees[tree])
        for name, turn, tree in product(COMMANDS, options.seeds, TREES)
    }
    if options.other.resolve() == HERE and not options.table:
        parser.error("name the folder of another commit's tree: git worktree add /tmp/other COMMIT")
    settings = {name: _commit(tree) for name, tree in trees.items()} | COMMANDS
    found = resumed(options, planned, settings)
    show_tables(options, {"median of the turns, the other tree and this one": table(found)})


if __name__ == "__main__":
    main()
