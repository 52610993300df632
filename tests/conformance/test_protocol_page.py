"""An agent that was written after docs/protocol.md and the pages that it names takes part in a run, and the page's examples are true."""

from __future__ import annotations

import ast
import csv
import json
import random
import re
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from covey.shared.wire.documents import AgentStatus, RosterMessage
from covey.shared.wire.messages import Part
from tests.kit.scenes import Scenes, start_file
from tests.processes import (
    ROOT,
    Program,
    free_port,
    mosquitto,
    needs_mosquitto,
    program,
    result,
    rows,
    until,
)

AGENT = ROOT / "docs/examples/minimal_agent.py"
SHORT_AGENT = ROOT / "examples/agent_in_60_lines.py"
PAGE = "".join(
    (ROOT / page).read_text("utf-8") for page in ("docs/protocol.md", "shared/wire/README.md")
)
PART_BYTES = 1024  # the smallest: with 600 values a model has three parts


def table(path: Path, seed: int, features: int) -> Path:
    """A table of two classes that the sum of the features distinguishes."""
    draw = random.Random(seed)  # noqa: S311 - data, not secrets
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"x{i}" for i in range(features)), "label"])
        for _ in range(60):
            label = draw.randint(0, 1)
            centre = 1.0 if label else -1.0
            writer.writerow([*(round(draw.gauss(centre, 1.0), 3) for _ in range(features)), label])
    return path


scenes = Scenes.of(
    "page",
    {"classes": 2, "model": {"name": "linear"}},
    seed=3,
    training={"epochs": 2, "batch": 10, "lr": 0.05},
    rounds={"count": 3, "start_agents": 3, "deadline_s": 120},
    evaluation={"tune_epochs": 0},
    wire={"part_bytes": PART_BYTES},
)


@pytest.mark.whole
@pytest.mark.processes
@pytest.mark.broker
@needs_mosquitto
def test_an_agent_written_after_the_page_takes_part_next_to_one_of_ours(tmp_path: Path) -> None:
    port = free_port()
    features = 300
    url = f"mqtt://127.0.0.1:{port}"
    with ExitStack() as stack:
        stack.enter_context(mosquitto(tmp_path, port))
        task = {**scenes.sections["task"], "features": [features]}
        page = str(scenes.written(tmp_path, task={**task, "init": start_file(tmp_path, task)}))
        out = tmp_path / "run"
        coordinator = ["covey.coordinator.cli", "run", page, "--out", str(out), "--broker", url]
        run = stack.enter_context(program(*coordinator, log=tmp_path / "coordinator.log"))
        for seed, name in enumerate(("page-1", "page-2")):
            data = str(table(tmp_path / f"{name}.csv", seed, features))
            command = [str(AGENT), str(port), name, data]
            started_script(stack, command, tmp_path / f"{name}.log")
        data = str(table(tmp_path / "ours.csv", 7, features))
        ours = ["covey.agent.cli", "start", "--data", data, "--id", "ours", "--broker", url]
        options = ["--learner", "numpy", "--state", str(tmp_path / "state")]
        stack.enter_context(program(*ours, *options, log=tmp_path / "ours.log"))
        until(lambda: run.process.poll() is not None, 240, of=run)
        assert run.process.returncode == 0, run.output[-3000:]
    train = [row for row in rows(out) if row["phase"] == "train"]
    assert [row["reported"] for row in train] == [["ours", "page-1", "page-2"]] * 3
    assert result(out)["accuracy"]["server"]["accuracy"]["micro"] > 0.95
    roster = RosterMessage.from_bytes((out / "roster.json").read_bytes())
    assert roster.refusals == {}


@pytest.mark.whole
@pytest.mark.processes
@pytest.mark.broker
@needs_mosquitto
def test_the_agent_in_60_lines_takes_part_next_to_one_of_ours_without_torch(tmp_path: Path) -> None:
    port = free_port()
    features = 20
    with ExitStack() as stack:
        stack.enter_context(mosquitto(tmp_path, port))
        page = scenes.written(tmp_path, task={"features": [features]})
        sections = yaml.safe_load(page.read_text())
        sections["task"]["init"] = start_file(tmp_path, sections["task"])
        sections["rounds"]["count"] = 2
        page.write_text(yaml.safe_dump(sections))
        for seed, name in enumerate(("short-1", "short-2")):
            data = str(table(tmp_path / f"{name}.csv", seed, features))
            command = [str(SHORT_AGENT), str(port), name, data]
            started_script(stack, command, tmp_path / f"{name}.log")
        out = tmp_path / "run"
        url = f"mqtt://127.0.0.1:{port}"
        data = str(table(tmp_path / "ours.csv", 7, features))
        ours = ["covey.agent.cli", "start", "--data", data, "--id", "ours", "--broker", url]
        options = ["--learner", "numpy", "--state", str(tmp_path / "state")]
        stack.enter_context(program(*ours, *options, log=tmp_path / "ours.log"))
        coordinator = ["covey.coordinator.cli", "run", str(page), "--out", str(out)]
        log = tmp_path / "coordinator.log"
        run = stack.enter_context(program(*coordinator, "--broker", url, log=log))
        until(lambda: run.process.poll() is not None, 120, of=run)
        assert run.process.returncode == 0, run.output[-3000:]
    train = [row for row in rows(out) if row["phase"] == "train"]
    assert [row["reported"] for row in train] == [["ours", "short-1", "short-2"]] * 2
    assert result(out)["accuracy"]["server"]["accuracy"]["micro"] > 0.8
    assert RosterMessage.from_bytes((out / "roster.json").read_bytes()).refusals == {}


def test_the_agent_in_60_lines_has_as_many_with_its_imports() -> None:
    source = SHORT_AGENT.read_text("utf-8")
    imports = re.findall(r"^(?:import|from) (\w+)", source, re.MULTILINE)
    assert set(imports) == {"hashlib", "json", "sys", "time", "msgpack", "numpy", "paho"}
    assert code_lines(source) <= 60


def code_lines(source: str) -> int:
    """Lines that hold neither a comment nor a docstring: unparsing drops the former."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef) and ast.get_docstring(node):
            del node.body[0]
    return sum(bool(line.strip()) for line in ast.unparse(tree).splitlines())


def started_script(stack: ExitStack, command: list[str], log: Path) -> None:
    this = Program([sys.executable, *command], log, module=False)
    stack.callback(this.stop)


def test_the_agent_of_the_page_uses_nothing_of_covey() -> None:
    tree = ast.parse(AGENT.read_text("utf-8"))
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
    assert not any(str(name).split(".")[0] in ("covey", "numpy", "tests") for name in names)


def example(title: str) -> str:
    """The block of code that follows a line of the page."""
    match = re.search(rf"^{re.escape(title)}\n\n```\w*\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL)
    assert match is not None, title
    return match[1]


def test_the_bytes_of_the_example_part_are_those_of_the_code() -> None:
    fields = json.loads(example("The fields of a part, with bytes as hexadecimal digits:"))
    for name in ("digest", "data"):
        fields[name] = bytes.fromhex(fields[name])
    payload = bytes.fromhex(example("The payload of this part:"))
    assert Part(**fields).to_bytes() == payload
    assert Part.from_bytes(payload) == Part(**fields)


def test_the_example_status_is_one() -> None:
    payload = example("A status on the wire:").strip().encode()
    status = AgentStatus.from_bytes(payload)
    assert (status.agent, status.samples, status.online) == ("pi-7", 120, True)


def test_the_page_explains_every_reason_of_a_refusal() -> None:
    sources = [
        path for room in ("agent", "coordinator", "shared") for path in (ROOT / room).rglob("*.py")
    ]
    reasons: set[str] = set()
    for path in sources:
        reasons |= set(re.findall(r'DecodeError\(\s*"([^"]+)"', path.read_text("utf-8")))
    explained = set(re.findall(r"`([^`]+)`", PAGE.split("## Refusals")[1]))
    assert reasons - explained == set()
