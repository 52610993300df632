"""Files that survive a kill at any instant: written under another name, synced, then renamed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from covey.shared.errors import UserError

OWNER_ONLY = 0o600
PRIVATE_FOLDER = 0o700
OF_OTHERS = 0o077  # all that a mode allows to others than the owner
ROOT = 0


@contextlib.contextmanager
def atomic_replace(
    path: Path, *, durable: bool = True, mark: str = "new", name_durable: bool = True
) -> Iterator[Path]:
    """Replace a file as a whole: `with atomic_replace(path) as new:` write the content to `new`.

    Readers of `path` see the old content or the new one, never a part. If the block fails, the old content stays.

    Args:
        path: the file to replace.
        durable: survive a power cut too, which takes a sync. Otherwise the file survives a kill only.
        mark: part of the temporary name. Two writers of the same file need different marks.
        name_durable: sync the folder, too, if the file is durable. False: another file there is about to be replaced,
            which syncs the folder for both.

    Raises:
        OSError: with the name of `path`, which the caller knows; also if it is a device or a pipe, which would be lost.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        mode = path.stat().st_mode
        if not (
            stat.S_ISREG(mode) or stat.S_ISDIR(mode)
        ):  # the replacement refuses a folder by itself
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), str(path))
    temporary = path.with_name(f"{path.name}.{mark}")
    try:
        yield temporary
        if durable:
            sync(temporary)
        temporary.replace(path)
    except BaseException as error:
        discard(temporary)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    if durable and name_durable:
        sync_folder(path.parent)


def discard(path: Path) -> None:
    """Remove a file that nobody needs. One that cannot be removed stays: no program ends for it."""
    with contextlib.suppress(OSError):
        path.unlink()


def write_atomically(
    path: Path,
    content: bytes | memoryview,
    *,
    durable: bool = True,
    mark: str = "new",
    name_durable: bool = True,
) -> None:
    """Replace a file by this content. The arguments are those of `atomic_replace`."""
    with atomic_replace(path, durable=durable, mark=mark, name_durable=name_durable) as temporary:
        temporary.write_bytes(content)


def append(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Add to the end of a file. Survives a power cut if `durable` and its name does; costs half as much as a replacement.

    Raises:
        OSError: the file is as it was.
    """
    with path.open("ab", buffering=0) as file:
        size = file.tell()
        try:
            with naming(path):
                rest = memoryview(content)
                while rest:  # what stands in the way of the rest is said by its own write
                    rest = rest[file.write(rest) :]
                if durable:
                    os.fsync(file.fileno())
        except OSError:
            file.truncate(size)  # half a line would damage the next one
            raise


def write_private(path: Path, content: bytes) -> None:
    """Replace a file by content that only its owner may read, from the first byte on. Survives a power cut."""
    mark = f"{os.getpid()}.{secrets.token_hex(4)}"
    with atomic_replace(path, mark=mark) as temporary:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)


def private_folder(folder: Path, *, durable: bool = False) -> None:
    """Make sure that a folder, but not its parents, exists and is closed to other users, also one that was there.

    All that a program keeps lies in such folders, so the modes of the files in them do not matter. New ones survive a power
    cut if `durable`.

    Raises:
        FileExistsError: something other than a folder has this name.
        PermissionError: this user may not write in it. A file system that is read-only may pass, and is said by a write.
        UserError: the folder cannot be closed: it is another user's, all users share it, or its file system keeps no modes.
    """
    make_folder(folder.parent, durable=durable)
    is_new = not folder.exists()
    folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    if durable and is_new:
        sync_folder(folder.parent)
    found = folder.stat()
    if found.st_uid != os.geteuid() and os.geteuid() != ROOT:
        raise UserError(
            f"{folder}: this folder belongs to another user (uid {found.st_uid}), who could read what is kept in it; choose "
            "another, or make it yours"
        )
    if found.st_mode & OF_OTHERS:
        _close(folder, found)
    _must_be_writable(folder)


def _close(folder: Path, found: os.stat_result) -> None:
    if found.st_mode & stat.S_ISVTX or folder.resolve() == Path(folder.anchor or "/").resolve():
        raise UserError(
            f"{folder}: all users of this machine share this folder; name a folder in it"
        )
    folder.chmod(PRIVATE_FOLDER)
    if folder.stat().st_mode & OF_OTHERS:
        raise UserError(
            f"{folder}: other users can read it, and its file system keeps no permissions; mount it with umask=077, or choose "
            "another folder"
        )


def _must_be_writable(folder: Path) -> None:
    as_effective_user = os.access in os.supports_effective_ids
    if os.access(folder, os.W_OK | os.X_OK, effective_ids=as_effective_user):
        return
    if not os.statvfs(folder).f_flag & os.ST_RDONLY:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def make_folder(path: Path, *, durable: bool = True) -> None:
    """Make sure that a folder and its parents exist. New ones survive a power cut if `durable`."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    if durable:
        for folder in missing:
            sync_folder(folder.parent)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Have an OSError of the block name the file: the system calls for an open one do not."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_at(descriptor: int, offset: int, data: bytes | memoryview) -> None:
    """Write all of `data` at an offset of an open file. Raises OSError."""
    view = memoryview(data)
    while view:  # a write may stop early, at 2 GiB or on a signal
        written = os.pwrite(descriptor, view, offset)
        view = view[written:]
        offset += written


def sync_folder(path: Path) -> None:
    """Make the names in a folder survive a power cut, if its file system can."""
    with contextlib.suppress(OSError):
        sync(path)


def sync_files(paths: Iterable[Path]) -> None:
    """Make files that were replaced without `durable` survive a power cut, and their names; those deleted since do not matter.

    Raises:
        OSError: the disk has no room, or is broken.
    """
    folders: set[Path] = set()
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            sync(path)
            folders.add(path.parent)
    for folder in folders:
        sync_folder(folder)


_OBSTACLES = {
    errno.ENOSPC: "no room is left on the disk of {}; free some",
    errno.EDQUOT: "this user's disk quota at {} is used up; free some",
    errno.ESTALE: "the server of {} has another file system there now; mount it again",
    errno.EROFS: "the file system of {} is read-only; mount it for writing",
    errno.EMFILE: "this process has no descriptor left for a file in {}; close connections to it",
    errno.ENFILE: "this machine has no descriptor left for a file in {}; end other programs",
}


def obstacle(error: OSError, folder: Path | str) -> str:
    """Why a file in a folder cannot be written for the time being, with the remedy: a program may wait for it.

    Empty for an error that no waiting can help.
    """
    if error.errno == errno.ENOENT and not Path(folder).exists():
        return f"{folder} no longer exists; put it back"
    if isinstance(error, PermissionError) and not os.access(folder, os.W_OK):
        return f"this user may not write to {folder}; allow it again"
    return _OBSTACLES.get(error.errno or 0, "").format(folder)


@contextlib.contextmanager
def folder_lock(folder: Path, otherwise: str) -> Iterator[None]:
    """Lock a folder, or a file, against other processes for the block. The lock ends with its process.

    A file system without locks grants every lock.

    Args:
        folder: one that exists.
        otherwise: text of the error if another process has the lock.

    Raises:
        UserError: another process has the lock.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(otherwise) from None
        except OSError:
            pass  # no locks on this file system
        yield
    finally:
        os.close(descriptor)


def sync(path: Path) -> None:
    """Wait until a file or a folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- the files of a run's models: cluster-0.safetensors and so on, in one folder ---------------------------------------


SUFFIX = ".safetensors"


def model_file(models: Path, cluster: int) -> Path:
    """The file of one cluster's model in the folder `models`."""
    return models / f"cluster-{cluster}{SUFFIX}"


def model_files(models: Path) -> list[Path]:
    """All model files in a folder, by number: cluster 10 comes after cluster 9."""
    return sorted(models.glob(f"cluster-*{SUFFIX}"), key=_by_number)


def _by_number(path: Path) -> tuple[int, str]:
    name = path.name
    return len(name), name
