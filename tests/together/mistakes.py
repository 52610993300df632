"""Mistakes that users make, and the message that each must get: what happened, what was expected, what to do.

    python -m tests.together.mistakes    # print the messages

They are the rows of the table on the page. `tests/together/test_mistakes.py` makes every one of them.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path

import typer
from typer.testing import CliRunner

from covey.agent.cli.program import app as agent
from covey.broker.cli.program import app as broker
from covey.coordinator.cli.program import app as coordinator
from covey.extras.users.folder import BrokerFolder

PAGE = Path(__file__).parents[2] / "benchmarks" / "results" / "mistakes.md"
PROGRAMS: dict[str, typer.Typer] = {"agent": agent, "broker": broker, "coordinator": coordinator}


@dataclass(frozen=True)
class Mistake:
    """One mistake. The three parts of its message are words that the message must hold."""

    what: str  # the mistake, in a few words
    command: (
        str  # as typed, in the folder that `workplace` makes; PORT is one where nobody speaks MQTT
    )
    happened: str
    expected: str
    next_step: str

    @property
    def exit_code(self) -> int:
        return 1 if "doctor" in self.command else 2  # a finding is no wrong use


GOOD = """\
name: try
task: {features: [1, 8, 8], classes: 10, scale: 0.0625, model: mlp}
strategy: fedavg
rounds: {count: 2}
fleet: {agents: 4, data: digits, partition: iid}
"""
DEVICES = """\
name: try
task: {features: [3], classes: 2, columns: [a, b, c], model: linear}
strategy: fedavg
rounds: {count: 2, start_agents: 2}
"""
FILES: dict[str, str | bytes] = {
    "scenario.yaml": GOOD,
    "devices.yaml": DEVICES,
    "compare.yaml": GOOD + "compare: {methods: [{name: fedavg}, {name: fedclust}], seeds: [1]}\n",
    "cut.yaml": "name: [x\n",
    "misspelt.yaml": GOOD.replace("strategy:", "straegy:"),
    "word.yaml": GOOD.replace("count: 2", "count: ten"),
    "method.yaml": GOOD.replace("fedavg", "fedavgg"),
    "model.yaml": GOOD.replace("model: mlp", "model: resnet99"),
    "range.yaml": GOOD.replace("count: 2", "count: 2, participation: 2"),
    "dated.yaml": GOOD.replace("name: try", "name: 2026-01-01"),
    "many.yaml": GOOD.replace("agents: 4", "agents: 99999999999"),
    "no-task.yaml": "\n".join(line for line in GOOD.splitlines() if not line.startswith("task")),
    "good.csv": "a,b,c,label\n1,2,3,0\n4,5,6,1\n",
    "words.csv": "a,b,c,label\n1,two,3,0\n4,,6,1\n",
    "foreign.csv": "a,b,d,label\n1,2,3,0\n4,5,6,1\n",
    "empty.csv": "",
    "header.csv": "a,b,c,label\n",
    "cut.parquet": "PAR1nonsense",
    "cut.npz": "nonsense",
    "notes/notes.txt": "nonsense",
    "latin.csv": "a,b,c,größe\n1,2,3,0\n4,5,6,1\n".encode("latin-1"),
    "commas.csv": "a;b;c;label\n1,5;2;3;0\n4;5;6;1\n",
    "german.csv": "when,x,label\n31.12.2025 13:45,1,0\n01.01.2026 13:45,2,1\n",
    "times.yaml": DEVICES.replace("[3]", "[5]").replace("[a, b, c]", "[when, x], times: [when]"),
    "north.yaml": DEVICES + "federation: north\n",
    "twice.csv": "id\npi-3\npi-4\npi-3\n",
    "columns.csv": "name,place\npi-3,roof\n",
}


@contextmanager
def workplace() -> Iterator[int]:
    """A folder with all files that the commands name, as the working folder; yields PORT."""
    with tempfile.TemporaryDirectory() as folder, _deaf_port() as port, chdir(folder):
        for name, content in FILES.items():
            file = Path(name)
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        home = BrokerFolder.create(Path("home"), ["localhost"], 8883)
        home.enroll("pi-1")
        home.enroll("second", "coordinator", "south")
        yield port


@contextmanager
def _deaf_port() -> Iterator[int]:
    """A port that takes connections and never answers, as one without TLS does to those that want it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


def message(mistake: Mistake, port: int) -> str:
    """The output of the command, as its user reads it. Raises AssertionError for a traceback or another exit code."""
    program, *arguments = shlex.split(mistake.command.replace("PORT", str(port)))
    result = CliRunner().invoke(PROGRAMS[program], arguments, env={"COLUMNS": "80"})
    unexpected = result.exception
    if not isinstance(unexpected, SystemExit):
        assert unexpected is None, f"{mistake.command}: {unexpected!r}"
    assert result.exit_code == mistake.exit_code, (mistake.command, result.output)
    assert "Traceback" not in result.output
    return result.output


def mistakes() -> list[Mistake]:
    """The rows of the page."""
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")][2:]
    cells = [re.sub(r"\\([|\[\]{}])", r"\1", row)[2:-2].split(" | ") for row in rows]
    return [Mistake(what, command.strip("`"), *words) for what, command, *words in cells]


if __name__ == "__main__":
    with workplace() as port:
        for mistake in mistakes():
            print(f"$ {mistake.command}{os.linesep}{message(mistake, port)}")
