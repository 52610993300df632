"""Given groups: one FedAvg for each group of agents that the scenario names, such as places or models of device.

No paper: a reference for found clusters where groups are known beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from covey.shared.numerics.vectors import Vector
from covey.shared.strategies.base import (
    MODEL,
    Buffering,
    ClientId,
    Facts,
    Order,
    Phase,
    PrivacyFacet,
    Reports,
    Sealed,
    Setup,
    Shown,
    Sums,
    Terms,
    Trainings,
    View,
)
from covey.shared.strategies.bases.hard import Clustered, ManyModels, joined, sizes
from covey.shared.strategies.bases.single import sample_term
from covey.shared.strategies.client_half import ClientState, Job, Local, Report, trained_report

OTHERS = "others"  # the name of the group of agents that no pattern fits
# lengths stand apart: as repetitions in the patterns they would take 24 MB of each process
GroupName = Annotated[str, Field(pattern=r"^[\w .-]+$", min_length=1, max_length=64)]
Pattern = Annotated[str, Field(pattern=r"^[\w.*?\[\]!-]+$", min_length=1, max_length=128)]


class Given(ManyModels[Clustered]):
    """One model for each group that the scenario names."""

    facts: ClassVar[Facts] = Facts(sealed=Sealed())
    summary: ClassVar[str] = "one FedAvg per group of agents that you name"
    source: ClassVar[str] = "no paper: a reference for found groups"

    name: Literal["given"] = "given"
    groups: dict[GroupName, Annotated[tuple[Pattern, ...], Field(min_length=1)]] = Field(
        {},
        description="Ids of agents by group, with * for any characters: {north: [gw-0*], south: [gw-1*, gw-20]}. "
        "An agent belongs to the first group that fits; those that fit none form one more, by default all.",
    )

    @field_validator("groups")
    @classmethod
    def _groups_differ(cls, groups: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        owners: dict[str, str] = {}
        for group, patterns in groups.items():
            for pattern in patterns:
                if owners.setdefault(pattern, group) != group:
                    raise ValueError(
                        f"{pattern!r} is in {owners[pattern]!r} and in {group!r}; an agent is in one group: remove one"
                    )
        return groups

    def cluster_of(self, client: ClientId) -> int:
        """The place of the first group that fits, or of the group of all others."""
        for place, patterns in enumerate(self.groups.values()):
            if any(fnmatchcase(client, pattern) for pattern in patterns):
                return place
        return len(self.groups)

    def init(self, setup: Setup) -> Clustered:
        start = setup.starts[0]
        return Clustered(start, models=(start,) * (len(self.groups) + 1))

    def plan(self, state: Clustered, view: View) -> Phase:
        return Phase(sizes={MODEL: state.start.size})

    def order(self, state: Clustered, phase: Phase, client: ClientId) -> Order:
        return self.serve(state, client)

    def work(self, job: Job, local: Local, client_state: ClientState) -> tuple[Report, ClientState]:
        return trained_report(local.train(job.models[0]), local), client_state

    def terms(self, state: Clustered, phase: Phase, client: ClientId, report: Report) -> Terms:
        return sample_term(report, str(self.cluster_of(client)))

    def fold(self, state: Clustered, phase: Phase, sums: Sums, reports: Reports) -> Clustered:
        models = [sums.mean(str(k), otherwise=model) for k, model in enumerate(state.models)]
        members = {client: self.cluster_of(client) for client, _ in reports}
        return joined(replace(state, models=tuple(models)), members)

    def serve(self, state: Clustered, client: ClientId) -> Order:
        cluster = self.cluster_of(client)
        return Order(models=(str(cluster),), cluster=cluster)

    def clusters(self, state: Clustered) -> tuple[Vector, ...]:
        return state.models[: self._used(state)]

    def shown(self, state: Clustered) -> Shown:
        used = self._used(state)
        names = [*self.groups, OTHERS][:used]
        facts: Mapping[str, object] = {
            "clusters": used,
            "sizes": sizes(state)[:used],
            "groups": names,
        }
        return Shown(facts)

    def _used(self, state: Clustered) -> int:
        """The number of groups: the last one, of all others, counts once it has a member, or if it is the only one."""
        has_others = not self.groups or len(self.groups) in state.assign.values()
        return len(self.groups) + has_others

    @property
    def buffer(self) -> Buffering:
        return Buffering(cluster_of=lambda _, client, __: self.cluster_of(client))

    @property
    def privacy(self) -> PrivacyFacet:
        return PrivacyFacet(Trainings(), "assigned")
