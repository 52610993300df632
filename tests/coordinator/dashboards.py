"""Run folders as a coordinator writes them, for tests of the dashboard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from covey.shared.wire.documents import CoordinatorStatus, RosterMessage

AGENT: dict[str, Any] = {
    "online": True,
    "takes_part": True,
    "cluster": None,
    "figure": None,
    "seen": 1_700_000_000.0,
    "samples": 40,
    "test_samples": 10,
    "labels": 3,
    "busy": False,
    "problem": None,
    "quarantined": None,
    "failed": None,
    "version": "0.1.0",
    "refusals": {},
}


def agents(count: int, **changes: Any) -> dict[str, Any]:
    return {f"agent-{i}": {**AGENT, **changes} for i in range(count)}


def write_plan(folder: Path, *, name: str = "pilot", expected: int = 10, every: int = 1) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        f"name: {json.dumps(name)}",
        "strategy: {name: fedclust}",
        f"rounds: {{count: 20, start_agents: {expected}}}",
        f"evaluation: {{every: {every}}}",
    ]
    (folder / "scenario.yaml").write_text("\n".join(lines))


def write_roster(folder: Path, rows: dict[str, Any], **refusals: int) -> None:
    message = RosterMessage(run="r1", agents=rows, refusals=refusals)
    (folder / "roster.json").write_bytes(message.to_bytes())


def write_status(folder: Path, **changes: Any) -> None:
    (folder / "status.json").write_bytes(status(**changes).to_bytes())


def status(**changes: Any) -> CoordinatorStatus:
    usual: dict[str, Any] = {"online": True, "run": "r1", "name": "pilot", "rounds": 20}
    return CoordinatorStatus(**{**usual, **changes})


def phase(number: int, *, evaluated: float | None = None, **changes: Any) -> dict[str, Any]:
    """A line of the record: training round `number`, or the evaluation after it."""
    is_evaluation = evaluated is not None
    row: dict[str, Any] = {
        "event": "phase",
        "phase": "evaluate" if is_evaluation else "train",
        "ends_round": not is_evaluation,
        "round": number if is_evaluation else number - 1,
        "step": 2 * number + is_evaluation,
        "invited": ["a", "b", "c"],
        "reported": ["a", "b"],
        "missing": ["c"],
        "cluster_sizes": {"0": 2, "1": 1},
        "moved": 0,
        "seconds": 3.0,
        "traffic": {"wire_up": 1000 * number, "wire_down": 500 * number, "down_models": 1500},
        "notes": {},
    }
    if is_evaluation:
        row["evaluation"] = {"server": {"agents": 3, "accuracy": {"macro": evaluated}}}
        row["by_cluster"] = {"0": {"accuracy": evaluated}, "1": {"accuracy": evaluated}}
    else:
        row["loss"] = 1.0 / number
    return row | changes


def append_lines(folder: Path, *rows: dict[str, Any]) -> None:
    with (folder / "rounds.jsonl").open("a") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
