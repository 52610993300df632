"""What `coordinator status` shows: the state of the run, and a table of its agents."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from covey.coordinator.doctor.devices import megabytes
from covey.coordinator.report.odd_list import moment
from covey.coordinator.view.devices import is_between_runs, rows_now
from covey.coordinator.view.state import PRESENT, STATE_WORDS, agent_state, reason
from covey.coordinator.view.table import NONE, Column, Table
from covey.coordinator.view.words import epsilons
from covey.shared.numerics.measures import MEASURES, Measure, main_measure, measured
from covey.shared.sentences import counted, some

RUN_CHARACTERS = 8  # of a run's id, for a model that no publication has named
STYLES = {
    "offline": "red",
    "excluded": "yellow",
    "in quarantine": "red",
    "silent": "red",
    "failing": "red",
}
COLUMNS = (
    "agent",
    "state",
    "online since",
    "cluster",
    "last seen",
    "train / test",
    "classes",
    "figure",
    "version in use",
    "its figure",
    "rejected",
    "certificate",
    "disk free",
    "refusals",
    "reason",
)
OF_THE_LAST_RUN = (
    "cluster",
    "last seen",
    "figure",
    "refusals",
)  # between runs: no device states them


def status_lines(seen: Mapping[str, Any]) -> list[str]:
    """The lines above the roster: the state of the run, and whether its coordinator is still at work."""
    spent = epsilons(seen.get("privacy"))
    status = seen["status"]
    if "written" in seen:  # read from a run's folder
        ended = "the run is finished; " if seen["finished"] else ""
        written = moment(seen["written"])
        lines = [f"{ended}this is what its coordinator wrote last, at {written}"]
        if spent:
            lines.append(spent)
        return lines
    lines = []
    if status is not None and status["name"]:  # the last will of a coordinator has no name
        rounds = f"round {status['round']} of {status['rounds']}"
        words = [status["state"], rounds, status["phase"], spent]
        state = ", ".join(word for word in words if word)
        lines.append(f"{status['name']}: {state}")
    if is_left(seen):
        lines.append(
            "no coordinator is running: agents state this themselves, but for the columns of the last run"
        )
    expelled = [
        agent for agent, one in seen.get("devices", {}).items() if one["state"] == "expelled"
    ]
    if expelled:
        lines.append(f"expelled, no members any more: {some(sorted(expelled))}")
    return lines


def is_left(seen: Mapping[str, Any]) -> bool:
    """Whether the roster is what an earlier coordinator left at the broker."""
    return "devices" in seen and is_between_runs(seen["status"])


def roster_table(
    roster: Mapping[str, Any],
    devices: Mapping[str, Any] | None = None,
    *,
    regression: bool = False,
    left: bool = False,
) -> Table:
    """A line for each member of the fleet. A column that is empty for all of them is left out.

    Args:
        roster: a `RosterMessage` as JSON.
        devices: the devices' own word, as `Device.to_json` has it; None: it is not known.
        regression: it has no classes, and the figure of each agent.
        left: an earlier coordinator has left the roster.
    """
    agents = roster["agents"]
    if devices is not None:
        agents = rows_now(agents, devices, between_runs=left)
    measure = main_measure(regression=True) if regression else None
    titles = [
        (measure.label if title == "figure" and measure else title)
        + (" (last run)" if left and title in OF_THE_LAST_RUN else "")
        for title in COLUMNS
    ]
    rows = [_cells(agent, row, measure) for agent, row in agents.items()]
    run = f"run {roster['run']}: " if roster["run"] and not left else ""
    title = f"{run}{counted(len(agents), 'agent')}"
    return Table(title, [Column(one) for one in titles], rows).without_empty_columns()


def _cells(agent: str, row: Mapping[str, Any], measure: Measure | None) -> list[str]:
    """The cells of one agent, in the order of `COLUMNS`."""
    counts = [f"{reason} {count}" for reason, count in row["refusals"].items()]
    cluster = row["cluster"]
    figure = row.get("figure")
    return [
        agent,
        _state(row),
        moment(row.get("since")),
        NONE if cluster is None else str(cluster),
        moment(row["seen"]),
        f"{row['samples']} / {row['test_samples']}",
        str(row["labels"]) if measure is None else "",
        measure.text(figure) if measure is not None and figure is not None else "",
        _model(row.get("model")),
        _own_figure(row.get("model")),
        _rejected(row.get("model")),
        _until(row.get("certificate")),
        "" if row.get("disk_free") is None else megabytes(row["disk_free"]),
        ", ".join(counts),
        reason(row) or row.get("refused") or _refused(row.get("model")),
    ]


def _model(model: Mapping[str, Any] | None) -> str:
    """The model that a device uses itself."""
    if not model:
        return NONE
    words: list[str] = []
    if model["run"]:
        words.append(model.get("name") or f"{model['run'][:RUN_CHARACTERS]}@{model['round']}")
    if model["hook_failures"]:
        words.append(f"command failed {model['hook_failures']} times")
    return ", ".join(words) or NONE


def _own_figure(model: Mapping[str, Any] | None) -> str:
    """The figure of the model in use on the device's own test data, as the device states it."""
    measure = MEASURES.get((model or {}).get("measure", ""))
    if model is None or measure is None or model.get("figure") is None:
        return ""
    return measured(measure, model["figure"])


def _until(seconds: float | None) -> str:
    """The day on which a certificate ends."""
    return "" if seconds is None else time.strftime("%Y-%m-%d", time.localtime(seconds))


def _refused(model: Mapping[str, Any] | None) -> str:
    """The newest decision of a device, if it kept its model."""
    note = model["note"] if model and "note" in model else ""
    return "" if note.startswith("in use") else note


def _rejected(model: Mapping[str, Any] | None) -> str:
    """How often a device kept its model instead of a new one."""
    return str(model["rejected"]) if model and model["rejected"] else ""


def _state(row: Mapping[str, Any]) -> str:
    """The state of an agent. One that is offline, or failed the last time, is listed as that, whatever else it is."""
    if "state" in row:
        return str(row["state"])
    if not row["online"]:
        return "offline"
    state = agent_state(row)
    if state in PRESENT and row.get("failures"):
        return "failing"
    return STATE_WORDS.get(state, state)
