"""Two families: what a user can mend (`UserError`), and what a peer sent (`DecodeError`).

A `UserError` is printed as one message without a traceback and ends a command with exit code 2.
A `DecodeError` never ends anything: it is counted by its `reason`, shown, and the message is dropped.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

_MENDED_BY = {
    FileNotFoundError: "there is no such file or folder; is it spelled right?",
    NotADirectoryError: "a file stands where a folder is wanted; choose another path",
    FileExistsError: "a file stands where a folder is wanted; choose another path",  # mkdir found it
    IsADirectoryError: "a folder stands where a file is wanted; choose another path",
    PermissionError: "this user may not read or write it; choose another path, or mend its permissions",
}


SEE_THE_LOG = "the log on the device shows the details"

_REMEDIES_BY_NUMBER = {
    errno.EROFS: "the file system is read-only; mount it so that it can be written, or choose another path",
    errno.ENOSPC: "no room is left on this disk; free some and run the same command again",
    errno.EDQUOT: "this user's share of the disk is used up; free some and run the same command again",
}


class CoveyError(Exception):
    """The root of every error that Covey raises on purpose.

    Its text is for the terminal of the machine where it happened: it may quote values, paths and names.
    """

    @property
    def public(self) -> str:
        """What may be sent to another machine: nothing that could quote data, paths or names of this one."""
        return f"the work failed; {SEE_THE_LOG}"


class UserError(CoveyError):
    """A mistake that the user can mend: the text says what was seen, what was wanted, and what to do."""


class PublicError(UserError):
    """A UserError whose text quotes nothing but what the other side sent, so that it may be sent as it is."""

    @property
    def public(self) -> str:
        return str(self)


class DataError(UserError):
    """Local data that cannot take part.

    `text` is for the device's own terminal: it names the file, the row, the column, and quotes the value.
    `public` is all that leaves the device: the row and the column by number, the kind of fault, and what the task
    wants; never a value, a path, a class or a column's name that the task does not name itself.
    """

    def __init__(self, text: str, public: str = "") -> None:
        super().__init__(text)
        self._public = public or f"the local data cannot be used; {SEE_THE_LOG}"

    @property
    def public(self) -> str:
        return self._public


class DecodeError(CoveyError):
    """Bytes from the network that were refused.

    `reason` is a short stable name to count by (`"truncated"`, `"not finite"`), the text says more.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason

    @property
    def public(self) -> str:
        """The reason without the detail, which may name a file where the bytes lay on a disk."""
        return f"refused: {self.reason}"


def public_text(error: BaseException) -> str:
    """What may be sent to another machine about any error. Messages of libraries quote values and paths."""
    if isinstance(error, CoveyError):
        return error.public
    return f"the work failed with {type(error).__name__[:64]}; {SEE_THE_LOG}"


@contextmanager
def os_errors_as_user_errors() -> Iterator[None]:
    """Raise a UserError for each OSError about a file, most often because its path was mistyped.

    An OSError that names no file, such as one of the network, passes through.
    """
    try:
        yield
    except OSError as error:
        why = _REMEDIES_BY_NUMBER.get(error.errno or 0) or _MENDED_BY.get(type(error))
        if error.filename is None and why is None:
            raise
        raise UserError(f"{error.filename or error}: {why or error.strerror}") from error
