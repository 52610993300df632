"""The devices of a fleet as they are now, from what the broker retains of each: its newest status, or its last will. Pure.

No coordinator is needed for that. The roster, of the run at work or of the last one, has the rest: cluster, figure,
and when an agent was heard.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from covey.shared.errors import DecodeError
from covey.shared.mqtt.duplicate_ids import started_at
from covey.shared.mqtt.link import Received
from covey.shared.wire.documents import EXPELLED, AgentStatus, ModelInUse
from covey.shared.wire.topics import AgentTopic, Topics

LEFT = "left"  # it ended in order
LOST = "offline"  # the broker published its last will
UNKNOWN = "unknown"  # the broker retains nothing of it
OVER = ("finished", "stopped")
NOT_KNOWN: Mapping[str, Any] = {  # a row of the roster, of an agent that no run has met
    "online": False,
    "takes_part": False,
    "cluster": None,
    "figure": None,
    "seen": None,
    "samples": 0,
    "test_samples": 0,
    "labels": 0,
    "busy": False,
    "problem": None,
    "refusals": {},
}
OWN_WORD = ("model", "certificate", "disk_free", "refused")  # that no roster has, or has later
REMEMBERED = ("cluster", "figure", "seen", "refusals")  # of a row, all that no device states itself


@dataclass(frozen=True)
class Device:
    """One device, as it states itself or as its last will does."""

    state: str  # idle, busy, excluded, left, offline or expelled
    since: (
        float | None
    )  # in seconds since 1970 by its clock: when it started, or ended in order; None: unknown
    problem: str | None
    samples: int
    test_samples: int
    labels: int
    model: ModelInUse | None
    certificate: float | None = None  # when the first one of its connection ends
    disk_free: int | None = None  # bytes
    refused: str = ""  # why its newest report was refused

    def to_json(self) -> dict[str, Any]:
        model = None if self.model is None else self.model.model_dump(mode="json")
        return {**asdict(self), "model": model}


def status_in(message: Received, topics: Topics) -> AgentStatus | None:
    """The status of an agent in a message; None if it holds none."""
    try:
        match topics.parse(message.topic):
            case AgentTopic(agent, "status"):
                status = AgentStatus.from_bytes(message.payload)
                return status if status.agent == agent else None
    except DecodeError:  # cleared, or of another version
        pass
    return None


def device_of(status: AgentStatus) -> Device:
    """The device of a status."""
    return Device(
        state=_state(status),
        since=started_at(status.session) if status.online else status.clock,
        problem=status.problem,
        samples=status.samples,
        test_samples=status.test_samples,
        labels=len(status.labels),
        model=status.model,
        certificate=status.certificate,
        disk_free=status.disk_free,
        refused=status.refused,
    )


def _state(status: AgentStatus) -> str:
    if not status.online:
        if status.problem == EXPELLED:
            return "expelled"
        return LEFT if status.serial else LOST  # a last will has no serial
    if status.problem:
        return "excluded"
    return "busy" if status.busy else "idle"


def is_between_runs(coordinator: Mapping[str, Any] | None) -> bool:
    """Whether no coordinator is at work, from its status as JSON."""
    return coordinator is None or not coordinator["online"] or coordinator["state"] in OVER


def rows_now(
    roster: Mapping[str, Mapping[str, Any]],
    devices: Mapping[str, Mapping[str, Any]],
    *,
    between_runs: bool,
) -> dict[str, dict[str, Any]]:
    """The rows of the members, by agent; those that were expelled are none.

    Args:
        roster: the rows that a coordinator has published.
        devices: as `Device.to_json` has them.
        between_runs: no coordinator keeps the rows right, so the devices' word counts, and of the roster only what is
            `REMEMBERED`.
    """
    rows: dict[str, dict[str, Any]] = {}
    for agent in sorted({*roster, *devices}):
        known, device = roster.get(agent), devices.get(agent)
        row = {**NOT_KNOWN, **(known or {})}
        # a broker may have lost its status
        if (row["problem"] if device is None else device["state"]) in ("expelled", EXPELLED):
            continue
        if between_runs:
            row = {**NOT_KNOWN, **{name: row[name] for name in REMEMBERED}}
            row |= {"state": UNKNOWN} if device is None else device
            row["online"] = row["state"] in ("idle", "busy", "excluded")
        elif device is not None:
            row |= {name: device[name] for name in OWN_WORD if device[name] is not None}
        rows[agent] = row
    return rows
