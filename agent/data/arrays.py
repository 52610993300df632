"""Arrays: `.npz` files with x and y, and functions of the user's own that return such arrays."""

from __future__ import annotations

import importlib
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from agent.data.dataset import Array, Dataset, dataset, encode
from shared.errors import CoveyError, DataError, UserError

ALIASES = {
    "x": ("x", "x_train", "features", "data"),
    "y": ("y", "y_train", "targets", "labels"),
    "x_test": ("x_test", "test_features"),
    "y_test": ("y_test", "test_targets"),
    "groups": ("groups", "group", "subject", "writer_train"),
    "test_groups": ("test_groups", "writer_test"),
    "names": ("label_names", "class_names"),
}


def load_npz(path: Path) -> Dataset:
    """`x`, `y` and, if there, `x_test`, `y_test`, `groups`, `label_names`. Pickled arrays are refused."""
    return from_arrays(read_npz(path), str(path))


def read_npz(path: Path) -> dict[str, Array]:
    """Every array of the file by name. DataError for pickled objects and cut-short files."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except ValueError as error:
        raise DataError(f"{path}: holds Python objects or is no npz file ({error}); plain arrays are wanted") from None
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path}: not an npz file, or cut short ({error})") from None
    except AttributeError:  # np.load gives a bare array for .npy content
        raise DataError(f"{path}: a single array; an npz file with x and y is wanted") from None


def from_arrays(arrays: Mapping[str, Any], source: str) -> Dataset:
    """A Dataset from named arrays; DataError names what is missing."""
    found = {role: _first(arrays, names) for role, names in ALIASES.items()}
    x, y = found["x"], found["y"]
    if x is None or y is None:
        missing = "x" if x is None else "y"
        raise DataError(f"{source}: no array {missing!r}; it holds {', '.join(sorted(arrays)) or 'nothing'}")
    if (found["x_test"] is None) != (found["y_test"] is None):
        raise DataError(f"{source}: x_test and y_test belong together, only one of them is there")
    test_y = y[:0] if found["y_test"] is None else found["y_test"]
    labels = () if found["names"] is None else tuple(map(str, found["names"]))
    ordered = bool(labels)
    if y.dtype.kind in "US":
        y, test_y, labels = encode([str(name) for name in y.tolist()], [str(name) for name in test_y.tolist()])
        ordered = False
    test = None if found["x_test"] is None else (found["x_test"], test_y)
    return dataset(
        x,
        y,
        test,
        source=source,
        labels=labels,
        ordered=ordered,
        groups=found["groups"],
        test_groups=found["test_groups"],
    )


def load_function(spec: str) -> Dataset:
    """The user's `module:function` or `module:function:PATH`, called with a Path (the working directory without PATH).

    It returns (x, y) or a dict with x, y and optionally x_test, y_test, groups, label_names.
    """
    module_name, name, *rest = spec.split(":", 2)
    try:
        function = getattr(importlib.import_module(module_name), name)
    except Exception as error:  # a module that is not there, or the user's code
        raise UserError(f"data source {spec!r}: {error}; install the module on this device") from error
    if not callable(function):
        raise UserError(f"data source {spec!r}: {name} is not a function")
    try:
        found = function(Path(rest[0] if rest else "."))
    except CoveyError:
        raise
    except Exception as error:  # the user's code
        raise DataError(
            f"data source {spec!r}: called with a path it raised {type(error).__name__}: {error}; (x, y) or a dict with "
            "x and y is wanted"
        ) from error
    match found:
        case (x, y):
            return from_arrays({"x": x, "y": y}, spec)
        case Mapping() as arrays:
            return from_arrays(arrays, spec)
        case other:
            raise DataError(f"{spec}: returned {type(other).__name__}; (x, y) or a dict with x and y is wanted")


def _first(arrays: Mapping[str, Any], names: tuple[str, ...]) -> Array | None:
    return next((np.asarray(arrays[name]) for name in names if name in arrays), None)
