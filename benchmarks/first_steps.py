"""`python -m benchmarks.first_steps`: how long the way is from a clone to the first table, to devices, to a method of one's own.

It pastes the blocks of README and the three tutorials as a reader would, in a folder of its own, and counts: seconds and
commands until the page's milestone, and all of them; files that the reader saves; terms in bold.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.processes import ROOT, free_port
from tests.test_docs_sessions import USUAL_PORTS, Commands, SavedFile, ended, run, started, steps

TERM = re.compile(r"\*\*([^*]+)\*\*")


@dataclass(frozen=True)
class Way:
    """A page, and the command after which the reader has what the page is for."""

    page: str
    until: str
    what: str


WAYS = (
    Way("docs/quickstart.md", "coordinator run", "a first table"),
    Way("docs/tutorials/your-fleet.md", "coordinator run", "a model on devices of one's own"),
    Way("docs/tutorials/your-fleet.md", "coordinator promote", "a model in use"),
    Way(
        "docs/tutorials/your-own-method.md",
        "coordinator compare",
        "a clustered method of one's own",
    ),
)


@dataclass(frozen=True)
class Walked:
    """What a way took."""

    what: str
    page: str
    commands: int  # until the milestone
    seconds: float
    files: int  # that the reader saves
    terms: int  # in bold on the page
    commands_in_all: int
    seconds_in_all: float


def walked(way: Way, folder: Path) -> Walked:
    """Paste a page's blocks in a new folder. Raises AssertionError where a command fails."""
    (folder / "scenarios").symlink_to(ROOT / "scenarios")
    for name in ("home", "bin"):
        (folder / name).mkdir()
    text = re.sub(r"<!--.*?-->", "", (ROOT / way.page).read_text("utf-8"), flags=re.DOTALL)
    terms = len(set(TERM.findall(text)))
    for port in USUAL_PORTS:
        text = text.replace(port, str(free_port()))
    log = folder / "background.log"
    log.touch()
    commands = files = 0
    reached: tuple[int, float, int] | None = None
    began = time.monotonic()
    with ExitStack() as stack:
        for step in steps(text):
            match step:
                case SavedFile(name, content):
                    files += 1
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    (folder / name).write_text(content, "utf-8")
                case Commands(lines, in_background=True):
                    commands += len(lines)
                    for line in lines:
                        stack.callback(ended, started(line, folder, log))
                case Commands(lines):
                    commands += len(lines)
                    run(lines, folder, log, is_refused=step.is_refused)
                    if reached is None and any(way.until in line for line in lines):
                        reached = commands, time.monotonic() - began, files
        in_all = time.monotonic() - began
    assert reached is not None, f"{way.page} has no `{way.until}`"
    until, seconds, saved = reached
    return Walked(
        way.what, way.page, until, round(seconds, 1), saved, terms, commands, round(in_all, 1)
    )


def table(found: list[Walked]) -> str:
    """The ways as a table in Markdown."""
    rows = [
        f"| {one.what} | `{one.page}` | {one.commands} | {one.seconds:.0f} s | {one.files} | {one.terms} |"
        for one in found
    ]
    head = (
        "| to | by | commands | time | files saved | terms in bold |\n|---|---|---:|---:|---:|---:|"
    )
    return "\n".join([head, *rows])


def main() -> None:
    """Walk all ways and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/first_steps.json"))
    options = parser.parse_args()
    os.environ.setdefault("COVEY_LEARNER", "numpy")
    found = []
    for way in WAYS:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            found.append(walked(way, Path(folder)))
        print(table(found[-1:]).splitlines()[-1], flush=True)
    cores = len(os.sched_getaffinity(0))
    record = {"cores": cores, "load": os.getloadavg()[0], "ways": [asdict(one) for one in found]}
    options.out.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    print(table(found))


if __name__ == "__main__":
    main()
