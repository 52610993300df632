"""The devices' word on one publication, from their own statuses: who took it over, who rejected it, who has not answered. Pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from covey.shared.sentences import some
from covey.shared.wire.documents import AgentStatus

MAX_NAMES = 5  # of devices in a sentence
REJECTED, NOT_YET = 1, 3  # exit codes


@dataclass(frozen=True)
class DeploymentOutcome:
    """What each device has made of a publication. Devices without `--model-dir` take no part in it."""

    taken: Sequence[str] = ()  # they use it
    rejected: Mapping[str, str] = field(default_factory=dict)  # with their newest decision
    undecided: Sequence[str] = ()  # online, and have not judged it yet
    offline: Sequence[str] = ()  # they judge it when they connect again, if they keep models

    @property
    def is_refused(self) -> bool:
        """Whether every device that has answered keeps another model."""
        return bool(self.rejected) and not self.taken

    @property
    def is_open(self) -> bool:
        """Whether a device that is there does not use it."""
        return bool(self.rejected or self.undecided)

    @property
    def exit_code(self) -> int:
        """1: a device rejected the models; 3: none did, and some have not answered; 0: all took them over."""
        if self.rejected:
            return REJECTED
        return NOT_YET if self.undecided or self.offline else 0

    @property
    def sentence(self) -> str:
        """For a person."""
        rejected = list(self.rejected)
        parts = [f"{len(self.taken)} took it over", f"{len(rejected)} rejected it{_of(rejected)}"]
        if self.undecided:
            parts.append(f"{len(self.undecided)} have not answered yet{_of(self.undecided)}")
        if self.offline:
            parts.append(f"{len(self.offline)} are offline{_of(self.offline)}")
        return "devices: " + ", ".join(parts)

    def after(self, earlier: DeploymentOutcome | None) -> DeploymentOutcome:
        """This outcome after an earlier one. A device that took the version then has not rejected it since: it moved on."""
        before = set() if earlier is None else set(earlier.taken)
        rejected = {agent: why for agent, why in self.rejected.items() if agent not in before}
        return replace(self, taken=sorted({*self.taken, *before}), rejected=rejected)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def _of(agents: Sequence[str]) -> str:
    return f" ({some(agents, MAX_NAMES)})" if agents else ""


def outcome_of(
    statuses: Mapping[str, AgentStatus],
    version: tuple[str, int],
    serial: int,
    devices: Collection[str] = (),
) -> DeploymentOutcome:
    """The outcome of a publication.

    Args:
        statuses: the newest of each device.
        version: that was published, as its run and round.
        serial: of the publication.
        devices: that it is for; empty for all.
    """
    taken: list[str] = []
    rejected: dict[str, str] = {}
    undecided: list[str] = []
    offline: list[str] = []
    for agent, status in sorted(statuses.items()):
        if devices and agent not in devices:
            continue
        if not status.online:
            offline.append(agent)
        elif status.model is None:
            continue
        elif status.model.serial < serial:
            undecided.append(agent)
        elif (status.model.run, status.model.round) == version:
            taken.append(agent)
        else:
            rejected[agent] = status.model.note
    return DeploymentOutcome(taken, rejected, undecided, offline)


def sample(devices: Iterable[str], share: float, version: str) -> list[str]:
    """A share of devices, at least one. A larger share of the same version has the devices of a smaller one.

    Args:
        devices: all that could try it.
        share: above 0, at most 1.
        version: names what is tried: another version meets other devices first.
    """
    ranked = sorted(
        devices, key=lambda agent: hashlib.blake2b(f"{version}/{agent}".encode()).digest()
    )
    return sorted(ranked[: max(1, math.ceil(share * len(ranked) - 1e-9))])
