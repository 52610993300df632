"""Arrays: `.npz` files with x and y, and functions of the user's own that return such arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from covey.agent.data import array_files
from covey.agent.data.dataset import Array, Dataset, dataset, encode
from covey.agent.data.limits import unpacked_limit
from covey.agent.own_code import resolve
from covey.shared.errors import MAX_TYPE_NAME, CoveyError, DataError
from covey.shared.own_code import plugins
from covey.shared.own_code.consent import AllowedCode, ConsentError
from covey.shared.own_code.faults import said

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
        return array_files.read_npz(path, unpacked_limit(path))
    except array_files.ArrayFileError as error:
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
