"""The file of an agent's memory: named arrays as .npz, read only as far as the work needs them."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from covey.shared.errors import os_error_text
from covey.shared.storage.files import atomic_replace, obstacle
from covey.shared.wire.messages import digest

if TYPE_CHECKING:
    from covey.shared.strategies.client_half import ClientState


class ResultDoesNotFit(Exception):  # noqa: N818 - the service waits and asks again
    """The disk has no room for the result of the work."""


class DiskBroken(Exception):  # noqa: N818 - the service ends with this message
    """A result of the work cannot be written, and no waiting helps."""


class MemoryDamaged(Exception):  # noqa: N818 - the service sets it aside
    """The file of an agent's memory is not the one that a worker wrote, or cannot be read."""


@contextmanager
def _read(path: Path) -> Iterator[None]:
    """Read a memory's file. Errors mean damage, but for those of the device's limits: they pass, and the work waits."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # numpy and zipfile raise a dozen types for a damaged file
        if isinstance(error, OSError) and obstacle(error, path.parent):
            raise
        raise MemoryDamaged(path) from error


class StoredMemory(Mapping[str, npt.NDArray[Any]]):
    """The arrays in a memory's file, as `save_memory` wrote it. Each is read and compared with its checksum when it is first
    asked for, and then kept.

    Most methods replace what they have stored without a look at it, so most arrays are never read.

    Args:
        path: the .npz file.
        expected: the seal of the file, in hex; "" if it is unknown.

    Raises:
        MemoryDamaged: the file has other content, or cannot be read; also when an array is asked for.
        OSError: the device's limits are in the way, such as too few descriptors.
    """

    def __init__(self, path: Path, expected: str = "") -> None:
        self._path = path
        self._read: dict[str, npt.NDArray[Any]] = {}  # what was asked for so far
        with _read(path):
            self._file = np.load(path, allow_pickle=False)
            self._names: list[str] = list(self._file.files)
            is_whole = not expected or _seal_of(self._file.zip).hex() == expected
        if not is_whole:
            raise MemoryDamaged(path)

    def __repr__(self) -> str:
        return f"<StoredMemory {self._path}: {len(self._read)} of {len(self)} arrays were read>"

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._read:
            with _read(self._path):
                self._read[name] = self._file[name]
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def save_memory(path: Path, memory: ClientState, *, durable: bool = True) -> bytes:
    """Write named arrays as .npz.

    Args:
        path: the file.
        memory: the arrays.
        durable: wait until the content is on the disk. Its name follows with the state of the outbox, in the same folder.

    Returns:
        The seal of the file, for `StoredMemory`: it finds what a disk has damaged.

    Raises:
        DiskFull: the disk has no room for it.
        DiskBroken: it cannot be written, and waiting does not help.
    """
    arrays = dict(memory)  # before the disk is touched: some may still have to be read
    try:
        mark = str(os.getpid())  # another process may still work on the same step
        with atomic_replace(path, durable=durable, mark=mark, name_durable=False) as temporary:
            return _written(temporary, arrays)
    except OSError as error:
        raise unwritten(error, path) from error


def _written(path: Path, arrays: ClientState) -> bytes:
    """Write the arrays as `numpy.savez` does, which keeps the checksums to itself. Returns their seal."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
        return _seal_of(archive)


def unwritten(error: OSError, path: Path) -> ResultDoesNotFit | DiskBroken:
    """Why a file of the state could not be written: whether waiting helps, and what to do."""
    why = obstacle(error, path.parent)
    return ResultDoesNotFit(why) if why else DiskBroken(os_error_text(error))


def _seal_of(archive: zipfile.ZipFile) -> bytes:
    """The digest of the list of arrays: names, lengths and the CRC-32 that the file has of each content."""
    lines = [
        f"{member.filename}:{member.file_size}:{member.CRC:08x}" for member in archive.infolist()
    ]
    return digest("\n".join(lines).encode())
