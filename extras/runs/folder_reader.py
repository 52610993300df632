"""Reads a run's folder again and again while the run writes it; only what has changed is read."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from covey.coordinator.odd import Odd, read_odd
from covey.coordinator.record.roster_files import roster_file
from covey.coordinator.view.lines import USED, Line, reduced
from covey.extras.runs.state import TOOK_PART, RunPlan, Sources
from covey.shared.errors import DecodeError
from covey.shared.numerics.measures import is_regression, main_measure
from covey.shared.storage import json_text
from covey.shared.wire.documents import CoordinatorStatus, RosterMessage
from covey.shared.wire.roster_view import RosterView

MAX_AUTO_OVER_SELECT = 2.0  # of `rounds.over_select: auto`

Stamp = tuple[
    int, int
]  # time of the last change (ns) and size: another one means that the file was written


class FolderReader:
    """The newest contents of one run's folder. A folder or a file that does not exist yet is no error."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plan = RunPlan()
        self.lines: list[Line] = []
        self.roster: RosterMessage | None = None
        self._pages = RosterView()  # of which `roster` consists
        self.status: CoordinatorStatus | None = None
        self.finished = False
        self.updated = 0.0  # when the run last wrote one of its files, in seconds since 1970
        self._odd: list[Odd] = []
        self._stamps: dict[str, Stamp] = {}  # of the files as they were read last
        self._offset = 0  # bytes of the record that were read

    def __repr__(self) -> str:
        return f"FolderReader({self.folder}: {len(self.lines)} lines)"

    @property
    def sources(self) -> Sources:
        """All that was read so far."""
        return Sources(
            self.plan,
            tuple(self.lines),
            self.status,
            self.roster,
            finished=self.finished,
            odd=self._odd,
            updated=self.updated,
        )

    def poll(self) -> bool:
        """Read what is new; False if nothing is."""
        news = [
            self._read_plan(),
            self._read_record(),
            self._read_roster(),
            self._read_status(),
            self._look_for_result(),
        ]
        return any(news)

    def read_agents(self) -> None:
        """The agents of a run that is over and had no broker, and so no roster, from its table."""
        if not self.finished or self.roster is not None:
            return
        from pyarrow import parquet

        with suppress(OSError, ValueError):
            rows = parquet.read_table(self.folder / "agents.parquet").to_pylist()
            measure = main_measure(regression=bool(self.plan.regression)).name
            found = {row["agent"]: _took_part(row, measure) for row in rows}
            self.roster = RosterMessage(agents=found)

    def _changed(self, name: str) -> bytes | None:
        """The content of a file that was written since it was read last, else None."""
        path = self.folder / name
        try:
            stat = path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
            if self._stamps.get(name) == stamp:
                return None
            content = path.read_bytes()
        except OSError:
            return None
        self._stamps[name] = stamp
        self.updated = max(self.updated, stat.st_mtime)
        return content

    def _read_plan(self) -> bool:
        content = self._changed("scenario.yaml")
        if content is None:
            return False
        try:
            scenario = yaml.safe_load(content)
        except yaml.YAMLError:
            return False
        self.plan = plan_of(scenario)
        return True

    def _read_record(self) -> bool:
        """The complete lines that were added. A record that became shorter is read again: the run was resumed."""
        path = self.folder / "rounds.jsonl"
        try:
            stat = path.stat()
            if stat.st_size < self._offset:
                self._offset = 0
                self.lines = []
            if stat.st_size == self._offset:
                return False
            with path.open("rb") as file:
                file.seek(self._offset)
                content = file.read()
        except OSError:
            return False
        end = content.rfind(b"\n") + 1
        self._offset += end
        self.updated = max(self.updated, stat.st_mtime)
        for text in content[:end].splitlines():
            line = _line(text)
            if line is not None:
                self.lines.append(line)
        return end > 0

    def _read_roster(self) -> bool:
        """The pages that were written; a fleet of some hundred agents has one."""
        has_news = self._read_page(0)
        first = self._pages.first
        if first is not None:
            for number in range(1, first.pages):
                has_news |= self._read_page(number)
        if has_news:
            self.roster = self._pages.message
            if self.roster is not None and not self.finished:
                self._odd = read_odd(self.roster.odd)
        return has_news

    def _read_page(self, number: int) -> bool:
        content = self._changed(roster_file(self.folder, number).name)
        if content is None:
            return False
        try:
            self._pages.take_page(number, RosterMessage.from_bytes(content))
        except DecodeError:
            return False
        return True

    def _read_status(self) -> bool:
        content = self._changed("status.json")
        if content is None:
            return False
        try:
            self.status = CoordinatorStatus.from_bytes(content)
        except DecodeError:
            return False
        return True

    def _look_for_result(self) -> bool:
        content = self._changed("result.json")
        if content is None:
            return False
        self.finished = True
        with suppress(ValueError):
            result = json_text.loads(content)
            self._odd = read_odd(result.get("odd")) if isinstance(result, dict) else []
        return True


def _took_part(row: dict[str, Any], measure: str) -> dict[str, Any]:
    """An agent's row of a roster, from its row of the table."""
    figures = (row.get(f"{mode}_{measure}") for mode in USED)
    return {
        "state": TOOK_PART,
        "cluster": row["cluster"],
        "samples": row["samples"],
        "figure": next((one for one in figures if one is not None), None),
    }


def _line(text: bytes) -> Line | None:
    try:
        row: Any = json_text.loads(text)
    except ValueError:
        return None
    return reduced(row) if isinstance(row, dict) else None


def plan_of(scenario: Any) -> RunPlan:
    """What the page shows of a scenario with all its defaults, as a run's folder holds it."""
    if not isinstance(scenario, dict):
        return RunPlan()
    strategy = _section(scenario, "strategy")
    rounds = _section(scenario, "rounds")
    fleet = _section(scenario, "fleet")
    every = _section(scenario, "evaluation").get("every")
    task = _section(scenario, "task")
    return RunPlan(
        name=str(scenario.get("name", "")),
        method=str(strategy.get("name", "")),
        rounds=_whole(rounds.get("count")),
        agents=_whole(rounds.get("start_agents")) or _whole(fleet.get("agents")),
        evaluates_every=every if isinstance(every, int) else None,
        over_select=_factor(rounds.get("over_select")),
        regression=is_regression(task) if task else None,
    )


def _section(scenario: dict[str, Any], name: str) -> dict[str, Any]:
    section = scenario.get(name)
    return section if isinstance(section, dict) else {}


def _factor(value: Any) -> float:
    """A factor of at least 1. `auto` differs from round to round, and is this at most."""
    if value == "auto":
        return MAX_AUTO_OVER_SELECT
    return max(float(value), 1.0) if isinstance(value, int | float) else 1.0


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0
