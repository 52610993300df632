"""Writing to a disk that may be full: report it, wait, and continue when the disk has room again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from covey.shared.errors import UserError
from covey.shared.files import is_full

T = TypeVar("T")
PAUSE_S = 1.0  # between two attempts


class DiskFullError(UserError):
    """The operator stopped a run that waited for room on its disk."""


class Room:
    """Carries out what writes files. Blocks its thread while the disk is full, once `tell` is set.

    Without a `tell` nobody would know why nothing happens, so the OSError goes through. May be used from several
    threads.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # called with a sentence for a person, from any thread
        self.tell: Callable[[str], None] | None = None
        self._closed = threading.Event()

    def write(self, action: Callable[[], T]) -> T:
        """The result of `action`, which must leave nothing behind where it fails.

        Raises DiskFullError after `close`, and whatever else the action raises.
        """
        waited = False
        while True:
            try:
                result = action()
            except OSError as error:
                if self.tell is None or not is_full(error):
                    raise
                if not waited:
                    self.tell(
                        f"no room is left on the disk of {self.folder}; free some: the run waits for it"
                    )
                waited = True
                if self._closed.wait(PAUSE_S):
                    raise self._given_up() from None
                continue
            if waited and self.tell is not None:
                self.tell(f"there is room again on the disk of {self.folder}; the run continues")
            return result

    def close(self) -> None:
        """Wait for room no longer: the program is to end."""
        self._closed.set()

    def _given_up(self) -> DiskFullError:
        return DiskFullError(
            f"{self.folder}: no room is left on this disk; free some, then continue with --resume"
        )
