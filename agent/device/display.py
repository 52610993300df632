"""Notices of agents on the terminal: as text for a person, or as JSON for a program."""

from __future__ import annotations

import contextlib
import sys

from covey.agent.device.notices import (
    Connected,
    DataFits,
    DeviceNotice,
    Disconnected,
    FleetConnected,
    FleetDisconnected,
    FleetNotice,
    FleetStarted,
    HookFailed,
    ModelNotKept,
    ModelRejected,
    ModelTaken,
    OfAgent,
    Problem,
    ReportAccepted,
    Started,
    StoryLine,
    StorySoFar,
    WorkFailed,
    WorkStarted,
)
from covey.shared import json_text
from covey.shared.printable import printable


def print_json(notice: DeviceNotice | FleetNotice) -> None:
    """One JSON object per line."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json_text.dumps(notice.to_json()) + "\n")
        sys.stdout.flush()


class DeviceDisplay:
    """The notices of one agent as text. Errors go to stderr, and a repeated connection error is shown once."""

    def __init__(self) -> None:
        self._broker = ""  # its address, without password
        self._shown_error = ""  # the latest reason for no connection, until the next connection

    def __call__(self, notice: DeviceNotice) -> None:
        match notice:
            case Started(agent, federation, broker):
                self._broker = broker
                _print(f"agent {agent} of federation {federation}, broker {broker}")
            case Connected():
                _print(f"connected to {self._broker}")
                self._shown_error = ""
            case Disconnected(why) if why != self._shown_error:
                self._shown_error = why
                _print_error(f"no connection to {why}; trying again until it works")
            case DataFits(samples, test_samples):
                _print(f"data fits the task: {samples} training, {test_samples} test samples")
            case Problem(why):
                _print_error(f"staying out of this run: {why}")
            case WorkStarted(step, phase):
                _print(f"step {step}: {phase}")
            case WorkFailed(step, why):
                _print_error(f"step {step} failed: {why}")
            case ReportAccepted(step):
                _print(f"step {step}: report accepted")
            case ModelTaken(run, round_, _, path, why):
                _print(f"model of run {run}, round {round_} in use: {why}; {path}")
            case ModelRejected(run, round_, _, why):
                _print_error(f"model of run {run}, round {round_} rejected: {why}")
            case ModelNotKept(why):
                _print_error(f"a new model was not kept: {why}")
            case HookFailed(why):
                _print_error(f"the command of --on-model failed: {why}")
            case StorySoFar(lines):
                _print_story(lines)


def show_fleet(notice: FleetNotice) -> None:
    """The notices of a simulated fleet as text: only what concerns the whole fleet, and errors."""
    match notice:
        case FleetStarted(agents, workers, broker):
            _print(f"{agents} agents, {workers} workers, at {broker}")
        case FleetDisconnected(why):
            _print_error(f"no connection to {why}; trying again until it works")
        case FleetConnected():
            _print("connected")
        case OfAgent(agent, Problem(why)) | OfAgent(agent, WorkFailed(_, why)):
            _print_error(f"{agent}: {why}")


def _print_story(lines: tuple[StoryLine, ...]) -> None:
    _print("what happened so far:")
    for line in lines:
        _print(f"  {line.at}  {line.text}")


def _print(text: str) -> None:
    print(printable(text), flush=True)


def _print_error(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)
