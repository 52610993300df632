"""Errors of the user's own code: one sentence for each, with the line where it happened.

Own code may raise anything, so no list of exceptions would be complete. Whatever is loaded is noted here, and where an error
leaves a program or a job, its traceback shows whether it came from such code.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from covey.shared.errors import MAX_TYPE_NAME, SEE_THE_LOG, CoveyError, UserError

_loaded: set[str] = set()  # the packages whose code is the user's own


class OwnCodeError(UserError):
    """The user's own code failed.

    Args:
        text: for the terminal of its machine, with the line.
        public: all that leaves the machine: no text of the error.
    """

    def __init__(self, text: str, public: str) -> None:
        super().__init__(text)
        self._public = public

    @property
    def public(self) -> str:
        return self._public


def note(module: str) -> None:
    """Note that a module, with its package, is the user's own. It is called before the module is imported."""
    package = module.partition(".")[0]
    if package != __name__.partition(".")[0]:
        _loaded.add(package)


def explained(error: BaseException) -> BaseException:
    """An OwnCodeError for an error that the user's own code raised, and any other error as it is."""
    if isinstance(error, CoveyError):
        return error
    where = line_of(error)
    if where is None:
        return error
    kind = type(error).__name__[:MAX_TYPE_NAME]
    public = f"the user's own code raised {kind}; {SEE_THE_LOG}"
    return OwnCodeError(f"{where}: {text_of(error)}", public)


def said(error: BaseException) -> str:
    """An error in one line: its type, its text, and the line of the user's own code, if it came from there."""
    where = None if isinstance(error, CoveyError) else line_of(error)
    return text_of(error) if where is None else f"{text_of(error)} ({where})"


@contextmanager
def own_code(call: str = "") -> Iterator[None]:
    """Raise an OwnCodeError for whatever the user's own code raises, `SystemExit` included.

    Args:
        call: the function that is called, where the block is a call of own code and nothing else; its errors all count as own.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        found = _failed(call, error) if call else explained(error)
        if found is error:
            raise
        raise found from error


def _failed(call: str, error: BaseException) -> BaseException:
    """An OwnCodeError that names the call; errors with a sentence of their own stay as they are."""
    if isinstance(error, CoveyError):
        return error
    where = line_of(error)
    at = f" at {where}" if where else ""
    public = f" at {Path(where).name}" if where else ""
    return OwnCodeError(
        f"{call} failed{at}: {text_of(error)}; correct it there",
        f"{call} failed with {type(error).__name__}{public}",
    )


def text_of(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, CoveyError):
        return text
    kind = type(error).__name__
    return f"{kind}: {text}" if text else kind


def line_of(error: BaseException) -> str | None:
    """File and line of the last call in the user's own code; None: the error came through none."""
    if isinstance(error, SyntaxError) and error.filename and _is_noted(error):
        return f"{_short(error.filename)}, line {error.lineno}"
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if str(frame.f_globals.get("__name__")).partition(".")[0] in _loaded:
            return f"{_short(frame.f_code.co_filename)}, line {line}"
    return None


def _is_noted(error: SyntaxError) -> bool:
    """Whether a file that cannot be parsed is a module of the user's own: no frame runs in it."""
    parts = Path(error.filename or "").with_suffix("").parts
    return not _loaded.isdisjoint(parts)


def _short(file: str) -> str:
    """A path below the working directory without it."""
    own = os.path.relpath(file)
    return file if own.startswith("..") else own
