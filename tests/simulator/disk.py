"""Disks that lose what was not synced, are full, read-only or rotten, or cut a program off in the middle of a write.

The files are real ones in memory. A disk also keeps what would be there after a power cut: names as of the last sync of
their folder, contents as of the last sync of the file. Of everything since, a power cut takes a seeded part: changes of
names are lost from the end, contents are lost, whole or cut. The functions of `os`, `io` and `shutil` that write are
watched, so the programs need no seam for it, and no write escapes.
"""

# paths are text here, as the system has them
# ruff: noqa: PTH102, PTH108, PTH112, PTH118, PTH120, PTH208

from __future__ import annotations

import builtins
import errno
import io
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

from tests.simulator.life import OWNER, DeadError, must_live

State = Literal["", "full", "read-only", "no descriptors"]
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(eq=False)
class Node:
    """A file or a folder, under whatever name."""

    is_folder: bool
    synced: bytes | None = None  # the content that survives a power cut; None: there was no sync


Change = list[tuple[str, Node | None]]  # path and what it names from now on; None: nothing


class Disk:
    """The disk of one program, below one folder, which exists.

    Args:
        root: the folder.
        seed: of what a power cut takes.
    """

    def __init__(self, root: Path, seed: str) -> None:
        self.root = str(root)
        self._random = random.Random(f"disk {seed}")  # noqa: S311  bad luck, no secrets
        self.state: State = ""
        self.refused = 0  # writes, because of the state
        # the write in whose middle the program is cut off: how many writes it is away, and what is called then
        self._cut_off: tuple[int, Callable[[], None]] | None = None
        self._names: dict[str, Node] = {}
        self._synced_names: dict[str, Node] = {}
        self._log: list[Change] = []  # changes of names that no sync has followed
        self._take_stock()

    def cut_off(self, writes: int, then: Callable[[], None] | None) -> None:
        """Cut the program off in its n-th write from now on, and call `then`; None: do not."""
        self._cut_off = None if then is None else (writes, then)

    # -- what programs do --------------------------------------------------------------------------

    def before_write(self, path: str, *, grows: bool = True) -> None:
        """Raise what keeps a program's write from happening."""
        must_live()
        if OWNER.get() is None:  # an operator
            return
        if self.state == "read-only":
            self.refused += 1
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        if self.state == "full" and grows:
            self.refused += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        if self._cut_off is not None:
            left, then = self._cut_off
            self._cut_off = (left - 1, then) if left else None
            if not left:
                then()
                raise DeadError

    def before_open(self, path: str) -> None:
        must_live()
        if OWNER.get() is not None and self.state == "no descriptors":
            self.refused += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    def node(self, path: str) -> Node:
        """What a path names; one that was made unseen is new."""
        found = self._names.get(path)
        if found is None:
            found = Node(is_folder=os.path.isdir(path))
            self.change([(path, found)])
        return found

    def change(self, names: Change) -> None:
        for path, node in names:
            if node is None:
                self._names.pop(path, None)
            else:
                self._names[path] = node
        self._log.append(names)

    def moved(self, source: str, target: str) -> None:
        node = self.node(source)
        inside = [path for path in self._names if path.startswith(source + os.sep)]
        names: Change = [(source, None), (target, node)]
        for path in inside:
            names += [(path, None), (target + path[len(source) :], self._names[path])]
        self.change(names)

    def removed_tree(self, folder: str) -> None:
        gone = [path for path in self._names if path.startswith(folder + os.sep)]
        self.change([(path, None) for path in [*sorted(gone, reverse=True), folder]])

    def synced(self, path: str, node: Node) -> None:
        if not node.is_folder:
            node.synced = _content(path)
            return
        kept: list[Change] = []
        for names in self._log:
            if any(os.path.dirname(name) == path for name, _ in names):
                _apply(self._synced_names, names)
            else:
                kept.append(names)
        self._log = kept

    # -- what happens to it ------------------------------------------------------------------------

    def lose_power(self) -> int:
        """Forget a part of what was not synced. Returns how many names and contents were lost."""
        kept = self._random.randint(0, len(self._log))
        for names in self._log[:kept]:
            _apply(self._synced_names, names)
        lost = len(self._log) - kept
        where = {node: path for path, node in self._names.items()}
        contents: dict[str, bytes] = {}
        folders: list[str] = []
        for path, node in sorted(self._synced_names.items()):
            parent = os.path.dirname(path)
            if parent != self.root and parent not in folders:
                continue  # its folder has no name any more
            if node.is_folder:
                folders.append(path)
                continue
            present = _content(where[node]) if node in where else (node.synced or b"")
            contents[path] = self._left_of(node.synced or b"", present)
            lost += contents[path] != present
        self._clear()
        for folder in folders:
            os.mkdir(folder)
        for path, content in contents.items():
            Path(path).write_bytes(content)
        self._take_stock()
        return lost

    def put_back(self, backup: Path) -> None:
        """Replace everything by a copy."""
        self._clear()
        shutil.copytree(backup, self.root, dirs_exist_ok=True)
        self._take_stock()

    def _clear(self) -> None:
        self.state = ""  # an operator has seen to it
        for name in os.listdir(self.root):
            path = os.path.join(self.root, name)
            if os.path.isdir(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)

    def _left_of(self, synced: bytes, present: bytes) -> bytes:
        """The rest of a content that was not synced: all of it, nothing of what was added, or a part."""
        if synced == present:
            return present
        if not present.startswith(synced):  # written again, not appended
            return self._random.choice((synced, present, present[: len(present) // 2], b""))
        added = self._random.randint(len(synced), len(present))
        return present[: self._random.choice((len(synced), added, len(present)))]

    def found(self, names: str) -> list[Path]:
        """The files whose paths match a pattern, but empty ones."""
        return sorted(path for path in Path(self.root).glob(names) if path.stat().st_size)

    def rot(self, names: str) -> str:
        """Change one bit of a file whose path matches a pattern. Returns its path; empty where there is none."""
        found = self.found(names)
        if not found:
            return ""
        path = self._random.choice(found)
        content = bytearray(path.read_bytes())
        content[self._random.randrange(len(content))] ^= 1 << self._random.randrange(8)
        path.write_bytes(content)
        self.node(str(path)).synced = bytes(content)
        return str(path)

    def restore(self, path: str, content: bytes) -> None:
        """Give a file the content that it had before it rotted."""
        Path(path).write_bytes(content)
        self.node(path).synced = content

    def _take_stock(self) -> None:
        """Everything that is there now is safe."""
        self._log = []
        self._names = {}
        for folder, folders, files in os.walk(self.root):
            for name in folders:
                self._names[os.path.join(folder, name)] = Node(is_folder=True)
            for name in files:
                path = os.path.join(folder, name)
                self._names[path] = Node(is_folder=False, synced=_content(path))
        self._synced_names = dict(self._names)


def _apply(names: dict[str, Node], change: Change) -> None:
    for path, node in change:
        if node is None:
            names.pop(path, None)
        else:
            names[path] = node


def _content(path: str) -> bytes:
    with _open(path, "rb") as file:
        content: bytes = file.read()
        return content


_open = io.open  # before anything is watched


class _Raw(io.FileIO):
    """An open file of a program, without a buffer."""

    def __init__(self, disk: Disk, path: str, mode: str, closed: Callable[[int], object]) -> None:
        super().__init__(path, mode)
        self._disk, self._path, self._closed = disk, path, closed
        self._owner = OWNER.get()

    def close(self) -> None:
        if not self.closed:
            self._closed(self.fileno())
        super().close()

    def write(self, content: Any) -> int:
        """Half of the content is written where the write is refused or the program is cut off."""
        if self._owner is not None and self._owner.killed:
            raise DeadError
        try:
            self._disk.before_write(self._path)
        except BaseException:
            view = memoryview(content).cast("B")
            super().write(view[: len(view) // 2])
            raise
        return super().write(content)


class Disks:
    """The disks of all programs of a history below one folder; `watched` lets them see every write."""

    def __init__(self, base: Path) -> None:
        self._base = str(base) + os.sep
        self._disks: list[Disk] = []
        self._open: dict[int, tuple[Disk, str, Node]] = {}  # by descriptor

    def add(self, disk: Disk) -> None:
        self._disks.append(disk)

    def _of(self, path: Any) -> tuple[Disk, str] | None:
        """The disk that a path lies on, and the path as text."""
        if not isinstance(path, str | os.PathLike):
            return None
        text = os.fspath(path)
        if not isinstance(text, str) or not text.startswith(self._base):
            return None
        for disk in self._disks:
            if text == disk.root or text.startswith(disk.root + os.sep):
                return disk, text
        return None

    def _opened(self, descriptor: int, disk: Disk, path: str) -> None:
        node = Node(is_folder=True) if path == disk.root else disk.node(path)
        self._open[descriptor] = (disk, path, node)

    @contextmanager
    def watched(self) -> Iterator[None]:
        real = {
            name: getattr(os, name)
            for name in (
                *("open", "close", "replace", "rename", "unlink", "remove", "mkdir", "rmdir"),
                *("fsync", "ftruncate", "pwrite"),
            )
        }
        real_rmtree = shutil.rmtree

        def io_open(
            file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **more: Any
        ) -> Any:
            place = self._of(file)
            if place is None:
                return _open(file, mode, buffering, *rest, **more)
            disk, path = place
            disk.before_open(path)
            if not set(mode) & set("wax+"):
                return _open(file, mode, buffering, *rest, **more)
            if "r" not in mode:
                disk.before_write(path)
            plain = mode.replace("b", "").replace("t", "")
            raw = _Raw(disk, path, plain, lambda descriptor: self._open.pop(descriptor, None))
            self._opened(raw.fileno(), disk, path)
            if buffering == 0:
                return raw
            buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return buffered if "b" in mode else io.TextIOWrapper(buffered, *rest, **more)

        def os_open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            place = self._of(path) if dir_fd is None else None
            if place is None:
                descriptor: int = real["open"](path, flags, mode, dir_fd=dir_fd)
                self._open.pop(descriptor, None)
                return descriptor
            disk, text = place
            disk.before_open(text)
            if flags & WRITES:
                disk.before_write(text)
            descriptor = real["open"](path, flags, mode)
            self._opened(descriptor, disk, text)
            return descriptor

        def close(descriptor: int) -> None:
            self._open.pop(descriptor, None)
            real["close"](descriptor)

        def fsync(descriptor: int) -> None:
            if descriptor in self._open:
                disk, path, node = self._open[descriptor]
                disk.before_write(path)
                disk.synced(path, node)

        def ftruncate(descriptor: int, length: int) -> None:
            if descriptor in self._open:
                disk, path, _ = self._open[descriptor]
                disk.before_write(path, grows=False)
            real["ftruncate"](descriptor, length)

        def pwrite(descriptor: int, content: Any, offset: int) -> int:
            if descriptor in self._open:
                disk, path, _ = self._open[descriptor]
                try:
                    disk.before_write(path)
                except BaseException:
                    view = memoryview(content).cast("B")
                    real["pwrite"](descriptor, view[: len(view) // 2], offset)
                    raise
            written: int = real["pwrite"](descriptor, content, offset)
            return written

        def replace(source: Any, target: Any, **more: Any) -> None:
            place = self._of(source)
            if place is None:
                real["replace"](source, target, **more)
                return
            disk, path = place
            disk.before_write(path, grows=False)
            real["replace"](source, target, **more)
            disk.moved(path, os.fspath(target))

        def unlink(path: Any, *, dir_fd: int | None = None) -> None:
            place = self._of(path) if dir_fd is None else None
            if place is None:
                real["unlink"](path, dir_fd=dir_fd)
                return
            disk, text = place
            if os.path.lexists(text):
                disk.before_write(text, grows=False)
            real["unlink"](path)
            disk.change([(text, None)])

        def mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
            place = self._of(path) if dir_fd is None else None
            if place is None:
                real["mkdir"](path, mode, dir_fd=dir_fd)
                return
            disk, text = place
            if not os.path.lexists(text):
                disk.before_write(text)
            real["mkdir"](path, mode)
            disk.change([(text, Node(is_folder=True))])

        def rmtree(path: Any, *rest: Any, **more: Any) -> None:
            place = self._of(path)
            if place is None:
                real_rmtree(path, *rest, **more)
                return
            disk, text = place
            disk.before_write(text, grows=False)
            real_rmtree(path, *rest, **more)
            disk.removed_tree(text)

        with (
            patch.object(io, "open", io_open),
            patch.object(builtins, "open", io_open),
            patch.multiple(
                os,
                open=os_open,
                close=close,
                fsync=fsync,
                ftruncate=ftruncate,
                pwrite=pwrite,
                replace=replace,
                rename=replace,
                unlink=unlink,
                remove=unlink,
                mkdir=mkdir,
            ),
            patch.object(shutil, "rmtree", rmtree),
        ):
            yield
