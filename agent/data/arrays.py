"""Arrays: `.npz` files with x and y, and functions of the user's own that return such arrays.

Read `.npz` files within a limit: the claims of a file are compared with its size before memory is allocated.

`numpy.load` allocates what a header claims. Here a header must agree with the length of its member, and all members
together must stay below a limit. Pickled objects are never loaded.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal

import numpy as np
from numpy.lib import format as npy

from covey.agent.data.dataset import Array, Dataset, dataset, encode
from covey.agent.data.limits import ARRAY_VALUE_BYTES, unpacked_limit
from covey.agent.own_code import resolve
from covey.shared.errors import MAX_TYPE_NAME, CoveyError, DataError
from covey.shared.own_code import plugins
from covey.shared.own_code.consent import AllowedCode, ConsentError
from covey.shared.own_code.faults import said

MAX_MEMBERS = 10_000
MAX_AXES = 32

Members = dict[str, zipfile.ZipInfo]
Order = Literal["C", "F"]


class ArrayFileError(ValueError):
    """The file is no `.npz` of plain arrays, is damaged, or unpacks to more than its limit. The text quotes no data."""


@dataclass(frozen=True)
class _Header:
    """The header of one array."""

    shape: tuple[int, ...]
    is_fortran: bool  # the first axis varies fastest
    dtype: np.dtype[Any]

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_members(file: Path | BinaryIO, limit: int) -> dict[str, Array]:
    """Read all arrays of an `.npz` by name.

    Args:
        file: a path or an open, seekable file.
        limit: the largest number of bytes of all arrays together.

    Raises:
        ArrayFileError: the file is not acceptable.
        OSError: the file cannot be read.
    """
    if isinstance(file, Path):
        with file.open("rb") as opened:
            return read_members(opened, limit)
    try:
        with zipfile.ZipFile(file) as archive:
            arrays: dict[str, Array] = {}
            for name, member in _members(archive, limit).items():
                arrays[name] = _read(archive, member, limit)
                limit -= arrays[name].size * ARRAY_VALUE_BYTES
            return arrays
    except ArrayFileError:
        raise
    except MemoryError:
        raise ArrayFileError("its arrays do not fit into memory") from None
    except Exception as error:  # zipfile, zlib and numpy raise a dozen types for damaged bytes
        kind = type(error).__name__
        raise ArrayFileError(f"not an npz file, or cut short ({kind})") from None


def _members(archive: zipfile.ZipFile, limit: int) -> Members:
    """The members by the name of their array, after the checks that need no content."""
    listed = archive.infolist()
    if len(listed) > MAX_MEMBERS:
        raise ArrayFileError(f"{len(listed)} members, expected at most {MAX_MEMBERS}")
    total = sum(member.file_size for member in listed)
    if total > limit:
        raise ArrayFileError(f"it unpacks to {total} bytes, the limit is {limit}")
    members = {}
    for member in listed:
        name = member.filename.removesuffix(".npy")
        if name in members:
            raise ArrayFileError("a name occurs twice")
        members[name] = member
    return members


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo, limit: int) -> Array:
    with archive.open(member) as stream:
        header = _read_header(stream)
        present = member.file_size - stream.tell()
        claimed = header.size_bytes
        if header.dtype.itemsize == 0 or claimed != present:
            raise ArrayFileError(f"an array claims {claimed} bytes, but its member holds {present}")
        held = math.prod(header.shape) * ARRAY_VALUE_BYTES
        if held > limit:
            raise ArrayFileError(f"its numbers take {held} bytes, the limit is {limit}")
        array = np.empty(math.prod(header.shape), header.dtype)
        _fill(stream, array)
    order: Order = "F" if header.is_fortran else "C"
    return array.reshape(header.shape, order=order)


def _read_header(stream: IO[bytes]) -> _Header:
    version = npy.read_magic(stream)
    match version:
        case (1, 0):
            header = _Header(*npy.read_array_header_1_0(stream))
        case (2, 0):
            header = _Header(*npy.read_array_header_2_0(stream))
        case _:
            raise ArrayFileError(f"an array of format {version}, expected 1.0 or 2.0")
    if header.dtype.hasobject:
        raise ArrayFileError("it holds Python objects, expected plain arrays")
    axes = len(header.shape)
    if axes > MAX_AXES or min(header.shape, default=0) < 0:
        raise ArrayFileError(f"an array has {axes} axes, or an axis of negative length")
    return header


def _fill(stream: Any, array: Array) -> None:
    """Read to the very end: zipfile compares the checksum of a member only there."""
    view = array.view(np.uint8).data
    while view:
        count = stream.readinto(view)
        if not count:
            raise ArrayFileError("cut short")
        view = view[count:]
    if stream.read(1):
        raise ArrayFileError("a member is longer than its array")


ALIASES = {
    "x": ("x", "x_train", "features", "data"),
    "y": ("y", "y_train", "targets", "labels"),
    "x_test": ("x_test", "test_features"),
    "y_test": ("y_test", "test_targets"),
    "groups": ("groups", "group", "subject", "writer_train"),
    "test_groups": ("test_groups", "writer_test"),
    "populations": ("populations", "population"),
    "names": ("label_names", "class_names"),
}


def load_npz(path: Path) -> Dataset:
    """`x`, `y` and, if present, `x_test`, `y_test`, `groups`, `test_groups`, `populations`, `label_names`.

    Raises DataError; pickled arrays are refused.
    """
    return from_arrays(read_npz(path), str(path))


def read_npz(path: Path) -> dict[str, Array]:
    """Every array of the file by name. DataError for pickled objects, damaged files, and files that unpack to too much."""
    try:
        return read_members(path, unpacked_limit(path))
    except ArrayFileError as error:
        raise DataError(
            f"{path}: {error}; expected an npz file of plain arrays, with x and y",
            public=f"an npz file cannot be read: {error}",
        ) from None


def from_arrays(arrays: Mapping[str, Any], source: str) -> Dataset:
    """A Dataset from arrays under any of the names in ALIASES.

    Raises:
        DataError: x or y is missing, or an array does not fit the others.
    """
    found = {role: _first_of(arrays, names, source) for role, names in ALIASES.items()}
    x = found["x"]
    y = found["y"]
    test_x = found["x_test"]
    test_y = found["y_test"]
    if x is None or y is None:
        missing = "x" if x is None else "y"
        names_seen = ", ".join(sorted(str(name) for name in arrays)) or "nothing"
        raise DataError(
            f"{source}: no array {missing!r}; it holds {names_seen}", public=f"no array {missing!r}"
        )
    if (test_x is None) != (test_y is None):
        fault = "x_test and y_test belong together, only one of them is there"
        raise DataError(f"{source}: {fault}", public=fault)
    if 0 in (x.ndim, y.ndim):
        fault = "x or y is a single value; expected arrays"
        raise DataError(f"{source}: {fault}", public=fault)
    labels: tuple[str, ...] = ()
    if found["names"] is not None:
        labels = tuple(str(name) for name in found["names"].reshape(-1))
    ordered = bool(labels)
    if test_y is None:
        test_y = y[:0]
    if y.dtype.kind in "US":  # class names as targets
        y, test_y, labels = encode(_texts(y), _texts(test_y))
        ordered = False
    return dataset(
        x,
        y,
        None if test_x is None else (test_x, test_y),
        source=source,
        labels=labels,
        ordered=ordered,
        groups=found["groups"],
        test_groups=found["test_groups"],
        populations=found["populations"],
    )


def load_function(spec: str, allowed: AllowedCode) -> Dataset:
    """The data that a function of the user's own returns.

    Args:
        spec: `module:function` or `module:function:PATH`. The function is called with a Path (without PATH, the working
            directory) and returns (x, y), or a dict with x, y and optionally x_test, y_test, groups, test_groups,
            populations, label_names.
        allowed: the function is imported only if this names it.

    Raises:
        ConsentError: it does not. Nothing was imported.
        DataError: the function cannot be imported, or what it returns is not data.
    """
    module_name, name, *rest = spec.split(":", 2)
    try:
        function = resolve(f"{module_name}:{name}", allowed)
    except ConsentError:
        raise
    except (Exception, SystemExit) as error:  # it is not installed, or it is the user's code
        advice = "install the module on this device"
        raise DataError(
            f"data source {spec!r}: {said(error)}; {advice}",
            public=f"the data source cannot be imported; {advice}",
        ) from error
    path = Path(rest[0]) if rest else Path()
    return _called(function, path, spec)


def load_installed(name: str, allowed: AllowedCode) -> Dataset:
    """The data of an installed package that adds `name` to the entry points of the group `covey.data`.

    Its function is called as `load_function` calls the user's own: with the working directory, for (x, y) or a dict.

    Raises:
        ConsentError: the owner of this machine has not allowed the name. Nothing was imported.
        DataError: the package cannot be imported, or what it returns is not data.
    """
    try:
        function = plugins.load(plugins.DATA, name, allowed)
    except CoveyError:
        raise
    except (Exception, SystemExit) as error:  # the package's own code
        raise DataError(
            f"data source {name!r}: the installed package cannot be imported: {said(error)}; install it again",
            public="the data source cannot be imported",
        ) from error
    return _called(function, Path(), name)


def _called(function: Any, path: Path, spec: str) -> Dataset:
    """The data that a function of the user's own returns."""
    expected = "expected (x, y), or a dict with x and y"
    if not callable(function):
        raise DataError(
            f"data source {spec!r}: it is not a function; name one that takes a path",
            public="the data source is not a function",
        )
    try:
        found = function(path)
    except CoveyError:
        raise
    except (Exception, SystemExit) as error:  # the user's code
        raise DataError(
            f"data source {spec!r}: called with a path it raised {said(error)}; {expected}",
            public=f"the data source raised {type(error).__name__[:MAX_TYPE_NAME]}",
        ) from error
    match found:
        case (x, y):
            return from_arrays({"x": x, "y": y}, spec)
        case Mapping() as arrays:
            return from_arrays(arrays, spec)
        case other:
            raise DataError(
                f"{spec}: returned {type(other).__name__}; {expected}",
                public=f"the data source returned something else; {expected}",
            )


def _first_of(arrays: Mapping[str, Any], names: tuple[str, ...], source: str) -> Array | None:
    """The array under the first of these names that exists."""
    for name in names:
        if name not in arrays:
            continue
        try:
            return np.asarray(arrays[name])
        except ValueError:
            fault = f"the rows of {name} have different lengths"
            raise DataError(f"{source}: {fault}", public=fault) from None
    return None


def _texts(names: Array) -> list[str]:
    return [str(name) for name in names.tolist()]
