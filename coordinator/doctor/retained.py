"""The list from what a broker retains: the devices' own word, and what the coordinator has published. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from covey.coordinator.doctor.devices import Broker, Seen
from covey.coordinator.doctor.examine import Facts, examine
from covey.coordinator.doctor.odd import Odd, read_odd
from covey.shared.wire.deployments import Deployment
from covey.shared.wire.documents import AgentStatus, CoordinatorStatus, RosterMessage


def of_retained(
    now: float,
    statuses: Mapping[str, AgentStatus],
    roster: RosterMessage | None,
    coordinator: CoordinatorStatus | None,
    *,
    between_runs: bool,
    deployment: Deployment | None = None,
    elsewhere: Mapping[str, str] | None = None,
    until: float | None = None,
) -> list[Odd]:
    """The list at one moment.

    Args:
        now: in seconds since 1970.
        statuses: the newest of each device.
        roster: of the run at work, or of the last one.
        coordinator: its status.
        between_runs: no coordinator is at work. Of its list only that counts which no device states itself.
        deployment: in force for all devices.
        elsewhere: agents of federations without a coordinator, with the name of theirs.
        until: when the certificate of the broker ends.
    """
    known = [] if roster is None else read_odd(roster.odd)
    rows = {} if roster is None else roster.agents
    if between_runs:
        known = _remembered(known)
    seen = Seen(
        now,
        statuses,
        {agent: {"seen": row.get("seen")} for agent, row in rows.items()},
        coordinator,
        deployment,
        elsewhere or {},
        Broker(until=until),
    )
    return examine(Facts(seen=seen, known=known))


def _remembered(known: Sequence[Odd]) -> list[Odd]:
    """Of a coordinator's list, all that no device states itself, marked as of the last run."""
    return [replace(one, what=f"{one.what} (last run)") for one in known if one.facts.of_run]
