"""What a run leaves behind: a line per phase, the result, a table of agents, a file per cluster."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.shared.errors import UserError
from covey.shared.storage import json_text
from covey.shared.storage.journal import Journal

if TYPE_CHECKING:  # who looks at a run has no use for methods and scenarios
    from covey.coordinator.disk.space import Room
    from covey.coordinator.record.notices import Record
    from covey.shared.scenario.scenario import Scenario
    from covey.shared.strategies.base import ClientId

Row = dict[str, Any]  # a JSON object: a line of the record, or figures by their names

DEPTH = 4  # of the folder of a run within that of all runs: comparison, partition, method, seed
PAGE = "report.html"  # in the folder of a run or a comparison
FILE = "rounds.jsonl"
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


def round_lines(folder: Path, keep: int, room: Room) -> Journal[Record]:
    """`rounds.jsonl` of a run, to continue it after the lines that the checkpoint knows."""
    return Journal(folder / FILE, _line_of, keep=keep, is_sound=_is_object, write=room.write)


def _line_of(record: Record) -> bytes:
    return json.dumps(record.to_json(), allow_nan=False).encode()


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json_text.loads(line), dict)
    except json_text.JsonError:
        return False


def scenario_digest(scenario: Scenario) -> str:
    """Names what a checkpoint belongs to: all that can change a model.

    Left out are the broker's address, what the run is compared with, what is kept for pictures, and the number of
    training processes.
    """
    fleet = scenario.fleet
    if fleet is not None:
        # the default: a scenario that leaves the number out has the digest that its runs have stored
        fleet = fleet.model_copy(update={"workers": 0})
        scenario = scenario.model_copy(update={"fleet": fleet})
    content = scenario.model_dump_json(exclude={"broker", "brokers", "compare", "records"}).encode()
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def sizes(assignment: Mapping[ClientId, int], gone: Collection[ClientId] = ()) -> dict[str, int]:
    """Agents per cluster, by cluster id; those that are gone count in none."""
    counts = Counter(cluster for agent, cluster in assignment.items() if agent not in gone)
    by_cluster: dict[str, int] = {}
    for cluster in sorted(counts):
        name = str(cluster)
        by_cluster[name] = counts[cluster]
    return by_cluster


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


def mbit_per_agent(traffic: Mapping[str, int], agents: int) -> float:
    """Megabits of float32 values, both ways, per agent of the federation; no overhead, evaluation left out, as papers count it."""
    down = traffic.get("down_vectors", 0)
    bits = 32 * (down - traffic.get("evaluation_vectors", 0) + traffic.get("up_vectors", 0))
    return bits / 1e6 / max(agents, 1)


def rounds_done(line: Mapping[str, Any]) -> int:
    """Rounds that were over after a phase, by its line."""
    done = int(line["round"])
    if line["ends_round"]:
        done += 1
    return done


def lines(folder: Path) -> list[Row]:
    """The record of a run, a line per phase and event. Raises UserError where it is damaged."""
    path = folder / FILE
    content = path.read_bytes()
    lines = enumerate(content.splitlines(), start=1)
    return [_row(text, f"{path}, line {number}", "event") for number, text in lines]


def newest_privacy(folder: Path) -> Row | None:
    """The privacy account as the record has it last; None where there is no record or no account."""
    if not (folder / FILE).exists():
        return None
    newest: Row | None = None
    for row in lines(folder):
        newest = row.get("privacy", newest)
    return newest


def finished(folder: Path) -> Row:
    """The result of a finished run. Raises UserError where there is none, or a damaged one."""
    path = folder / "result.json"
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise no_run(
            folder, "no result.json in it: the run is not finished, or this is not a run's folder"
        ) from None
    return _row(text, str(path), *RESULT)


def no_run(folder: Path, why: str) -> UserError:
    """The refusal of a folder that does not hold what a run leaves."""
    if not folder.is_dir():
        why = "no such folder"
    return UserError(
        f"{folder}: {why}; expected the folder of a run; `coordinator ls FOLDER` lists those in a folder"
    )


def _row(text: bytes, where: str, *keys: str) -> Row:
    """One JSON object of a run's files that has these keys."""
    try:
        row: Row = json_text.loads(text)
    except ValueError as error:  # no JSON, or no text at all
        raise _damaged(where, f"not JSON ({error})") from None
    present = row if isinstance(row, dict) else {}
    missing = [key for key in keys if key not in present]
    if missing:
        names = ", ".join(missing)
        raise _damaged(where, f"{names} is missing")
    return row


def _damaged(where: str, why: str) -> UserError:
    return UserError(
        f"{where}: {why}; the file was cut short or changed: restore it, or run the scenario again"
    )


def run_folders(folder: Path) -> list[Path]:
    """The folders of runs in a folder, by name; a comparison has its runs some folders below."""
    found: set[Path] = set()
    for depth in range(1, DEPTH + 1):
        found.update(path.parent for path in folder.glob("*/" * depth + "scenario.yaml"))
    return sorted(found)
