"""Two families of errors: what a user can correct (`UserError`), and what a peer sent (`DecodeError`).

A `UserError` is printed as one message without a traceback, and ends a command with exit code 2.
A `DecodeError` never ends anything: it is counted by its `reason` and shown, and the message is dropped.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

SEE_THE_LOG = "the log on the device shows the details"
MAX_TYPE_NAME = 64  # characters of an error's type that are sent to another machine

_NOT_A_FOLDER = "this is a file, expected a folder; choose another path"
_REMEDIES = {
    FileNotFoundError: "no such file or folder; check the spelling of the path",
    NotADirectoryError: _NOT_A_FOLDER,
    FileExistsError: _NOT_A_FOLDER,  # raised by mkdir
    IsADirectoryError: "this is a folder, expected a file; choose another path",
    PermissionError: "this user may not read or write it; change its permissions, or choose another path",
}
_OTHERWISE = "look at the disk and the limits of this user, then run the command again (a run that has begun: with --resume)"
_AFTER_FREEING = "free some space and run the command again (a run that has begun: with --resume)"
_REMEDIES_BY_NUMBER = {
    errno.EFBIG: "it would exceed the largest size of a file: of this user (ulimit -f, LimitFSIZE=), or of the file system",
    errno.EIO: "the disk cannot be read or written; look at the system's log, and at the figures that the disk keeps of itself",
    errno.ENODEV: "this is a device or a pipe, expected a file; choose another path",  # of `atomic_replace`
    errno.EROFS: "the file system is read-only; mount it for writing, or choose another path",
    errno.ENOSPC: f"the disk is full; {_AFTER_FREEING}",
    errno.EDQUOT: f"this user's disk quota is used up; {_AFTER_FREEING}",
}


class CoveyError(Exception):
    """The root of every error that Covey raises on purpose.

    Its text is for the terminal of the machine where it happened: it may quote values, paths and names.
    """

    @property
    def public(self) -> str:
        """The text that may be sent to another machine: it quotes no data, paths or names of this one."""
        return f"the work failed; {SEE_THE_LOG}"


class UserError(CoveyError):
    """An error that the user can correct.

    The text gives what happened, what was expected, and what to do.

    Example:
        >>> try:
        ...     covey.load("missing.yaml")
        ... except covey.UserError as error:
        ...     print(error)  # doctest: +ELLIPSIS
        missing.yaml: ...
    """

    def _render_traceback_(self) -> list[str]:
        """The message alone, which a notebook shows in place of a traceback."""
        return [f"{type(self).__name__}: {self}"]


class PublicError(UserError):
    """A UserError that quotes only what the other side sent, so that its text may be sent back."""

    @property
    def public(self) -> str:
        return str(self)


class DataError(UserError):
    """Local data that cannot take part.

    Args:
        text: for the device's own terminal: it names the file, the row and the column, and quotes the value.
        public: all that leaves the device: row and column by number, the kind of fault, and what the task expects;
            never a value, a path, a class, or a name of a column that the task does not contain itself.
    """

    def __init__(self, text: str, public: str = "") -> None:
        super().__init__(text)
        self._public = public or f"the local data cannot be used; {SEE_THE_LOG}"

    @property
    def kept(self) -> DataError:
        """The same, of which nothing but that it happened leaves the device."""
        return DataError(str(self))

    @property
    def public(self) -> str:
        return self._public


# Honest agents may cause these, from an earlier run or where others have taken the room: they blame no agent.
Honest = Literal["disk full", "format", "no room", "other run", "unknown sender"]
HONEST_REFUSALS: frozenset[str] = frozenset(get_args(Honest))
Blaming = Literal[
    "implausible values", "bad count", "bad index", "bad key", "bad scale", "box", "checksum", "codec", "contradicts",
    "empty", "entry", "fields", "layout", "no base", "not finite", "not json", "not msgpack",
    "other broker", "other phase", "other sender", "other work", "partial sum", "rate", "same key", "secure head",
    "secure join", "secure signature", "secure stage", "secure sum", "secure words", "too large", "too long",
    "too many agents", "too many examples", "topic", "unknown codec", "version", "wrong base", "wrong digest",
    "wrong length", "wrong numbers", "wrong vectors",
]  # fmt: skip


class DecodeError(CoveyError):
    """Bytes from the network that were refused.

    Args:
        reason: a short stable name to count by. Each is declared with whether it blames the sender.
        detail: more, for people.
    """

    def __init__(self, reason: Honest | Blaming, detail: str = "") -> None:
        text = f"{reason}: {detail}" if detail else reason
        super().__init__(text)
        self.reason = reason
        self.detail = detail

    @property
    def public(self) -> str:
        """The reason without the detail, which may name a file of this machine."""
        return f"refused: {self.reason}"


def public_text(error: BaseException) -> str:
    """The text about any error that may be sent to another machine. Errors of libraries quote values and paths."""
    if isinstance(error, CoveyError):
        return error.public
    kind = type(error).__name__[:MAX_TYPE_NAME]
    return f"the work failed with {kind}; {SEE_THE_LOG}"


@contextmanager
def bare_errors() -> Iterator[None]:
    """Raise the first error of a group of tasks in place of the group: people and handlers know errors by their type."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from error.__cause__


@contextmanager
def os_errors_as_user_errors() -> Iterator[None]:
    """Turn OSErrors about files into UserErrors with a remedy: most often the path was mistyped.

    One of the network passes through.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None and _is_of_the_network(error):
            raise
        raise UserError(os_error_text(error)) from error


def _is_of_the_network(error: OSError) -> bool:
    is_of_a_library = type(error).__module__ != "builtins"  # socket.gaierror, ssl.SSLError
    return (
        is_of_a_library or error.errno is None or isinstance(error, ConnectionError | TimeoutError)
    )


def os_error_text(error: OSError) -> str:
    """What happened to which file, with the system's name for it, and what to do."""
    number = error.errno or 0
    remedy = _REMEDIES.get(type(error))
    if remedy is None:
        name = errno.errorcode.get(number, str(number))
        remedy = (
            f"{error.strerror or error} ({name}); {_REMEDIES_BY_NUMBER.get(number, _OTHERWISE)}"
        )
    return remedy if error.filename is None else f"{error.filename}: {remedy}"


# -- how to install what an optional feature needs: Covey is installed from a clone, no registry has it ----------------


def install(extra: str) -> str:
    """The command that adds an extra of pyproject.toml."""
    return f"in your clone of Covey, run pip install '.[{extra}]'"
