"""Finished runs as curves: what their records say over the rounds and over the agents. Pure but for reading the folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.display import MODES, labels
from coordinator.records import lines, mbit_per_agent, rounds_done

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Evaluated:
    """Where a run stood when everybody was evaluated: rounds done, Mbit per agent until then, the macro average of the
    figure in each mode."""

    rounds: int
    mbit: float
    figures: Mapping[str, float]


@dataclass(frozen=True)
class Curves:
    """One run. `figure` is accuracy, or mse for a regression task; `sizes` are agents per cluster after so many rounds;
    `agents` are (cluster, truth, figure in E-server), each None where it is unknown."""

    label: str
    result: Mapping[str, Any]
    figure: str
    loss: Points
    evaluated: Sequence[Evaluated]
    sizes: Sequence[tuple[int, Mapping[str, int]]]
    agents: Sequence[tuple[int | None, int | None, float | None]]

    def over_rounds(self, mode: str) -> Points:
        return [(float(one.rounds), one.figures[mode]) for one in self.evaluated if mode in one.figures]

    def over_traffic(self, mode: str) -> Points:
        return [(one.mbit, one.figures[mode]) for one in self.evaluated if mode in one.figures]

    def by_truth(self) -> Mapping[tuple[int, int], int]:
        """How many agents of each planted group are in each cluster: {(cluster, group): agents}."""
        return Counter(
            (cluster, truth) for cluster, truth, _ in self.agents if cluster is not None and truth is not None
        )


def curves(folders: Sequence[Path], results: Sequence[Mapping[str, Any]]) -> list[Curves]:
    """The finished runs in these folders, which have these results."""
    return [
        _curves(label, result, folder)
        for label, result, folder in zip(labels(folders, results), results, folders, strict=True)
    ]


def _curves(label: str, result: Mapping[str, Any], folder: Path) -> Curves:
    phases = [line for line in lines(folder) if line["event"] == "phase"]
    figure = "accuracy" if "accuracy" in result["accuracy"].get("server", {}) else "mse"
    return Curves(
        label,
        result,
        figure,
        [(rounds_done(line), line["loss"]) for line in phases if "loss" in line and line["ends_round"]],
        list(_evaluated(phases, figure, result["agents"])),
        [(rounds_done(line), line["cluster_sizes"]) for line in phases if line["cluster_sizes"]],
        _agents(folder / "agents.parquet", figure),
    )


def _evaluated(phases: Iterable[Mapping[str, Any]], figure: str, agents: int) -> Iterable[Evaluated]:
    for line in phases:
        modes = line.get("evaluation", {})
        figures = {mode: modes[mode][figure]["macro"] for mode in MODES if figure in modes.get(mode, {})}
        if figures:
            yield Evaluated(rounds_done(line), mbit_per_agent(line["traffic"], agents), figures)


def _agents(path: Path, figure: str) -> list[tuple[int | None, int | None, float | None]]:
    from pyarrow import parquet

    wanted = ["cluster", "truth", f"server_{figure}"]
    columns = parquet.read_table(path, columns=wanted).to_pydict()
    return list(zip(*(columns[name] for name in wanted), strict=True))
