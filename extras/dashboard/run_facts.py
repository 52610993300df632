"""What the folder of a finished run holds besides its figures: when it ran, how to repeat it, who had trouble."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from covey.coordinator.disk.checkpoint import Checkpoint
from covey.coordinator.record.audit_trail import FILE as AUDIT_FILE
from covey.coordinator.record.records import lines
from covey.coordinator.record.roster_files import read_roster, roster_file
from covey.coordinator.run.folder import IN_PROCESS
from covey.shared.errors import UserError
from covey.shared.own_code import plugins
from covey.shared.own_code.consent import AllowedCode
from covey.shared.scenario.code import named_code
from covey.shared.scenario.load import load
from covey.shared.scenario.scenario import Scenario
from covey.shared.sentences import counted
from covey.shared.storage import json_text

Row = Mapping[str, Any]
OWN_DATA = "digits"  # comes with the libraries: no data root is needed


@dataclass(frozen=True)
class RunFacts:
    """A run's folder, read for a page. Texts are empty and values None if the folder does not have them."""

    folder: Path
    run: str  # the run's id
    began: str  # in UTC
    ended: str
    scenario: str  # the file's text
    command: str  # repeats the run
    remarks: Sequence[str]  # about the command
    tested_on: str  # which samples of an agent test
    simulated_faults: str
    classes: Sequence[str]  # their names; none unless an answer is one of several classes
    record: Sequence[Row]  # rounds.jsonl
    agents: Sequence[Row]  # agents.parquet
    invited: Counter[str]  # orders by agent
    reported: Counter[str]  # accepted reports by agent
    refusals: Mapping[str, int]  # messages by reason
    trouble: Mapping[str, str]  # of an agent, in words


def facts_of(folder: Path) -> RunFacts:
    """Read a finished run's folder. Raises UserError if its files are damaged."""
    from pyarrow import parquet

    record = lines(folder)
    agents = parquet.read_table(folder / "agents.parquet").to_pylist()
    invited: Counter[str] = Counter()
    reported: Counter[str] = Counter()
    for line in record:
        if line["event"] == "phase":
            invited.update(line["invited"])
            reported.update(line["reported"])
    roster = _roster(folder)
    file = folder / "scenario.yaml"
    scenario = load(file) if file.exists() else None
    began, ended = times(folder)
    run = run_id(folder)
    text = ""
    command = ""
    remarks: list[str] = []
    if scenario is not None:
        text = file.read_text()
        words = ["coordinator", "run", str(file)]
        command = repeat_command(words, folder.resolve().name, run, scenario)
        remarks = data_remarks(scenario)
    return RunFacts(
        folder,
        run,
        began,
        ended,
        text,
        command,
        remarks,
        _tested_on(scenario),
        _faults(scenario),
        _class_names(scenario),
        record,
        agents,
        invited,
        reported,
        roster.get("refusals", {}),
        _trouble(record, roster),
    )


def moment(text: str) -> str:
    """A time of the audit log, to the minute."""
    return text[:16].replace("T", " ") + " UTC" if text else ""


def run_id(folder: Path) -> str:
    """The id of a run, out of its checkpoint; empty without one."""
    checkpoint = Checkpoint(folder / "checkpoint")
    if not checkpoint.exists():
        return ""
    return str(checkpoint.facts()["run"]["run"])


def times(folder: Path) -> tuple[str, str]:
    """The first and the last time of the audit log; without a log, when the result was written."""
    log = folder / AUDIT_FILE
    rows = log.read_bytes().splitlines() if log.exists() else []
    times = [_time(rows[0]), _time(rows[-1])] if rows else []
    if len(times) == 2 and all(times):
        return times[0], times[1]
    return "", datetime.fromtimestamp((folder / "result.json").stat().st_mtime, UTC).isoformat()


def _time(row: bytes) -> str:
    """The time of a line of the log; empty if the line is damaged."""
    try:
        found = json_text.loads(row)
    except ValueError:
        return ""
    return str(found.get("time", "")) if isinstance(found, dict) else ""


def _roster(folder: Path) -> Mapping[str, Any]:
    """What the coordinator knew about its agents; empty without a broker."""
    file = roster_file(folder)
    if not file.exists():
        return {}
    try:
        found = json_text.loads(file.read_bytes())
    except ValueError as error:
        raise UserError(
            f"{file}: not JSON ({error}); remove it to have the report without it"
        ) from None
    if not isinstance(found, dict):
        return {}
    if "pages" not in found:
        return found
    return read_roster(folder).model_dump(mode="json")


def repeat_command(words: Sequence[str], name: str, run: str, scenario: Scenario) -> str:
    """The command that computes the same again, with all defaults and seeds as they were.

    Args:
        words: the command with its file
        name: of the folder; the new one is named after it
        run: the id of a run that it repeats, which shows whether there was a broker
        scenario: in the file; the command allows the code that it names
    """
    more = ["--out", f"runs/{name}-again"]
    if run == IN_PROCESS:
        more.append("--in-process")
    more += AllowedCode(frozenset(named_code(scenario))).options()
    return shlex.join([*words, *more])


def data_remarks(scenario: Scenario) -> list[str]:
    """What the command needs besides the scenario: devices, or a data set."""
    if scenario.fleet is None:
        return ["The agents were devices: they must be online, with the data that they had."]
    if plugins.data_code(scenario.fleet.data) is not None:
        return [
            f"The code of {scenario.fleet.data} must be installed, or its folder be in PYTHONPATH."
        ]
    if scenario.fleet.data != OWN_DATA:
        return [f"The data set {scenario.fleet.data} must be in COVEY_DATA_ROOT (or --data-root)."]
    return []


def _tested_on(scenario: Scenario | None) -> str:
    """Which samples of an agent test, if it has no test part of its own; empty if a data set or a rule decides."""
    if scenario is None:
        return ""
    own = "unless a device has a test part of its own"
    if scenario.task.window is not None:
        return f"the latest windows of each series, {own}"
    if scenario.task.tests_latest:
        return f"the latest rows of each device, {own}"
    return "" if scenario.fleet is not None else f"random samples of each device, {own}"


def _faults(scenario: Scenario | None) -> str:
    """The faults that a simulated fleet makes on purpose, in words."""
    if scenario is None or scenario.fleet is None:
        return ""
    settings = scenario.fleet.faults
    asked = [
        f"{name} {value}" for name, value in settings.model_dump(exclude_defaults=True).items()
    ]
    count = len(scenario.fleet.timeline)
    if count:
        asked.append(f"{count} entries of the timeline")
    return ", ".join(asked)


def _class_names(scenario: Scenario | None) -> Sequence[str]:
    if scenario is None or scenario.task.kind != "classes":
        return ()
    classes = scenario.task.classes
    return tuple(map(str, range(classes))) if isinstance(classes, int) else classes or ()


def _trouble(record: Sequence[Row], roster: Mapping[str, Any]) -> dict[str, str]:
    """What went wrong with each agent that had trouble: quarantine, refusals, failures, data that does not fit, no tests."""
    found: dict[str, list[str]] = {}
    for line in record:
        if line["event"] in ("quarantined", "resting", "released", "set_aside"):
            words = str(line.get("kind", line["event"])).replace("_", " ")
            found.setdefault(line["agent"], []).append(f"{words} in round {line['round'] + 1}")
    untested = [line["untested"] for line in record if line.get("untested")]
    for agent in untested[-1] if untested else ():
        found.setdefault(agent, []).append("no test samples")
    for agent, row in roster.get("agents", {}).items():
        for reason, count in row.get("refusals", {}).items():
            found.setdefault(agent, []).append(f"{count} × {reason}")
        if row.get("problem"):
            found.setdefault(agent, []).append(str(row["problem"]))
        if row.get("failed"):
            found.setdefault(agent, []).append(f"failed: {row['failed']}")
    return {agent: "; ".join(words) for agent, words in found.items()}


def device_words(result: Row) -> str:
    """The kinds of devices that agents computed on, and the coordinator's kind of machine."""
    counts = result.get("devices") or {}
    kinds = [f"{kind} ({counted(count, 'agent')})" for kind, count in counts.items()]
    machine = result["versions"].get("machine")
    if machine:
        kinds.append(f"coordinator on {machine}")
    return ", ".join(kinds)


def version_words(result: Row) -> str:
    """The versions that figures were made with."""
    named = [
        f"{name} {version}" for name, version in result["versions"].items() if name != "machine"
    ]
    return ", ".join(named)
