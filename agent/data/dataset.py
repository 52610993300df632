"""What every loader returns: samples in the type of their file, targets, and where they came from.

Bytes stay bytes: a sample becomes float32 only in the batch that trains on it, so that 60 000 images
take 47 MB and not 188.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.shared.errors import DataError
from covey.shared.seeds import generator

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]

SMALL_TYPES = ("uint8", "int8", "int16", "float32")


@dataclass(frozen=True)
class Dataset:
    """Samples and targets, with or without a test part (then its arrays have length 0).

    `features` (n, *shape) uint8, int8, int16 or float32. `targets` (n,): int64 class indices, or float32
    values. `labels` are the class names by index, () where the file counts its classes or holds values.
    `ordered` says that the format fixes which index a name has; otherwise only the names are common to
    all devices. `groups` (n,) names each sample's natural client (a writer, a person), `populations`
    the known population of each sample.
    """

    features: Array
    targets: Array
    test_features: Array
    test_targets: Array
    labels: tuple[str, ...] = ()
    groups: Array | None = None
    source: str = ""
    ordered: bool = False
    test_groups: Array | None = None
    populations: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.features.shape[1:])

    @property
    def has_test(self) -> bool:
        return len(self.test_targets) > 0

    @property
    def regression(self) -> bool:
        return bool(self.targets.dtype.kind == "f")


def dataset(
    features: Array,
    targets: Array,
    test: tuple[Array, Array] | None = None,
    *,
    source: str,
    labels: tuple[str, ...] = (),
    ordered: bool = False,
    groups: Array | None = None,
    test_groups: Array | None = None,
    populations: Array | None = None,
) -> Dataset:
    """A checked Dataset: same counts, finite numbers, at least two samples; DataError names the first fault."""
    x, y = _checked(features, targets, source)
    test_x, test_y = _checked(*test, f"{source}, test part") if test else (x[:0], y[:0])
    if len(y) + len(test_y) < 2:
        fault = "one sample only; training and testing need at least two"
        raise DataError(f"{source}: {fault}", public=fault)
    if test_x.shape[1:] != x.shape[1:]:
        fault = f"test samples have shape {test_x.shape[1:]}, training samples {x.shape[1:]}"
        raise DataError(f"{source}: {fault}", public=fault)
    for each in (groups, populations):
        if each is not None and len(each) != len(y):
            fault = f"{len(each)} group entries for {len(y)} samples; one per sample is expected"
            raise DataError(f"{source}: {fault}", public=fault)
    if (
        len(test_y) and test_y.dtype.kind != y.dtype.kind
    ):  # values that happen to be whole numbers in one part
        y, test_y = y.astype(np.float32), test_y.astype(np.float32)
    return Dataset(x, y, test_x, test_y, labels, groups, source, ordered, test_groups, populations)


def encode(train: Sequence[str], test: Sequence[str] = ()) -> tuple[Array, Array, tuple[str, ...]]:
    """Targets as people spell them: (targets, test targets, names).

    Whole numbers become int64 and other numbers float32, both without names; anything else becomes
    indices into the sorted names.
    """
    spelled = [*train, *test]
    for kind in (int, float):
        try:
            numbers = np.asarray([kind(text) for text in spelled], np.float64)
        except (ValueError, OverflowError):  # a word, or a whole number beyond the largest float
            continue
        array = _whole(numbers)
        return array[: len(train)], array[len(train) :], ()
    names = tuple(sorted(set(spelled)))
    index = {name: i for i, name in enumerate(names)}
    array = np.array([index[name] for name in spelled], np.int64)
    return array[: len(train)], array[len(train) :], names


def with_test(data: Dataset, share: float = 0.2, seed: int = 0) -> Dataset:
    """The same samples with a test part: its own if it has one, else `share` of them, drawn on the seed."""
    if data.has_test:
        return data
    n = len(data.targets)
    held = min(max(round(share * n), 1), n - 1)
    order = generator(seed, "test part").permutation(n)
    test, train = np.sort(order[:held]), np.sort(order[held:])
    return replace(
        take(data, train),
        test_features=data.features[test],
        test_targets=data.targets[test],
        test_groups=None if data.groups is None else data.groups[test],
    )


def take(data: Dataset, train: Indices) -> Dataset:
    """The data set with only the given training samples; the test part stays."""
    return replace(
        data,
        features=data.features[train],
        targets=data.targets[train],
        groups=None if data.groups is None else data.groups[train],
        populations=None if data.populations is None else data.populations[train],
    )


def small(features: Array) -> Array:
    """Features in one of the types that a Dataset holds; other numbers become float32."""
    return features if features.dtype.name in SMALL_TYPES else features.astype(np.float32)


def _checked(features: Array, targets: Array, source: str) -> tuple[Array, Array]:
    x, y = np.asarray(features), np.asarray(targets)
    if x.dtype.kind not in "uifb":
        raise DataError(
            f"{source}: features are {x.dtype}, numbers are expected",
            public="the features are no numbers",
        )
    if x.ndim < 2:
        fault = f"features have shape {x.shape}; (samples, ...) with at least 2 axes is expected"
        raise DataError(f"{source}: {fault}", public=fault)
    if y.shape not in {(len(x),), (len(x), 1)}:
        fault = (
            f"{len(x)} samples, but targets of shape {y.shape}; one target per sample is expected"
        )
        raise DataError(f"{source}: {fault}", public=fault)
    if not len(x):
        raise DataError(f"{source}: no samples", public="no samples")
    if 0 in x.shape:
        fault = f"samples of shape {x.shape[1:]} hold no numbers"
        raise DataError(f"{source}: {fault}", public=fault)
    return np.ascontiguousarray(small(_finite(x, source))), _targets(y.reshape(-1), source)


def _finite(x: Array, source: str) -> Array:
    if x.dtype.kind != "f":
        return x
    with np.errstate(over="ignore"):
        bad = ~np.isfinite(x.astype(np.float32, copy=False))
    if bad.any():
        row, *where = (int(i) for i in np.argwhere(bad)[0])
        column = where[0] + 1 if len(where) == 1 else tuple(where)
        value = x[(row, *where)]
        place = f"row {row + 1}, column {column}"
        raise DataError(
            f"{source}: {place}: {value}; a finite number is expected",
            public=f"{place} is not a finite number",
        )
    return x


def _targets(y: Array, source: str) -> Array:
    if y.dtype.kind in "uib":
        return y.astype(np.int64)
    if y.dtype.kind != "f":
        raise DataError(
            f"{source}: targets are {y.dtype}; class indices or values are expected",
            public="the targets are no numbers",
        )
    if not np.isfinite(y).all():
        row = int(np.flatnonzero(~np.isfinite(y))[0]) + 1
        fault = f"row {row}: the target is missing or infinite"
        raise DataError(f"{source}: {fault}", public=fault)
    return _whole(y)


def _whole(values: Array) -> Array:
    """Whole numbers as int64, for 1.0 is how some tables spell class 1; other values as float32."""
    exact = np.abs(values) < 2**53
    if exact.all() and (values == np.round(values)).all():
        return values.astype(np.int64)
    return values.astype(np.float32)
