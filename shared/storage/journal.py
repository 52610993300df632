"""A file of lines, one for each entry, with one writer: a line is in the file as a whole, or not at all.

The files that use it differ in three rules. A line survives a power cut at once (`durable`), or only after `sync`. An
owner that remembers how many lines it knows has the others cut off when it continues (`keep`), or no line is ever cut
off. And a line may hold what proves the one before it: such a chain is a matter of its text, see `audit`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

from covey.shared.storage.files import append, sync, sync_folder, write_atomically

E = TypeVar("E")  # an entry
BLOCK_BYTES = 1 << 16

Write = Callable[[Callable[[], None]], None]


def _at_once(action: Callable[[], None]) -> None:
    action()


def _every_line(line: bytes) -> bool:
    return True


class Journal(Generic[E]):
    """Entries wait in memory until `flush`. One that cannot be written (full disk) waits for the next `flush`.

    Args:
        path: of the file, which need not exist.
        text: an entry as a line, without its end.
        keep: lines that the owner remembers; others are cut off. None: only an unfinished last line is.
        is_sound: whether a line can be read. Lines to keep that cannot are left out, and the file as it was is kept next to
            the new one, for a person.
        durable: what was flushed survives a power cut.
        write: carries out what writes the file; it may wait for room on the disk.

    Attributes:
        count: Lines that were kept, and all that were added since; without `keep` only the latter.
        lost: Lines that the owner remembers and the file does not have, after a power cut or a damage.
        torn_bytes: Of an unfinished last line that was cut off.
        newest: The last line that was in the file, with its end; empty if there was none, and with `keep`.
    """

    def __init__(
        self,
        path: Path,
        text: Callable[[E], bytes],
        *,
        keep: int | None,
        is_sound: Callable[[bytes], bool] = _every_line,
        durable: bool = True,
        write: Write = _at_once,
    ) -> None:
        self.path = path
        self.count = 0
        self.lost = 0
        self.torn_bytes = 0
        self.newest = b""
        self._text = text
        self._durable = durable
        self._carry_out = write
        self._waiting: list[bytes] = []  # lines that are not in the file yet, in order
        self._is_named = keep is not None  # also after a power cut
        if keep is not None:
            self._cut_back(keep, is_sound)
        elif path.exists():
            self.newest, self.torn_bytes = _without_torn_end(path)

    def __repr__(self) -> str:
        return f"<Journal {self.path}: {self.count} lines, {len(self._waiting)} waiting>"

    def add(self, entry: E) -> None:
        """The next line; it is in the file after `flush`."""
        self._waiting.append(self._text(entry) + b"\n")
        self.count += 1

    def flush(self) -> None:
        """Write what waits. Raises OSError if the disk is full; nothing is in the file then."""
        if self._waiting:
            content = b"".join(self._waiting)
            self._carry_out(lambda: self._append(content))
            self._waiting.clear()

    def sync(self) -> None:
        """Write what waits, so that all of the file survives a power cut. Raises OSError if the disk is full."""
        self.flush()
        sync(self.path)
        self._sync_name()

    def _append(self, content: bytes) -> None:
        append(self.path, content, durable=self._durable)
        if self._durable:
            self._sync_name()

    def _sync_name(self) -> None:
        """A file that is new has a name once its folder is on the disk."""
        if not self._is_named:
            sync_folder(self.path.parent)
            self._is_named = True

    def _cut_back(self, keep: int, is_sound: Callable[[bytes], bool]) -> None:
        known: list[bytes] = []
        if self.path.exists():
            lines = self.path.read_bytes().splitlines(keepends=True)
            known = [line for line in lines if line.endswith(b"\n")][:keep]
        kept = [line for line in known if is_sound(line)]
        if len(kept) < len(known):
            self.path.replace(self.path.with_name(f"{self.path.name}.damaged"))
        self.count = len(kept)
        self.lost = keep - self.count
        self._carry_out(lambda: write_atomically(self.path, b"".join(kept)))


def _without_torn_end(path: Path) -> tuple[bytes, int]:
    """Cut off an unfinished last line. Returns the last whole line, and the bytes that were cut off."""
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        whole = _after_newline_before(file, end)
        file.truncate(whole)
        if whole == 0:
            return b"", end
        start = _after_newline_before(file, whole - 1)
        file.seek(start)
        return file.read(whole - start), end - whole


def _after_newline_before(file: BinaryIO, end: int) -> int:
    """The start of the line that contains the byte before `end`."""
    while end > 0:
        start = max(end - BLOCK_BYTES, 0)
        file.seek(start)
        block = file.read(end - start)
        found = block.rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
