"""What the limits of managed brokers mean for a run: how long its messages take at least, and how many are retained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from covey.coordinator.plan.cost import PhaseCost
from covey.shared.mqtt.profiles import Profile


@dataclass(frozen=True)
class BrokerSeconds:
    """What the limits of a managed broker mean for a run."""

    profile: str
    seconds: float  # that its limits take at least, of all phases together
    retained: int  # messages that the models of a phase take
    most_retained: int  # that the broker keeps

    @property
    def text(self) -> str:
        """For a table."""
        text = f"at least {_duration(self.seconds)}"
        if self.retained > self.most_retained:
            text += f"; its models take {self.retained} of {self.most_retained} retained messages"
        return text


def broker_seconds(phases: Sequence[PhaseCost], part_bytes: int, profile: Profile) -> BrokerSeconds:
    """How long a managed broker takes for the messages of a run, by its limits alone.

    In a phase the coordinator publishes models and orders, then devices fetch them, then all of them send reports.

    Args:
        phases: of the plan.
        part_bytes: of the scenario.
        profile: of the broker.
    """
    part = min(part_bytes, profile.part_bytes)
    seconds, retained = 0.0, 0
    for phase in phases:
        published = math.ceil(phase.published_bytes / part)
        fetched, sent = math.ceil(phase.down_bytes / part), math.ceil(phase.up_bytes / part)
        out_s = profile.seconds(phase.published_bytes, published + phase.invited)
        all_down = phase.invited * phase.down_bytes / profile.all_bytes_per_s
        all_up = phase.invited * phase.up_bytes / profile.all_bytes_per_s
        packets = 2 * math.ceil(fetched / profile.filters)  # each names the next parts, or the last
        down_s = max(all_down, packets / profile.subscribes_per_s)
        up_s = max(all_up, profile.seconds(phase.up_bytes, sent))
        seconds += phase.times * (out_s + down_s + up_s)
        retained = max(retained, published + phase.invited)
    return BrokerSeconds(profile.name, seconds, retained, profile.retained_messages)


def _duration(seconds: float) -> str:
    """Seconds in three digits and a usual unit."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h"
