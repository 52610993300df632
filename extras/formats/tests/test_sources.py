"""Three devices whose data grow over a day: a database, a folder of CSV files and one of Parquet files; each loses power at work."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from covey.extras.formats.tests.test_places import Row, as_csv, as_database, as_parquet
from covey.shared.wire.documents import RosterMessage
from tests.e2e.conftest import finish
from tests.e2e.test_devices import DEADLINE_S, NUMPY, fedavg, start
from tests.processes import Program, free_port, mosquitto, needs_mosquitto, result, rows, until

pytestmark = [pytest.mark.processes, pytest.mark.broker, needs_mosquitto]

HOURS = 24
PAST = 3  # days before the one that is replayed
TASK = {
    "features": [5],
    "classes": ["ok", "worn"],
    "columns": ["time", "speed"],
    "ignore": ["maker"],
    "times": ["time"],
    "target": "worn",
    "scale": 1,
    "standardise": "federated",
}
SECTIONS: dict[str, Any] = {
    "task": TASK,
    "training": {"epochs": 800},  # long enough to be hit
    "rounds": {
        "count": 5,
        "participation": 1.0,
        "start_agents": 3,
        "quorum": 3,  # no round goes past an agent that is killed
        "deadline_s": DEADLINE_S,
        "timing": {"absence_s": 1},
    },
}


def reading(day: int, hour: int) -> Row:
    speed = (7 * hour + 3 * day) % 10
    return f"2026-11-{day:02d} {hour:02d}:00:00", speed, "ABB", "worn" if speed > 4 else "ok"


def day_until(day: int, hour: int) -> list[Row]:
    return [reading(day, past) for past in range(hour)]


def works(agent: Program) -> list[tuple[str, int]]:
    """What an agent has begun and sent, with the number of the step."""
    events = [json.loads(line) for line in agent.output.splitlines() if line.startswith("{")]
    return [(one["event"], one["step"]) for one in events if one["event"] in ("work", "sent")]


def is_at_work(agent: Program) -> bool:
    return bool(found := works(agent)) and found[-1][0] == "work"


def has_sent(agent: Program) -> bool:
    return any(event == "sent" for event, _ in works(agent))


def test_devices_whose_data_grow_over_a_day_train_on_all_of_them_though_each_is_killed_at_work(
    tmp_path: Path,
) -> None:
    port = free_port()
    past = [row for day in range(1, PAST + 1) for row in day_until(day, HOURS)]
    database = as_database(tmp_path / "plant.db", past)
    folders: dict[str, Callable[[Path, list[Row]], Path]] = {"csv": as_csv, "parquet": as_parquet}
    for suffix, write in folders.items():
        (tmp_path / suffix).mkdir()
        for day in range(1, PAST + 1):
            write(tmp_path / suffix / f"2026-11-{day:02d}.{suffix}", day_until(day, HOURS))
    sources = {suffix: str(tmp_path / suffix) for suffix in folders}
    sources["sqlite"] = f"sqlite:{database}?table=all readings"

    def pass_hour(hour: int) -> None:
        with sqlite3.connect(database) as base:
            base.execute(
                'INSERT INTO "all readings" VALUES (?, ?, ?, ?)', reading(PAST + 1, hour - 1)
            )
        base.close()
        for suffix, write in folders.items():
            write(tmp_path / suffix / f"2026-11-{PAST + 1:02d}.{suffix}", day_until(PAST + 1, hour))

    def samples() -> dict[str, int]:
        file = tmp_path / "run" / "roster.json"
        if not file.exists():  # not yet
            return {}
        roster = RosterMessage.from_bytes(file.read_bytes())
        return {name: row["samples"] for name, row in roster.agents.items()}

    with ExitStack() as stack:
        stack.enter_context(mosquitto(tmp_path, port))

        def begin(name: str, log: str) -> Program:
            command = start(tmp_path, name, sources[name], port, *NUMPY, "--json")  # type: ignore[arg-type]
            agent = Program(command, tmp_path / f"{log}.log")
            stack.callback(agent.stop)
            return agent

        agents = {name: begin(name, name) for name in sources}
        this = fedavg(tmp_path, port, SECTIONS)
        stack.callback(this.stop)
        until(lambda: rows(tmp_path / "run"), DEADLINE_S / 10, of=this)
        until(lambda: samples().keys() == sources.keys() and all(samples().values()), of=this)
        before = samples()["csv"]
        hours = iter(range(1, HOURS + 1))
        for name, agent in agents.items():
            for hour in islice(hours, HOURS // len(agents)):
                pass_hour(hour)
            until(partial(is_at_work, agent), DEADLINE_S / 10, of=agent)
            agent.kill()
            assert is_at_work(agent), "the report of the step was not sent"
            back = begin(name, f"{name}-again")
            until(partial(has_sent, back), DEADLINE_S / 10, of=back)
        grown = round(before * (PAST + 1) / PAST)
        until(lambda: set(samples().values()) == {grown}, DEADLINE_S / 10, of=this)
        finish(this, 240)
    assert "too many examples" not in this.output
    assert result(tmp_path / "run")["took_part"] == sorted(sources)
    [*_, last] = [row for row in rows(tmp_path / "run") if row.get("phase") == "train"]
    assert last["reported"] == sorted(sources)
