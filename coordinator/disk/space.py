"""Writing to a disk that may be full, read-only or moved away: report it, wait, and continue once it can be written to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from covey.shared.errors import UserError
from covey.shared.storage.files import obstacle

T = TypeVar("T")
PAUSE_S = 1.0  # between two attempts


class DiskFullError(UserError):
    """The operator stopped a run that waited for its disk."""


class Room:
    """Carries out what writes files, or opens them. Blocks its thread while something stands in the way of it, once `notify` is set.

    Without a `notify` it would not show why nothing happens, so the OSError goes through. May be used from several
    threads.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
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
                if self.notify is None or not why:
                    raise
                if why != waited_for:
                    self.notify(f"{why}; the run waits until then")
                waited_for = why
                if self._closed.wait(PAUSE_S):
                    raise DiskFullError(f"{why}, then continue with --resume") from None
                continue
            if waited_for and self.notify is not None:
                self.notify(f"{self.folder} can be written to again; the run continues")
            return result

    def close(self) -> None:
        """Wait no longer: the program is to end."""
        self._closed.set()
