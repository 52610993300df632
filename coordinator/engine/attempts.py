"""Attempts at a phase that came to nothing: how long to wait before the next one, and when to give the run up. Pure.

A task that fails the same way for the same reason will not succeed at the next attempt.
"""

from __future__ import annotations

from covey.coordinator.engine.rules import RoundRules
from covey.coordinator.engine.step import Step
from covey.shared.mqtt.read_back import SETTINGS

FIRST_PAUSE_S = 0.5  # after a void step; doubled with each one that follows
LONGEST_PAUSE_S = 30.0
MAX_DOUBLINGS = 6
SILENT = 2  # void attempts in a row without any report, after which the broker is suspected
NOBODY_REPORTS = (
    f"nobody reports, though agents are online: either the deadline is too short for them, or the broker drops orders, models or "
    f"reports. Check {SETTINGS}"
)


class Attempts:
    """The void attempts at the coming phase.

    Args:
        rules: how many of them are too many.
        number: of them, before a restart.
    """

    def __init__(self, rules: RoundRules, number: int = 0) -> None:
        self._limit = rules.void_limit
        self._alike_limit = rules.alike_limit
        self.number = number  # void attempts at the coming phase: each draws another cohort
        self._voids = 0  # of these, those since the start of this process
        self._silent = (
            0  # of these, those in a row in which no agent reported though some were awaited
        )
        self._alike = RepeatedFailure(rules.alike_limit)  # of these

    def __repr__(self) -> str:
        return f"<Attempts: {self.number} void>"

    @property
    def pause_s(self) -> float:
        """Seconds before the next attempt, after this many void ones in a row."""
        pause: float = FIRST_PAUSE_S * 2 ** min(self._voids - 1, MAX_DOUBLINGS)
        return min(pause, LONGEST_PAUSE_S)

    def failed(self, step: Step, failure: str) -> tuple[str, str]:
        """Count a void step.

        Args:
            step: the void one.
            failure: why its fold failed; empty if it had no quorum.

        Returns:
            why it is void, and why the run is given up; the latter is empty while another attempt may succeed.
        """
        self.number += 1
        self._voids += 1
        common_reason = step.common_reason
        why = failure or _too_few(step)
        if common_reason and not failure:
            why = f"{why}; they could not do their work: {common_reason}"
        is_silent = not (failure or common_reason or step.reported) and bool(step.awaited)
        self._silent = self._silent + 1 if is_silent else 0
        is_last = self._voids >= self._limit
        if self._silent == SILENT or (self._silent > SILENT and is_last):
            why = f"{why}; {NOBODY_REPORTS}"
        reason = failure or common_reason
        is_hopeless = self._alike.note(reason)
        if is_last:
            return why, f"{self._voids} attempts in a row came to nothing: {why}"
        if is_hopeless:
            times = self._alike_limit
            return why, f"{times} attempts in a row failed for the same reason: {reason}"
        return why, ""

    def succeeded(self) -> None:
        """A phase was folded."""
        self.number = 0
        self._voids = 0
        self._silent = 0
        self._alike.forget()


def _too_few(step: Step) -> str:
    """Why a step without its quorum is void."""
    came = len(step.reported)
    return f"{came} of {len(step.cohort)} invited agents reported, the quorum is {step.quorum}"


class RepeatedFailure:
    """How many attempts in a row have failed for the same reason.

    Args:
        limit: this many of them are enough.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._reason = ""
        self._times = 0  # in a row; 0 if the newest attempt had no reason in common

    def __repr__(self) -> str:
        return f"<RepeatedFailure: {self._times} times {self._reason!r}>"

    def note(self, reason: str) -> bool:
        """Note the reason of an attempt that came to nothing, empty for none. True: it will not succeed."""
        if reason and reason == self._reason:
            self._times += 1
        else:
            self._reason = reason
            self._times = 1 if reason else 0
        return self._times >= self._limit

    def forget(self) -> None:
        """An attempt succeeded."""
        self._reason = ""
        self._times = 0
