"""What `coordinator status` shows: the state of the run, and a table of its agents."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from covey.coordinator.report.privacy import epsilons

NONE = "–"
COLUMNS = (
    "agent",
    "state",
    "cluster",
    "last seen",
    "train / test",
    "classes",
    "refusals",
    "reason",
)


def status_lines(seen: Mapping[str, Any]) -> list[str]:
    """The lines above the roster: the state of the run, and whether its coordinator is still at work."""
    spent = epsilons(seen.get("privacy"))
    status = seen["status"]
    if status is None:  # read from a run's folder
        ended = "the run is finished; " if seen["finished"] else ""
        written = _moment(seen["written"])
        lines = [f"{ended}this is what its coordinator wrote last, at {written}"]
        if spent:
            lines.append(spent)
        return lines
    lines = []
    if status["name"]:  # the last will of a coordinator has no name
        rounds = f"round {status['round']} of {status['rounds']}"
        words = [status["state"], rounds, status["phase"], spent]
        state = ", ".join(word for word in words if word)
        lines.append(f"{status['name']}: {state}")
    if not status["online"] or status["state"] in ("finished", "stopped"):
        lines.append("no coordinator is running: this is what the last one left")
    return lines


def roster_table(roster: Mapping[str, Any]) -> Table:
    """A line for each agent that the coordinator knows; `roster` is a `RosterMessage` as JSON."""
    agents = roster["agents"]
    table = Table(title=f"run {roster['run']}: {len(agents)} agents")
    for column in COLUMNS:
        table.add_column(column)
    for agent, row in agents.items():
        counts = [f"{reason} {count}" for reason, count in row["refusals"].items()]
        table.add_row(
            agent,
            _state(row),
            NONE if row["cluster"] is None else str(row["cluster"]),
            _moment(row["seen"]),
            f"{row['samples']} / {row['test_samples']}",
            str(row["labels"]),
            ", ".join(counts),
            _reason(row),
        )
    return table


def _state(row: Mapping[str, Any]) -> Text:
    if not row["online"]:
        return Text("offline", "red")
    if row["problem"]:
        return Text("excluded", "yellow")
    if row.get("quarantined"):
        return Text("in quarantine", "red")
    if not row["takes_part"]:
        return Text("checking its data")
    return Text("busy" if row["busy"] else "idle")


def _reason(row: Mapping[str, Any]) -> str:
    """Why the agent is excluded or in quarantine, else its newest failure."""
    for kind in ("problem", "quarantined"):
        if row.get(kind):
            return str(row[kind])
    failed = row.get("failed")
    return f"its newest failure: {failed}" if failed else ""


def _moment(seconds: float) -> str:
    """A time of day, with the date if that is not today's."""
    then = time.localtime(seconds)
    is_today = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S", then)
