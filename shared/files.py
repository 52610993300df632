"""Files that survive a kill at any instant: written beside, synced, renamed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from covey.shared.errors import UserError


@contextlib.contextmanager
def atomic_replace(path: Path, *, durable: bool = True, mark: str = "new") -> Iterator[Path]:
    """Where to write the new content of `path`, which takes its place when the block ends and is gone where it fails.

    Whoever reads `path` finds the old content or the new one, whole. What is not `durable` survives a kill, but perhaps
    no power cut. `mark` keeps two who write the same file apart. An OSError names `path`.
    """
    beside = path.with_name(f"{path.name}.{mark}")
    try:
        yield beside
        if durable:
            _sync(beside)
        beside.replace(path)
    except OSError as error:  # by the name that the caller knows
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
    if durable:
        sync_folder(path.parent)


def write_atomically(
    path: Path, content: bytes | memoryview, *, durable: bool = True, mark: str = "new"
) -> None:
    """Replace a file by this content, as `atomic_replace` does."""
    with atomic_replace(path, durable=durable, mark=mark) as beside:
        beside.write_bytes(content)


def write_private(path: Path, content: bytes) -> None:
    """Replace a file by this content, which nobody but its owner may read from the first byte on. Survives a power cut."""
    with atomic_replace(path, mark=f"{os.getpid()}.{secrets.token_hex(4)}") as beside:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)


def private_folder(folder: Path) -> None:
    """Make a folder, and those above it, unless it is there. A new one is closed to other users (mode 0700).

    Raises FileExistsError where something else than a folder is in its place.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def make_folder(path: Path, *, durable: bool = True) -> None:
    """Make a folder and those above it, where they are not there. A `durable` one survives a power cut."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    if durable:
        for folder in missing:
            sync_folder(folder.parent)


def sync_folder(path: Path) -> None:
    """Let the names in a folder survive a power cut, where its file system can."""
    with contextlib.suppress(OSError):
        _sync(path)


def is_full(error: OSError) -> bool:
    """Did a write fail because no room is left on the disk, or none for this user?"""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def folder_lock(folder: Path, otherwise: str) -> Iterator[None]:
    """Hold a folder against other processes; a UserError says `otherwise` where one has it. A lock ends with its process."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(otherwise) from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(descriptor)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
