"""Milestones of a run, for callbacks and experiment trackers: a round has ended, all agents were evaluated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from covey.coordinator.record.notices import Notice, PhaseFolded
from covey.coordinator.view.lines import Averages, PhaseLine, Values, reduced

MAX_CLUSTERS = 20  # whose figures are shown one by one: a tracker draws a chart for each


@dataclass(frozen=True)
class RoundEnded:
    """A training round is over, and its reports are in the models.

    Attributes:
        round: How many rounds are over, so the first round that ends has 1.
        loss: Mean training loss over the round's examples; None if no agent trained.
        reported: How many agents reported.
        missing: How many were invited and did not report.
        cluster_sizes: Agents by cluster id. Empty for a method without hard clusters.
        moved: How many agents are in another cluster than before.
        seconds: From the first order to the end of the round.
        bytes_down: Sent to agents since the run began: MQTT packets, or without a broker the models alone.
        bytes_up: The same from agents, without a broker their vectors as float32.

    Example:
        >>> event = covey.RoundEnded(round=1, loss=0.5, reported=10, missing=2)
        >>> event.reported / (event.reported + event.missing) > 0.8
        True
    """

    round: int
    loss: float | None
    reported: int
    missing: int
    cluster_sizes: Mapping[str, int] = field(default_factory=dict)
    moved: int = 0
    seconds: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0

    def figures(self) -> dict[str, float]:
        """The figures of the round by name, as trackers show them."""
        clusters = len(self.cluster_sizes)
        mb_down = self.bytes_down / 1e6
        mb_up = self.bytes_up / 1e6
        found: dict[str, float] = {
            "round/reported": self.reported,
            "round/missing": self.missing,
            "round/clusters": clusters,
            "round/moved": self.moved,
            "round/seconds": self.seconds,
            "round/mb_down": mb_down,
            "round/mb_up": mb_up,
        }
        if self.loss is not None:
            found["round/loss"] = self.loss
        if clusters <= MAX_CLUSTERS:
            for cluster, size in self.cluster_sizes.items():
                found[f"cluster-{cluster}/agents"] = size
        return found


@dataclass(frozen=True)
class Evaluated:
    """All agents that are present were evaluated.

    The last evaluation of a run comes three times, as devices weigh what they use again with the fleet's weights; the
    newest one counts.

    Attributes:
        round: How many rounds are over.
        modes: Averages by mode ("server", "tuned", "last"), measure ("accuracy", "rmse", ...) and average
            ("macro", "micro"). Accuracies are shares between 0 and 1.
        by_cluster: Means of the served models over the agents of each cluster, by cluster id and measure.

    Example:
        >>> event = covey.Evaluated(round=3, modes={"server": {"accuracy": {"macro": 0.9}}})
        >>> event.figure("server", "accuracy")
        0.9
    """

    round: int
    modes: Averages
    by_cluster: Mapping[str, Values] = field(default_factory=dict)

    def figure(self, mode: str, measure: str, average: str = "macro") -> float | None:
        """One average; None if the run does not have it."""
        if mode not in self.modes:
            return None
        of_mode = self.modes[mode]
        if measure not in of_mode:
            return None
        return of_mode[measure].get(average)

    def figures(self) -> dict[str, float]:
        """All averages by a name such as "server/accuracy/macro" or "cluster-0/accuracy", as trackers show them."""
        found = flat(self.modes)
        if len(self.by_cluster) <= MAX_CLUSTERS:
            for cluster, means in self.by_cluster.items():
                for measure, mean in means.items():
                    found[f"cluster-{cluster}/{measure}"] = mean
        return found


Milestone = RoundEnded | Evaluated


def milestones(notice: Notice) -> Iterator[Milestone]:
    """The milestones that a notice of a run reports: none for most notices."""
    if isinstance(notice, PhaseFolded):
        yield from recorded_milestones(notice.to_json())


def recorded_milestones(row: Mapping[str, Any]) -> Iterator[Milestone]:
    """The milestones that a line of `rounds.jsonl` reports: none unless a phase was folded."""
    line = reduced(row)
    if not isinstance(line, PhaseLine):
        return
    if row.get("evaluation") is not None:
        yield Evaluated(line.rounds, line.evaluation, line.by_cluster)
    if line.ends_round:
        yield RoundEnded(
            round=line.rounds,
            loss=line.loss,
            reported=line.reported,
            missing=line.missing,
            cluster_sizes=line.sizes,
            moved=line.moved,
            seconds=line.seconds,
            bytes_down=line.sent,
            bytes_up=line.received,
        )


def flat(modes: Averages) -> dict[str, float]:
    """Averages by one name each: mode, measure and average, with slashes between them."""
    found = {}
    for mode, measures in modes.items():
        for measure, averages in measures.items():
            for average, figure in averages.items():
                name = f"{mode}/{measure}/{average}"
                found[name] = figure
    return found
