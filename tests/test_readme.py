"""README.md shows the sentence and the table of `make run` as the programs print them, to the character.

    COVEY_REWRITE_README=1 python -m pytest tests/test_readme.py

puts what they print now into README.md.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
SHOWN = re.compile(r"```text\n(.*?)```", re.DOTALL)
ANSWER = re.compile(r"^\w+(?:, \d+ groups)?: accuracy in use.*?└[─┴]+┘\n", re.DOTALL | re.MULTILINE)
OF_A_LOG = re.compile(r"\d{4}-\d\d-\d\d ")  # a line of a pipe, which stays one line
CONCEPTS = ("fleet", "agent", "coordinator", "broker", "scenario", "method", "group", "figure")


def coordinator(words: str, folder: Path) -> str:
    """What a command prints on a terminal of 80 columns."""
    done = subprocess.run(
        [sys.executable, "-m", "covey.coordinator.cli", *words.split()],
        cwd=folder,
        env={
            **os.environ,
            "COLUMNS": "80",
            "COVEY_LEARNER": "numpy",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    printed = [*lines, *done.stderr.splitlines()]
    assert [line for line in printed if len(line) > 80 and not OF_A_LOG.match(line)] == []
    return "".join(f"{line}\n" for line in lines)


@pytest.mark.whole
@pytest.mark.processes
def test_the_readme_shows_what_make_run_prints(tmp_path: Path) -> None:
    recipe = (ROOT / "Makefile").read_text("utf-8").split("\nrun: ")[1].split("\n\n")[0]
    [command] = re.findall(r"\$\(BIN\)/coordinator (.+)", recipe)
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    printed = coordinator(f"{command} --in-process --set fleet.workers=1", tmp_path)
    answer = ANSWER.search(printed)
    assert answer is not None, printed
    text = README.read_text("utf-8")
    if os.environ.get("COVEY_REWRITE_README"):
        README.write_text(SHOWN.sub(lambda _: f"```text\n{answer[0]}```", text, count=1), "utf-8")
        return
    shown = SHOWN.search(text)
    assert shown is not None
    assert shown[1] == answer[0]


# Concepts that a reader needs for the first table, each with its explanation, and those that wait until they are needed.
FIRST = {
    "device": "devices together",
    "group": "Similar devices form a group",
    "alone": "trains alone",
    "one model": "all share one model",
    "in use": "*In use* is what a device answers with",
    "constant": "the *constant*, no model, is",
}
LATER = (
    "agent",
    "broker",
    "MQTT",
    "coordinator",
    "scenario",
    "method",
    "federation",
    "fleet",
    "round",
    "cluster",
    "macro",
    "mode",
    "interval",
    "figure",
)


def test_six_concepts_come_before_the_first_table() -> None:
    """Each is explained where it first stands; thirteen did before."""
    before = README.read_text("utf-8").split("```text")[0]
    prose = " ".join(re.sub(r"```.*?```|`[^`]*`", "", before, flags=re.DOTALL).split())
    assert {name for name, said in FIRST.items() if said not in prose} == set()
    assert [word for word in LATER if re.search(rf"\b{word}(?:s?\b|$)", prose)] == []


def test_the_readme_begins_with_files_of_the_readers_own() -> None:
    first, *_ = re.findall(r"```sh\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    assert [line.split("#")[0].split()[1:3] for line in first.splitlines()] == [
        ["make", "ready"],
        [".venv/bin/coordinator", "try"],
    ]


def test_the_readme_is_one_page_that_a_small_terminal_shows() -> None:
    lines = README.read_text("utf-8").splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 96
    assert lines.index("## With devices") <= 44  # the first screen ends with the result


def test_the_readme_needs_no_more_than_eight_concepts() -> None:
    """Every word that the project gives a meaning of its own, and that the text before the links uses."""
    text = README.read_text("utf-8").split("## Where to go")[0]
    without_code = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", text, flags=re.DOTALL).lower()
    own = set(
        re.findall(
            r"^- \*\*([^*]+)\*\*", (ROOT / "docs/how-a-round-works.md").read_text("utf-8"), re.M
        )
    )
    used = {word for word in own if re.search(rf"\b{re.escape(word.lower())}s?\b", without_code)}
    assert {word.lower() for word in used} <= set(CONCEPTS)
