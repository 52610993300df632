"""README.md shows the output of `make run` as the programs print it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.forked import Forked, Start

ROOT = Path(__file__).parent.parent
SHOWN = re.search(r"```\n(broker: .*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
SHOWN_COLUMNS = (
    "E-server",
    "E-delivered",
    "E-last",
    "clusters",
    "ARI",
)  # README.md has no room for more


def coordinator(*words: str, folder: Path) -> str:
    """What a command prints, on a screen as wide as the table."""
    paths = f"{ROOT}{os.pathsep}{ROOT / 'src'}"
    own = {**os.environ, "COLUMNS": "140", "PYTHONPATH": paths, "COVEY_LEARNER": "numpy"}
    log = folder / f"{words[0]}-{len(words)}.log"
    log.unlink(missing_ok=True)
    done = Forked(Start.here(["covey.coordinator.cli", *words], own, str(folder), str(log)))
    try:
        assert done.wait(300) == 0, log.read_text()
    finally:
        done.kill()
    return log.read_text()


def rounds(text: str) -> list[str]:
    """The lines of progress, one for each phase, without the time that a file or a pipe gets."""
    found = []
    for line in text.splitlines():
        sentence = re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", "", line)
        if re.match(r"round +\d+  \w+:", sentence):
            found.append(sentence.strip())
    return found


def cells(text: str) -> dict[str, dict[str, str]]:
    """The rows of all tables by method, later ones in place of earlier ones, and the columns that README.md shows."""
    found: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        row = [cell.strip() for cell in line.strip("│┃ ").replace("┃", "│").split("│")]
        if line.startswith("┃"):
            head = row
        elif line.startswith("│"):
            own = found.setdefault(row[0], {})
            own |= {t: cell for t, cell in zip(head, row, strict=True) if t in SHOWN_COLUMNS}
    return found


@pytest.mark.processes
def test_the_readme_shows_what_make_run_prints(tmp_path: Path) -> None:
    assert SHOWN is not None
    recipe = (ROOT / "Makefile").read_text("utf-8").split("\nrun: ")[1].split("\n\n")[0]
    commands = re.findall(r"\$\(BIN\)/coordinator (.+)", recipe)
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    printed = ""
    quick_run = ["--in-process", "--set", "fleet.workers=1"]
    for command in commands:
        quick = quick_run if command.startswith("run ") else []
        printed += coordinator(*command.split(), *quick, folder=tmp_path)
    assert set(rounds(SHOWN[1])) <= set(rounds(printed))
    assert len(rounds(SHOWN[1])) >= 4
    assert {"fedclust", "fedavg"} <= cells(SHOWN[1]).keys()
    assert cells(SHOWN[1]) == cells(printed)


def test_the_first_screen_of_the_readme_has_its_result_and_six_destinations() -> None:
    lines = (ROOT / "README.md").read_text("utf-8").split("\n## ")[0].splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert len(lines) <= 50
