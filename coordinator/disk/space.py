"""Writing to a disk that may be full or read-only: report it, wait, and continue once it can be written to."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from covey.shared.errors import UserError
from covey.shared.storage.files import obstacle

T = TypeVar("T")
PAUSE_S = 1.0  # between two attempts
GONE = "the folder of the run is gone, or another one has its name"


class DiskFullError(UserError):
    """The operator stopped a run that waited for its disk."""


class Room:
    """Carries out what writes files, or opens them. Blocks its thread while something stands in the way of it, once `notify` is set.

    Without a `notify` it would not show why nothing happens, so the OSError goes through. May be used from several
    threads.

    Attributes:
        trouble: what stands in the way, without a path: devices read it too.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trouble = ""
        self._found: os.stat_result | None = None
        # called with a sentence for a person, from any thread
        self.notify: Callable[[str], None] | None = None
        self._closed = threading.Event()

    def write(self, action: Callable[[], T]) -> T:
        """The result of `action`, which must leave nothing behind where it fails.

        Raises DiskFullError after `close`, and whatever else the action raises.
        """
        waited_for = ""
        while True:
            try:
                result = action()
            except OSError as error:
                why = obstacle(error, self.folder)
                if self.notify is None or not why or self.is_gone():
                    raise
                self.trouble = obstacle(error, "its runs")
                if why != waited_for:
                    self.notify(f"{why}; the run waits until then")
                waited_for = why
                if self._closed.wait(PAUSE_S):
                    raise DiskFullError(f"{why}, then continue with --resume") from None
                continue
            self.trouble = ""
            if waited_for and self.notify is not None:
                self.notify(f"{self.folder} can be written to again; the run continues")
            return result

    def is_gone(self) -> bool:
        """Whether the folder is no longer there, or another one has its name: no waiting helps."""
        try:
            found = self.folder.stat()
        except OSError as error:  # others pass, as that of a server that does not answer
            return isinstance(error, FileNotFoundError | NotADirectoryError)
        self._found = self._found or found
        return not os.path.samestat(found, self._found)

    def check(self) -> None:
        """Raise UserError if the folder is gone."""
        if self.is_gone():
            raise UserError(f"{self.folder}: {GONE}; put it back, then continue with --resume")

    def close(self) -> None:
        """Wait no longer: the program is to end."""
        self._closed.set()
