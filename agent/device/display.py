"""Notices of agents on the terminal: as text for a person, or as JSON for a program."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import TextIO

from covey.agent.device import notices as n
from covey.shared.sentences import printable
from covey.shared.storage import json_text


def time_of_day() -> str:
    """The beginning of a line of a log."""
    return time.strftime("%Y-%m-%d %H:%M:%S ")


def print_json(notice: n.DeviceNotice | n.FleetNotice) -> None:
    """One JSON object per line."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json_text.dumps(notice.to_json()) + "\n")
        sys.stdout.flush()


class DeviceDisplay:
    """The notices of one agent as text. Errors go to stderr, and a repeated connection error is shown once.

    Args:
        stamp: gives the beginning of each line, the time of day.
    """

    def __init__(self, stamp: Callable[[], str] = time_of_day) -> None:
        self._stamp = stamp
        self._broker = ""  # its address, without password
        self._shown_error = ""  # the latest reason for no connection, until the next connection

    def __call__(self, notice: n.DeviceNotice) -> None:
        match notice:
            case n.Started(agent, federation, broker):
                self._broker = broker
                self._show(f"agent {agent} of federation {federation}, broker {broker}")
            case n.Connected(broker=broker):
                self._show(f"connected to {broker or self._broker}")
                self._shown_error = ""
            case n.Disconnected(why) if why != self._shown_error:
                self._shown_error = why
                self._warn(f"no connection to {why}; trying again until it works")
            case n.DataFits(samples, test_samples, remark):
                remark = f"; {remark}" if remark else ""
                self._show(
                    f"data fits the task: {samples} training, {test_samples} test samples{remark}"
                )
            case n.DataChanged():
                self._show("the data has changed; reading it again")
            case n.WaitsForCoordinator(why):
                self._show(f"waiting: {why}")
            case n.Problem(why):
                self._warn(f"staying out of this run: {why}")
            case n.WorkStarted(step, phase):
                self._show(f"step {step}: {phase}")
            case n.OrderFailed(step, why):
                self._warn(f"step {step} failed: {why}")
            case n.FrozenOnce(step, samples):
                self._show(
                    f"step {step}: frozen layers computed once for {samples} samples; all epochs train on that"
                )
            case n.ReportAccepted(step):
                self._show(f"step {step}: report accepted")
            case n.CoordinatorRefused(why):
                self._warn(f"the coordinator refused a report: {why}")
            case n.ModelTaken(version=version, path=path, why=why):
                self._show(f"model in use: {version}: {why}; {path}")
            case n.ModelRejected(version=version, why=why):
                self._warn(f"model rejected: {version}: {why}")
            case n.ModelNotKept(why):
                self._warn(f"a new model was not kept: {why}")
            case n.HookFailed(why):
                self._warn(f"the command of --on-model failed: {why}")
            case n.Damaged(why) | n.DiskFull(why) | n.WorkerDied(why=why):
                self._warn(why)
            case n.StorySoFar(lines):
                _print_story(lines)

    def _show(self, text: str) -> None:
        _print(self._stamp() + text)

    def _warn(self, text: str) -> None:
        _print_error(self._stamp() + text)


def show_fleet(notice: n.FleetNotice) -> None:
    """The notices of a simulated fleet as text: only what concerns the whole fleet, and errors."""
    match notice:
        case n.FleetStarted(agents, workers, broker):
            _print(f"{time_of_day()}{agents} agents, {workers} workers, at {broker}")
        case n.FleetDisconnected(why):
            _print_error(f"{time_of_day()}no connection to {why}; trying again until it works")
        case n.FleetConnected():
            _print(f"{time_of_day()}connected")
        case n.OfAgent(
            agent, n.Damaged(why) | n.DiskFull(why) | n.OrderFailed(_, why) | n.Problem(why)
        ):
            _print_error(f"{time_of_day()}{agent}: {why}")


def _print_story(lines: tuple[n.StoryLine, ...]) -> None:
    _print("what happened so far:")
    for line in lines:
        _print(f"  {line.at}  {line.text}")


def _print(text: str) -> None:
    _write(sys.stdout, text)


def _print_error(text: str) -> None:
    _write(sys.stderr, text)


def _write(stream: TextIO, text: str) -> None:
    stream.write(f"{printable(text)}\n")  # at once, also where each write is one to the disk
    stream.flush()
