"""Three devices whose data grow over a day: a database, a folder of CSV files and one of Parquet files; one loses power."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from covey.shared.wire.documents import RosterMessage
from tests.agent.test_data_sources import Row, as_csv, as_database, as_parquet
from tests.e2e.conftest import finish
from tests.e2e.test_devices import DEADLINE_S, NUMPY, control, fedavg, start, takes_part
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
    "rounds": {
        "count": 6,
        "participation": 1.0,
        "start_agents": 3,
        "deadline_s": DEADLINE_S,
        "timing": {"absence_s": 1},
    },
}


def reading(day: int, hour: int) -> Row:
    speed = (7 * hour + 3 * day) % 10
    return f"2026-11-{day:02d} {hour:02d}:00:00", speed, "ABB", "worn" if speed > 4 else "ok"


def day_until(day: int, hour: int) -> list[Row]:
    return [reading(day, past) for past in range(hour)]


def test_devices_whose_data_grow_over_a_day_train_on_all_of_them_after_a_kill(
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
        roster = RosterMessage.from_bytes((tmp_path / "run" / "roster.json").read_bytes())
        return {name: row["samples"] for name, row in roster.agents.items()}

    with ExitStack() as stack:
        stack.enter_context(mosquitto(tmp_path, port))
        commands = {
            name: start(tmp_path, name, data, port, *NUMPY)  # type: ignore[arg-type]
            for name, data in sources.items()
        }
        agents = {
            name: Program(command, tmp_path / f"{name}.log") for name, command in commands.items()
        }
        for agent in agents.values():
            stack.callback(agent.stop)
        this = fedavg(tmp_path, port, SECTIONS)
        stack.callback(this.stop)
        until(lambda: rows(tmp_path / "run"), DEADLINE_S / 10, of=this)
        control(port, "pause", of=this)
        until(lambda: len(rows(tmp_path / "run")) > 1, of=this)  # the round at work ends first
        until(lambda: all(samples().values()), of=this)
        before = samples()
        for hour in range(1, HOURS // 2):
            pass_hour(hour)
        agents["sqlite"].kill()
        for hour in range(HOURS // 2, HOURS + 1):
            pass_hour(hour)
        until(lambda: not takes_part(tmp_path / "run", "sqlite"), of=this)
        back = Program(commands["sqlite"], tmp_path / "sqlite.log")
        stack.callback(back.stop)
        until(lambda: takes_part(tmp_path / "run", "sqlite"), of=back)
        grown = round(before["csv"] * (PAST + 1) / PAST)
        until(lambda: set(samples().values()) == {grown}, DEADLINE_S / 10, of=this)
        control(port, "resume", of=this)
        finish(this, 240)
    assert result(tmp_path / "run")["took_part"] == sorted(sources)
    [*_, last] = [row for row in rows(tmp_path / "run") if row["phase"] == "train"]
    assert last["reported"] == sorted(sources)
