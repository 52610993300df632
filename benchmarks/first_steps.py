"""`python -m benchmarks.first_steps`: how long the way is from a clone to a first table, to data and devices of one's own, to a
model in use, and to a clustered method of one's own.

It pastes the blocks of the three tutorials as a reader would, each in a folder of its own, and counts until the command with
which the reader has what the tutorial is for: seconds, commands, files that the reader saves. Concepts are the words to which
the project gives a meaning of its own (`docs/how-a-round-works.md`) that the page uses.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.processes import ROOT, free_port
from tests.test_docs_sessions import USUAL_PORTS, Commands, SavedFile, ended, run, started, steps

OUT = Path("benchmarks/results/first_steps.json")
HIDDEN = re.compile(r"<!--.*?-->", re.DOTALL)
CODE = re.compile(r"```.*?```|`[^`]*`|\]\([^)]*\)", re.DOTALL)
WORD = re.compile(r"^- \*\*([^*]+)\*\*(?:, \*\*([^*]+)\*\*)?:", re.MULTILINE)
# page -> the command that reaches something, and what that is, in the order of the page
WAYS = {
    "docs/quickstart.md": (("coordinator run", "a first table"),),
    "docs/tutorials/your-fleet.md": (
        ("coordinator init", "a scenario for files of one's own"),
        ("coordinator run", "a model on devices of one's own"),
        ("agent predict", "a model in use"),
    ),
    "docs/tutorials/your-own-method.md": (
        ("coordinator compare", "a clustered method of one's own"),
    ),
}


@dataclass(frozen=True)
class Walked:
    """What a way took."""

    what: str
    page: str
    commands: int
    seconds: float
    files: int  # that the reader saves
    concepts: int  # of the whole page
    turns: Sequence[
        float
    ] = ()  # the seconds of each turn, whose median counts; empty: there was one

    @property
    def time(self) -> str:
        """The seconds in words, with the fastest and the slowest turn."""
        spread = f" ({min(self.turns):.0f} to {max(self.turns):.0f})" if self.turns else ""
        return f"{self.seconds:.0f}{spread}"


def concepts(page: Path) -> set[str]:
    """The words of the project that a page uses outside of commands."""
    own = WORD.findall((ROOT / "docs/how-a-round-works.md").read_text("utf-8"))
    text = CODE.sub("", HIDDEN.sub("", page.read_text("utf-8"))).lower()
    words = {word.lower() for pair in own for word in pair if word}
    return {word for word in words if re.search(rf"\b{re.escape(word)}s?\b", text)}


def walked(page: str, folder: Path) -> Iterator[Walked]:
    """Paste a page's blocks in a new folder, to the last milestone. Raises AssertionError where a command fails."""
    (folder / "scenarios").symlink_to(ROOT / "scenarios")
    for name in ("home", "bin"):
        (folder / name).mkdir()
    text = HIDDEN.sub("", (ROOT / page).read_text("utf-8"))
    known = len(concepts(ROOT / page))
    for port in USUAL_PORTS:
        text = text.replace(port, str(free_port()))
    log = folder / "background.log"
    log.touch()
    ahead = list(WAYS[page])
    commands = files = 0
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
                    if any(ahead[0][0] in line for line in lines):
                        _, what = ahead.pop(0)
                        seconds = round(time.monotonic() - began, 1)
                        yield Walked(what, page, commands, seconds, files, known)
            if not ahead:
                return
    raise AssertionError(f"{page} has no `{ahead[0][0]}`")


def table(found: list[Walked]) -> str:
    """The ways as a table in Markdown."""
    rows = [
        f"| {one.what} | `{one.page}` | {one.commands} | {one.time} | {one.files} | {one.concepts} |"
        for one in found
    ]
    head = "| to | by | commands | seconds | files saved | concepts of the page |\n|---|---|---:|---:|---:|---:|"
    return "\n".join([head, *rows])


def read() -> tuple[list[Walked], list[Walked]]:
    """The ways of the record: those of now, and those of before the pages were arranged by event."""
    record = json.loads((ROOT / OUT).read_text("utf-8"))
    ways, before = ([Walked(**one) for one in of["ways"]] for of in (record, record["before"]))
    return ways, before


def main() -> None:
    """Walk all ways and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    os.environ.setdefault("COVEY_LEARNER", "numpy")
    found: list[Walked] = []
    for page in WAYS:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            found += walked(page, Path(folder))
    cores = len(os.sched_getaffinity(0))
    before = json.loads((ROOT / OUT).read_text("utf-8"))["before"]
    ways = [asdict(one) for one in found]
    record = {"cores": cores, "load": os.getloadavg()[0], "ways": ways, "before": before}
    options.out.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    print(table(found))


if __name__ == "__main__":
    main()
