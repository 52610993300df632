"""The first row of `coordinator doctor`: the coordinator itself. It is a program like the others, and may be killed, stand still, or be stopped. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from covey.coordinator.odd import BROKER, COORDINATOR, Odd
from covey.extras.runs.devices import is_between_runs
from covey.shared.wire.documents import AgentStatus, CoordinatorStatus, RosterMessage

ENDED = "ended without a word"  # it was killed, or lost its power or its network
STOPPED = "was stopped before its last round"
GIVEN_UP = "gave the run up before its last round"
FAILED = "ended before its last round"
WAITS = "waits for its disk"
SILENT = "does not answer: its process stands still, or its network is gone"


def at_broker(
    status: CoordinatorStatus | None,
    roster: RosterMessage | None,
    devices: Mapping[str, AgentStatus],
    federation: str,
    *,
    answers: bool,
) -> Iterator[Odd]:
    """What a broker shows of the coordinator of a federation.

    Args:
        status: its newest, or its last will; None: none has been there.
        roster: of its newest run.
        devices: the newest status of each.
        federation: its name.
        answers: whether it answered a question; True if nobody asked.
    """
    if status is None and roster is None and not devices:
        what = f"it has neither a device nor a run of federation {federation!r}"
        command = "check --federation; `agent start` and `coordinator run` begin one"
        yield Odd((BROKER,), "federation", what, command)
    if status is None or status.state == "finished":
        return
    if not (word := _word(status, answers=answers)):
        return
    since = None
    if roster is not None and roster.run == status.run:
        status = status.model_copy(update={"round": max(status.round, roster.round)})
        since = max((row.get("seen") or 0.0 for row in roster.agents.values()), default=0.0) or None
    yield from _row(word, status, "coordinator run SCENARIO --out FOLDER --resume", since)


def in_folder(
    state: str, status: CoordinatorStatus, folder: Path, rounds: int, written: float
) -> Iterator[Odd]:
    """What a run's folder shows of its coordinator.

    Args:
        state: of the run, as `coordinator ls` has it.
        status: as the coordinator has stored it.
        folder: of the run.
        rounds: that are over.
        written: when the run wrote to it last, in seconds since 1970.
    """
    if state not in ("killed", "stopped"):
        return
    word = ENDED if state == "killed" else _word(status)
    newest = status.model_copy(update={"round": max(status.round, rounds)})
    command = f"coordinator run {folder / 'scenario.yaml'} --out {folder} --resume"
    yield from _row(word, newest, command, written)


def _word(status: CoordinatorStatus, *, answers: bool = True) -> str:
    """How a coordinator has ended, or what keeps it; empty for one at work."""
    if not status.online:
        return ENDED
    if status.state == "stopped":
        return GIVEN_UP if status.given_up else FAILED if status.trouble else STOPPED
    return SILENT if not answers else WAITS if status.trouble else ""


def _row(word: str, status: CoordinatorStatus, command: str, since: float | None) -> Iterator[Odd]:
    where = ""
    if status.name:
        where = f" in {status.name}, after round {status.round} of {status.rounds}"
    if word in (FAILED, WAITS):
        where += f": {status.trouble}"
    then = f"look at its process; end it, then `{command}`" if word == SILENT else f"`{command}`"
    if word == WAITS:
        then = "its log names the folder; it continues by itself"
    yield Odd((COORDINATOR,), "coordinator", f"it {word}{where}", then, since, weight=9)


def is_at_work(status: CoordinatorStatus | None) -> bool:
    """Whether a coordinator claims to be at work, so that it can be asked."""
    return not is_between_runs(None if status is None else status.model_dump())
