"""What `coordinator status` shows: the state of the run, and a table of its agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from covey.coordinator.odd import read_odd
from covey.coordinator.report.odd_list import moment
from covey.coordinator.view.table import NONE, Column, Table
from covey.coordinator.view.words import epsilons
from covey.extras.runs.devices import is_between_runs, rows_now
from covey.extras.runs.state import PRESENT, STATE_WORDS, agent_state, reason
from covey.shared import extras
from covey.shared.sentences import counted, some
from covey.shared.wire.documents import IN_USE, JUDGING

RUN_CHARACTERS = 8  # of a run's id, for a model that no publication has named
USES = "it mixes"
STYLES = {
    "offline": "red",
    "excluded": "yellow",
    "in quarantine": "red",
    "silent": "red",
    "failing": "red",
}
# `--json` has all else
COLUMNS = ("agent", "state", "since", "takes", "version in use", USES, "what is wrong")


def status_lines(seen: Mapping[str, Any]) -> list[str]:
    """The lines above the roster: the state of the run, and whether its coordinator is still at work."""
    spent = epsilons(seen.get("privacy"))
    status = seen["status"]
    roster = seen.get("roster") or {}
    known = read_odd(roster.get("odd"))
    if is_left(seen) and extras.has("doctor"):
        models = {agent: one.get("model") or {} for agent, one in seen["devices"].items()}
        said = {agent: one.get("uses", "") for agent, one in models.items()}
        known = extras.part("doctor", "examine").with_own_word(known, said)
    useless = [one.sentence for one in known if one.kind == "no model"]
    if "written" in seen:  # read from a run's folder
        ended = "the run is finished; " if seen["finished"] else ""
        written = moment(seen["written"])
        lines = [f"{ended}this is what its coordinator wrote last, at {written}"]
        if spent:
            lines.append(spent)
        return lines + useless
    lines = []
    if status is not None and status["name"]:  # a coordinator that gave way has none
        is_same = roster.get("run") == status.get("run")
        done = max(status["round"], roster.get("round", 0) if is_same else 0)
        word = status["state"] if status["online"] else "its coordinator ended without a word"
        words = [word, f"round {done} of {status['rounds']}", status["phase"], spent]
        state = ", ".join(word for word in words if word)
        lines.append(f"{status['name']}: {state}")
    if is_left(seen):
        lines.append("no coordinator is running: this is what the agents state themselves")
    expelled = [
        agent for agent, one in seen.get("devices", {}).items() if one["state"] == "expelled"
    ]
    if expelled:
        lines.append(f"expelled, no members any more: {some(sorted(expelled))}")
    return lines + useless


def is_left(seen: Mapping[str, Any]) -> bool:
    """Whether the roster is what an earlier coordinator left at the broker."""
    return "devices" in seen and is_between_runs(seen["status"])


def roster_table(
    roster: Mapping[str, Any], devices: Mapping[str, Any] | None = None, *, left: bool = False
) -> Table:
    """A line for each member of the fleet. A column that is empty for all of them is left out.

    Args:
        roster: a `RosterMessage` as JSON.
        devices: the devices' own word, as `Device.to_json` has it; None: it is not known.
        left: an earlier coordinator has left the roster.
    """
    agents = roster["agents"]
    if devices is not None:
        agents = rows_now(agents, devices, between_runs=left)
    rows = [_cells(agent, row) for agent, row in agents.items()]
    run = f"run {roster['run']}: " if roster["run"] and not left else ""
    title = f"{run}{counted(len(agents), 'agent')}"
    return Table(title, [Column(one) for one in COLUMNS], rows).without_empty_columns()


def _cells(agent: str, row: Mapping[str, Any]) -> list[str]:
    """The cells of one agent, in the order of `COLUMNS`. Of one that was lost, the time is when it was heard last."""
    since = row.get("since") or row["seen"]
    model = row.get("model")
    takes = row.get("takes")
    took = NONE if takes is None else f"{takes:.3g} s"
    shown = (_model(model), _uses(model or {}), _wrong(row))
    return [agent, _state(row), moment(since), took, *shown]


def _wrong(row: Mapping[str, Any]) -> str:
    """The trouble of an agent: why it takes no part, else why its report or the model for it was refused."""
    counts = ", ".join(f"{reason} {count}" for reason, count in row["refusals"].items())
    model = row.get("model") or {}
    if why := reason(row) or row.get("refused") or _refused(model):
        return str(why)
    if failures := model.get("hook_failures"):
        return f"its command for a new model failed {counted(failures, 'time')}"
    return f"refused messages: {counts}" if counts else ""


def _model(model: Mapping[str, Any] | None) -> str:
    """The model that a device uses itself."""
    if not model or not model["run"]:
        return NONE
    return model.get("name") or f"{model['run'][:RUN_CHARACTERS]}@{model['round']}"


def _uses(model: Mapping[str, Any]) -> str:
    """What a device mixes, where it states this; or that its judge is at work."""
    note = str(model.get("note") or "")
    return note if note.startswith(JUDGING) else str(model.get("uses") or "")


def _refused(model: Mapping[str, Any]) -> str:
    """The newest decision of a device, if it kept its model."""
    note = str(model.get("note") or "")
    return "" if note.startswith((IN_USE, JUDGING)) else note


def _state(row: Mapping[str, Any]) -> str:
    """The state of an agent. One that is offline, or failed the last time, is listed as that, whatever else it is."""
    if "state" in row:
        return str(row["state"])
    if not row["online"]:
        return "left" if row.get("left") else "offline"
    state = agent_state(row)
    if state in PRESENT and row.get("failures"):
        return "failing"
    return STATE_WORDS.get(state, state)
