"""Real agents on files that people have: a table, arrays, a folder of images; one of them loses power."""

from __future__ import annotations

import asyncio
import csv
import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.wire.documents import RosterMessage
from covey.shared.wire.topics import Topics
from tests.e2e.conftest import coordinator, finish
from tests.processes import (
    Program,
    free_port,
    mosquitto,
    needs_mosquitto,
    program,
    result,
    rows,
    until,
    words,
)

pytestmark = [pytest.mark.processes, pytest.mark.broker, needs_mosquitto]

DEADLINE_S = 600.0
NUMPY = ("--learner", "numpy")  # starts faster than torch


def digits(part: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Some of scikit-learn's digits with pixels of 0 to 240."""
    x, y = load_digits(return_X_y=True)
    return (x[part::3][:count] * 15).astype(np.uint8), y[part::3][:count]


def as_csv(path: Path) -> Path:
    x, y = digits(0, 500)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"pixel{i}" for i in range(64)), "digit"])
        writer.writerows([*row, label] for row, label in zip(x.tolist(), y.tolist(), strict=True))
    return path


def as_npz(path: Path) -> Path:
    x, y = digits(1, 60)
    np.savez(path, x=x.reshape(-1, 1, 8, 8), y=y)
    return path


def as_images(path: Path) -> Path:
    x, y = digits(2, 60)
    for i, (row, label) in enumerate(zip(x, y, strict=True)):
        folder = path / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(row.reshape(8, 8)).save(folder / f"{i}.png")
    return path


def start(folder: Path, name: str, data: Path, port: int, *more: str) -> list[str]:
    """The command line of one agent."""
    broker = f"mqtt://127.0.0.1:{port}"
    state = ["--state", str(folder / f"state-{name}")]
    return words("agent start", "--data", data, "--id", name, "--broker", broker, *state, *more)


def have_reported(spool: Path, *agents: bytes) -> bool:
    """Whether these agents, whose names are in no other's, have a report of the open step in the spool."""
    written = b"".join(file.read_bytes() for file in spool.glob("*/reports"))
    return all(agent in written for agent in agents)


@pytest.mark.whole
def test_the_round_closes_on_the_last_will_and_the_agent_takes_part_again(tmp_path: Path) -> None:
    port = free_port()
    table = as_csv(tmp_path / "digits.csv")
    commands = {
        "table": start(tmp_path, "table", table, port, "--label", "digit", *NUMPY),
        "arrays": start(tmp_path, "arrays", as_npz(tmp_path / "digits.npz"), port, *NUMPY),
        "images": start(tmp_path, "images", as_images(tmp_path / "digits"), port, *NUMPY),
    }
    sections: dict[str, Any] = {
        "task": {"scale": 1 / 240},
        "training": {"epochs": 300},  # the table's agent takes seconds, the others an eighth
        "rounds": {
            "count": 3,
            "participation": 1.0,
            "start_agents": 3,
            "deadline_s": DEADLINE_S,
            "timing": {"absence_s": 1},
        },
    }
    with ExitStack() as stack:
        stack.enter_context(mosquitto(tmp_path, port))
        agents = {
            name: Program(command, tmp_path / f"{name}.log") for name, command in commands.items()
        }
        for agent in agents.values():
            stack.callback(agent.stop)
        this = fedavg(tmp_path, port, sections)
        stack.callback(this.stop)
        spool = tmp_path / "run" / "spool"
        until(lambda: have_reported(spool, b"arrays", b"images"), of=this)
        assert rows(tmp_path / "run") == [], "the table's agent was not the last one"
        killed = time.monotonic()
        agents["table"].kill()
        [first] = until(lambda: rows(tmp_path / "run"), DEADLINE_S / 10, of=this)[:1]
        print(f"the round closed {time.monotonic() - killed:.2f} s after kill -9")
        assert (first["reported"], first["missing"]) == (["arrays", "images"], ["table"])
        control(port, "pause", of=this)  # so that the run is not over before the agent is back
        until(lambda: not takes_part(tmp_path / "run", "table"), of=this)
        back = stack.enter_context(program(*commands["table"], log=tmp_path / "table.log"))
        until(lambda: takes_part(tmp_path / "run", "table"), of=back)
        control(port, "resume", of=this)
        finish(this, 240)
    assert any(
        "table" in row["reported"] for row in rows(tmp_path / "run") if row["phase"] == "train"
    )
    assert result(tmp_path / "run")["took_part"] == ["arrays", "images", "table"]


def takes_part(folder: Path, agent: str) -> bool:
    """Does the agent take part, by the coordinator's newest roster?"""
    roster = RosterMessage.from_bytes((folder / "roster.json").read_bytes())
    return bool(roster.agents[agent]["takes_part"])


def control(port: int, command: str, of: Program) -> None:
    """What an operator publishes by hand; returns when the coordinator has heard it."""

    async def publish() -> None:
        async with MqttLink(f"mqtt://127.0.0.1:{port}", client_id="operator") as link:
            await anext(link.incoming())
            await link.publish(Topics("default").control, json.dumps({"command": command}).encode())

    asyncio.run(publish())
    until(lambda: f'"command": "{command}"' in of.output, of=of)


def fedavg(folder: Path, port: int, sections: dict[str, Any]) -> Program:
    """The coordinator of these tests; FedClust's own fields must not stay."""
    return coordinator(folder, port, "--set", "strategy.name=fedavg", **sections)


@pytest.mark.whole
def test_an_agent_with_wrong_data_stays_out_and_gives_the_reason(tmp_path: Path) -> None:
    port = free_port()
    broken = tmp_path / "broken.csv"
    broken.write_text("a,b,digit\n1,2,0\n3,nan,1\n")
    sections: dict[str, Any] = {
        "task": {"scale": 1 / 240},
        "rounds": {"count": 1, "participation": 1.0, "start_agents": 1, "deadline_s": DEADLINE_S},
    }
    with ExitStack() as stack:
        stack.enter_context(mosquitto(tmp_path, port))
        wrong = start(tmp_path, "wrong", broken, port, "--label", "digit", *NUMPY)
        stack.enter_context(program(*wrong, log=tmp_path / "wrong.log"))
        good = start(tmp_path, "good", as_npz(tmp_path / "digits.npz"), port, *NUMPY)
        this = fedavg(tmp_path, port, sections)
        stack.callback(this.stop)
        until(lambda: '"event": "problem"' in this.output, of=this)
        stack.enter_context(program(*good, log=tmp_path / "good.log"))
        finish(this)
        url = f"mqtt://127.0.0.1:{port}"
        with program(
            "covey.coordinator.cli",
            "status",
            "--broker",
            url,
            "--json",
            log=tmp_path / "status.log",
        ) as status:
            assert status.process.wait(60) == 0, status.output
    assert '"wrong"' in status.output
    assert "row 2, column 2 is not a finite number" in status.output
    assert result(tmp_path / "run")["took_part"] == ["good"]
    assert "staying out" in (tmp_path / "wrong.log").read_text()
