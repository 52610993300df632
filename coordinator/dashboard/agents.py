"""The agents of a run as the page lists them, and which of them have changed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from covey.coordinator.dashboard.state import agent_state
from covey.shared.wire.documents import RosterMessage

Cells = tuple[Any, ...]  # one agent, without its name, in the order of `COLUMNS`
COLUMNS = ("state", "cluster", "figure", "seen", "samples", "refusals", "reason")
MAX_REASON = 500  # characters


def agent_cells(roster: RosterMessage | None) -> dict[str, Cells]:
    """The cells of each agent, by name."""
    if roster is None:
        return {}
    return {agent: _cells(row) for agent, row in roster.agents.items()}


def _cells(row: Mapping[str, Any]) -> Cells:
    refused = 0
    refusals = row.get("refusals")
    if isinstance(refusals, dict):
        for count in refusals.values():
            if isinstance(count, int):
                refused += count
    return (
        agent_state(row),
        _number(row.get("cluster")),
        _number(row.get("figure")),
        _number(row.get("seen")),
        _number(row.get("samples")),
        refused,
        reason(row)[:MAX_REASON],
    )


def reason(row: Mapping[str, Any]) -> str:
    """Why the agent is excluded, in quarantine or not invited for some rounds, else its newest failure."""
    for kind in ("problem", "quarantined", "silent", "failing"):
        if row.get(kind):
            return str(row[kind])
    failed = row.get("failed")
    return f"newest failure: {failed}" if failed else ""


def _number(value: Any) -> float | int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value
