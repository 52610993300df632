"""Two families: what a user can mend (`UserError`), and what a peer sent (`DecodeError`).

A `UserError` is printed as one message without a traceback and ends a command with exit code 2.
A `DecodeError` never ends anything: it is counted by its `reason`, shown, and the message is dropped.
"""

from __future__ import annotations


class CoveyError(Exception):
    """The root of every error that Covey raises on purpose."""


class UserError(CoveyError):
    """A mistake that the user can mend: the text says what was seen, what was wanted, and what to do."""


class DataError(UserError):
    """Local data that cannot take part: names the file, the column or the class."""


class DecodeError(CoveyError):
    """Bytes from the network that were refused.

    `reason` is a short stable name to count by (`"truncated"`, `"not finite"`), the text says more.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
