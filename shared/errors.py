"""Two families: what a user can mend (`UserError`), and what a peer sent (`DecodeError`).

A `UserError` is printed as one message without a traceback and ends a command with exit code 2.
A `DecodeError` never ends anything: it is counted by its `reason`, shown, and the message is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_MENDED_BY = {
    FileNotFoundError: "there is no such file or folder; is it spelled right?",
    NotADirectoryError: "a file stands where a folder is wanted; choose another path",
    FileExistsError: "a file stands where a folder is wanted; choose another path",  # mkdir found it
    IsADirectoryError: "a folder stands where a file is wanted; choose another path",
    PermissionError: "this user may not read or write it; choose another path, or mend its permissions",
}


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


@contextmanager
def files_named() -> Iterator[None]:
    """Tell of a file that is not as it should be by a UserError: most often its path was mistyped.

    An OSError that names no file, such as a network's, passes through.
    """
    try:
        yield
    except OSError as error:
        why = _MENDED_BY.get(type(error))
        if error.filename is None and why is None:
            raise
        raise UserError(f"{error.filename or error}: {why or error.strerror}") from error
