"""What a run leaves behind: a line per phase, the result, a table of agents, a file per cluster."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from covey.coordinator.run.disk_space import Room
from covey.coordinator.run.modes import KEPT_MODES
from covey.coordinator.run.notices import Means
from covey.coordinator.run.report_checks import EVALUATE
from covey.shared import json_text
from covey.shared.errors import UserError
from covey.shared.files import write_atomically
from covey.shared.numerics import metrics
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import ClientId, Reports

FIGURES = ("accuracy", "f1", "loss", "mse")
RESULT = (
    "name",
    "method",
    "agents",
    "clusters",
    "accuracy",
    "ari",
    "rounds",
    "bytes",
    "seconds",
)  # what tables show
MIXED = "mixed"  # in place of a kind of device: there were several
NOTHING_MIXED: Mapping[str, Any] = {
    "membership": None,
    "cluster_accuracy": None,
}  # agents hold no known mixtures


class JsonlFile:
    """A file of JSON lines that is cut back to what the checkpoint knows when a run is resumed.

    `lost`: lines that the checkpoint knows and the file has not, after a power cut or a damage.
    """

    def __init__(self, path: Path, count: int, room: Room | None = None) -> None:
        self.path = path
        self._room = room or Room(path.parent)
        kept = path.read_bytes().splitlines(keepends=True)[:count] if path.exists() else []
        kept = [line for line in kept if line.endswith(b"\n")]
        self.count, self.lost = len(kept), count - len(kept)
        self._room.write(lambda: write_atomically(path, b"".join(kept)))

    def append(self, row: Mapping[str, Any]) -> None:
        line = json.dumps(row, allow_nan=False).encode() + b"\n"
        self._room.write(lambda: self._append(line))
        self.count += 1

    def _append(self, line: bytes) -> None:
        """Add a line whole, or leave the file as it was."""
        with self.path.open("ab", buffering=0) as file:
            size = file.tell()
            try:
                written = file.write(line)
                if written != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
                os.fsync(file.fileno())
            except OSError:
                file.truncate(size)
                raise


def scenario_digest(scenario: Scenario) -> str:
    """Names what a checkpoint belongs to: all that can change a model. Left out are the broker's address, what the run is
    compared with, and what is kept for pictures."""
    text = scenario.model_dump_json(exclude={"broker", "compare", "records"})
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def sizes(assignment: Mapping[ClientId, int]) -> dict[str, int]:
    """Agents per cluster, by cluster id."""
    return {str(cluster): count for cluster, count in sorted(Counter(assignment.values()).items())}


def counted(devices: Mapping[ClientId, str]) -> dict[str, int]:
    """How many of these agents computed on each kind of device."""
    return dict(sorted(Counter(devices.values()).items()))


def one_device(devices: Iterable[str]) -> str | None:
    """The kind of device that all these are, MIXED where they differ, None where there are none.

    Bytes repeat on one kind of device only, so figures of a mixed fleet depend on which agents had which.
    """
    kinds = set(devices)
    if len(kinds) > 1:
        return MIXED
    return kinds.pop() if kinds else None


def best_so_far(best: dict[str, float] | None, numbers: Mapping[str, Any]) -> dict[str, float]:
    """The best and the newest test figures of an agent right after its local training."""
    newest: dict[str, float] = dict(numbers["track"])
    if best is None or not best["n"]:
        return newest
    if not newest["n"]:
        return best
    if "accuracy" in newest:
        is_better = newest["accuracy"] > best["accuracy"]
    else:
        is_better = newest["mse"] <= best["mse"]
    return newest if is_better else best


def by_mode(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """An agent's figures. E-last of one that has trained in no phase at all is what it would use: E-server."""
    modes = {mode: numbers[mode] for mode in KEPT_MODES if numbers.get(mode)}
    return {"last": modes["server"], **modes} if "server" in modes else modes


def means(
    reports: Reports,
    phase: str,
    weight: str,
    newcomers: Collection[ClientId] = frozenset(),
    drawn: Collection[ClientId] = frozenset(),
) -> Means:
    """Averages over the reporters of one phase: of an evaluation by mode, of any other phase the training loss.

    Args:
        reports: what the reporters sent, by agent.
        phase: the name of the phase.
        weight: `evaluation.weight` of the scenario: which samples weigh an agent in micro averages.
        newcomers: agents that came after the last round; their figures are averaged apart.
        drawn: agents that a training round has drawn so far; E-last of the others is given once more, alone.
    """
    if phase == EVALUATE:
        return _evaluation_means(reports, weight, newcomers, drawn)
    trained = [report for _, report in reports if report.steps]
    amount = sum(report.examples for report in trained)
    if not amount:
        return Means()
    loss = sum(report.loss * report.examples for report in trained) / amount
    return Means(loss=loss, tracked=_tracked_means(reports, weight))


def _evaluation_means(
    reports: Reports,
    weight: str,
    newcomers: Collection[ClientId],
    drawn: Collection[ClientId],
) -> Means:
    train = _train_samples(reports)
    federated: dict[ClientId, dict[str, Any]] = {}
    late: dict[ClientId, dict[str, Any]] = {}
    for client, report in reports:
        group = late if client in newcomers else federated
        group[client] = by_mode(report.numbers)
    return Means(
        evaluation=averages(federated, train, weight),
        undrawn=last_of_undrawn(federated, drawn, train, weight),
        newcomers=averages(dict(sorted(late.items())), train, weight) if late else None,
    )


def _tracked_means(reports: Reports, weight: str) -> dict[str, Any] | None:
    """Test figures right after local training: averages, and the accuracy of each agent."""
    tracked: dict[ClientId, dict[str, Any]] = {}
    for client, report in reports:
        if "track" in report.numbers:
            tracked[client] = {"trained": report.numbers["track"]}
    if not tracked:
        return None
    means: dict[str, Any] = averages(tracked, _train_samples(reports), weight)["trained"]
    means["by_agent"] = {client: one["trained"].get("accuracy") for client, one in tracked.items()}
    return means


def _train_samples(reports: Reports) -> dict[ClientId, int]:
    return {client: report.examples for client, report in reports}


def averages(
    evaluation: Mapping[ClientId, Mapping[str, Any]],
    train_samples: Mapping[ClientId, int],
    weight: str,
) -> dict[str, Any]:
    """{mode: {figure: {"micro", "macro"}, "agents"}} over the agents that have the mode."""
    modes: dict[str, None] = {}  # in the order of their first appearance
    for figures in evaluation.values():
        modes |= dict.fromkeys(figures)
    return {mode: _average(mode, evaluation, train_samples, weight) for mode in modes}


def last_of_undrawn(
    figures: Mapping[ClientId, Mapping[str, Any]],
    drawn: Collection[ClientId],
    train_samples: Mapping[ClientId, int],
    weight: str,
) -> dict[str, Any]:
    """E-last over the agents that no training round has drawn yet, and how many of these have test data ("agents").

    Their models come from a phase before the rounds; without such a phase, E-last is E-server.
    """
    undrawn = {client: one for client, one in figures.items() if client not in drawn}
    by_mode = averages(undrawn, train_samples, weight)
    nobody: dict[str, Any] = {"agents": 0}
    row: dict[str, Any] = by_mode.get("last", nobody)
    return row


def _average(
    mode: str,
    evaluation: Mapping[ClientId, Mapping[str, Any]],
    train_samples: Mapping[ClientId, int],
    weight: str,
) -> dict[str, Any]:
    having: dict[ClientId, Mapping[str, Any]] = {}  # those with test data
    for client, modes in evaluation.items():
        figures = modes.get(mode)
        if figures and figures["n"] > 0:
            having[client] = figures
    amounts: list[float] = []
    for client, figures in having.items():
        extra = train_samples.get(client, 0) if weight == "total" else 0
        amounts.append(float(figures["n"] + extra))
    row: dict[str, Any] = {"agents": len(having)}
    for figure in FIGURES:
        values = [figures[figure] for figures in having.values() if figure in figures]
        if values:
            row[figure] = {"micro": metrics.micro(values, amounts), "macro": metrics.macro(values)}
    return row


def mbit_per_agent(traffic: Mapping[str, int], agents: int) -> float:
    """Megabits of float32 values, both ways, per agent of the federation; no overhead, evaluation left out, as papers count it."""
    down = traffic.get("down_vectors", 0) - traffic.get("evaluation_vectors", 0)
    up = traffic.get("up_vectors", 0)
    bits = 32 * (down + up)
    return bits / 1e6 / max(agents, 1)


def rounds_done(line: Mapping[str, Any]) -> int:
    """Rounds that were over after a phase, by its line."""
    return int(line["round"]) + (1 if line["ends_round"] else 0)


def lines(folder: Path) -> list[dict[str, Any]]:
    """The record of a run, a line per phase and event. Raises UserError where it is damaged."""
    path = folder / "rounds.jsonl"
    return [
        _row(text, f"{path}, line {i}", "event")
        for i, text in enumerate(path.read_bytes().splitlines(), 1)
    ]


def newest_privacy(folder: Path) -> dict[str, Any] | None:
    """The privacy account as the record has it last; None where there is no record or no account."""
    if not (folder / "rounds.jsonl").exists():
        return None
    accounts = [row["privacy"] for row in lines(folder) if "privacy" in row]
    return accounts[-1] if accounts else None


def finished(folder: Path) -> dict[str, Any]:
    """The result of a finished run. Raises UserError where there is none, or a damaged one."""
    path = folder / "result.json"
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{folder}: no result.json is here; has the run been finished?") from None
    return _row(text, str(path), *RESULT)


def _row(text: bytes, where: str, *keys: str) -> dict[str, Any]:
    """One JSON object of a run's files that has these keys."""
    try:
        row: dict[str, Any] = json_text.loads(text)
    except ValueError as error:  # no JSON, or no text at all
        raise _damaged(where, f"no JSON ({error})") from None
    missing = [key for key in keys if key not in row] if isinstance(row, dict) else list(keys)
    if missing:
        raise _damaged(where, f"{', '.join(missing)} is missing")
    return row


def _damaged(where: str, why: str) -> UserError:
    return UserError(
        f"{where}: {why}; the file was cut short or changed: restore it, or run the scenario again"
    )
