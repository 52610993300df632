"""A failure that repeats: a task that fails the same way for the same reason will not succeed at the next attempt. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from covey.shared.strategies.base import ClientId

MAX_REASON = 500  # characters of a reason that are kept


def common_reason(reasons: Mapping[ClientId, str]) -> str:
    """The one reason why all these agents could not do their work; empty if there are several, or none."""
    alike = {_without_name(why, client) for client, why in reasons.items()}
    if len(alike) != 1:
        return ""
    return alike.pop()


def _without_name(why: str, client: ClientId) -> str:
    """The reason as it would read of any agent."""
    return why.removeprefix(f"{client}: ")[:MAX_REASON]


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
