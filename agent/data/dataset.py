"""What every loader returns: samples in the type of their file, targets, and where they came from.

Bytes stay bytes: a sample becomes float32 only in the batch that trains on it, so that 60 000 images
take 47 MB and not 188.

Test rows that agents of a simulated fleet have in common: a model computes on each of them once.

Rules that hand out labels give every agent all test rows of each of its labels, so that the same rows test many agents. The
rows that test the same agents are a set. A model computes on one set after the other, whichever agent asks first, so the
outputs are the same bytes for all of them, in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from cachetools import LRUCache

from covey.agent.data.values import number_written
from covey.agent.data.windows import apart_from, earlier_and_latest
from covey.shared import extras
from covey.shared.errors import DataError
from covey.shared.numerics.figures import kind_of
from covey.shared.numerics.units import JUDGING, STRETCHES, Split, Ties, series_of
from covey.shared.numerics.votes import LEAST
from covey.shared.seeds import generator
from covey.shared.wire.messages import digest

TESTS = 0.2  # of the samples test, of data without a test part
OUTPUTS_BYTES = 32 << 20  # of a process, for outputs that are kept
# rows of a set on average. A processor rounds the outputs of a few rows in another way than those of many
LEAST_ROWS = 16

Rows = npt.NDArray[np.int64]
Outputs = npt.NDArray[Any]  # (n, ...) floating point
Key = tuple[bytes | int, ...]  # what makes inputs of rows and outputs of inputs, a model, a set


def kept_arrays(room_bytes: int = OUTPUTS_BYTES) -> LRUCache[Key, Outputs]:
    """Room for outputs of layers: those that were used last stay."""
    return LRUCache(room_bytes, getsizeof=lambda outputs: outputs.nbytes)


def recalled(kept: LRUCache[Key, Outputs], key: Key, compute: Callable[[], Outputs]) -> Outputs:
    """The outputs of this key, computed if they are not kept. Outputs larger than all the room are not kept."""
    found = kept.get(key)
    if found is None:
        found = compute()
        with suppress(ValueError):
            kept[key] = found
    return found


@dataclass(frozen=True)
class SharedTests:
    """The sets that the test part of an agent consists of."""

    sets: tuple[tuple[int, Rows], ...]  # number of a set, and its rows in the agent's test part
    kept: LRUCache[Key, Outputs]

    def outputs(
        self, settings: str, model: npt.NDArray[np.float32], compute: Callable[[Rows], Outputs]
    ) -> Outputs:
        """The outputs (tests, k) on the whole test part.

        Args:
            settings: all else that the outputs depend on: task, scaling, learner.
            model: (d,).
            compute: gives the outputs (n, k) on rows (n,) of the test part.
        """
        where = digest(settings.encode())
        what = digest(np.ascontiguousarray(model).data)
        parts = [
            recalled(self.kept, (where, what, number), lambda rows=rows: compute(rows))  # type: ignore[misc]
            for number, rows in self.sets
        ]
        places = np.concatenate([rows for _, rows in self.sets])
        found = np.concatenate(parts)
        found[places] = found.copy()
        return found


def sets_of(test_idx: Rows, test_ptr: Rows) -> Rows | None:
    """The number of the set of each of the rows that all agents test on.

    Args:
        test_idx: rows of all agents, one after the other (t,).
        test_ptr: where each agent's begin, with the end of the last (N + 1,).

    Returns:
        (t,); None if agents have too few rows in common for this to be worth while.
    """
    if not len(test_idx):
        return None
    agents = len(test_ptr) - 1
    marks = np.random.default_rng(0).integers(1, 1 << 62, agents, np.uint64)
    sums = np.zeros(int(test_idx.max()) + 1, np.uint64)  # of the marks of those who test on a row
    np.add.at(sums, test_idx, np.repeat(marks, np.diff(test_ptr)))
    rows = np.unique(test_idx)
    sets, numbers = np.unique(sums[test_idx], return_inverse=True)
    is_shared = len(rows) < len(test_idx) and len(rows) >= LEAST_ROWS * len(sets)
    return numbers.astype(np.int64) if is_shared else None


def shared_tests(numbers: Rows, own: Rows, kept: LRUCache[Key, Outputs]) -> SharedTests | None:
    """The sets of one agent; None if it has no test rows, or one twice.

    Args:
        numbers: of the sets of its rows (n,).
        own: the rows (n,).
        kept: of the fleet.
    """
    if not len(own) or len(np.unique(own)) < len(own):
        return None
    order = np.lexsort((own, numbers))
    found, starts = np.unique(numbers[order], return_index=True)
    parts = np.split(order, starts[1:])
    return SharedTests(tuple(zip(found.tolist(), parts, strict=True)), kept)


Array = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]

SMALL_TYPES = ("uint8", "int8", "int16", "float32")
HELD_BACK = 0.1  # of the training samples, for votes
VOTING = 5 * LEAST  # samples: `LEAST` of fewer would be more than a fifth
FOLDS = 3  # of the training samples, to compare ways to use a model
MAX_EXACT = 2**53  # float64 holds all whole numbers below this


@dataclass(frozen=True)
class RawColumns:
    """How to read the features of a table whose columns a task names, before they become inputs of its model."""

    # by categorical column: its features are indices into these words; NaN stands for a missing cell in any column
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    left_out: int = 0  # samples of the training file with missing cells
    # of single rows, the latest of which test: (n,) when each was, in seconds; None: those that test are drawn
    moments: Array | None = None
    unlabelled: int = 0  # samples of the training file without their target, which are left out


@dataclass(frozen=True)
class Dataset:
    """Samples and targets, with or without a test part. `dataset` makes one from unchecked arrays."""

    features: Array  # (n, *shape), one of SMALL_TYPES; float64 with `columns`
    targets: Array  # (n,), int64 class indices or float32 values
    test_features: Array  # (tests, *shape); length 0 without a test part
    test_targets: Array  # (tests,)
    labels: tuple[str, ...] = ()  # class names by index; () if the file counts its classes
    groups: Array | None = None  # (n,) each sample's natural client: a writer, a person
    source: str = ""  # a path or a name, for messages
    # whether the format fixes which index a class name has; else only the names are common to all devices
    ordered: bool = False
    test_groups: Array | None = None  # (tests,)
    populations: Array | None = None  # (n,) the known population of each sample
    # of a table whose columns the task names: features (n, columns, ...) may be missing or words; None: they are inputs
    columns: RawColumns | None = None
    # of windows over rows, in time order within a series: how many before a window share rows with it; None: no windows
    overlap: int | None = None
    shared_tests: SharedTests | None = None  # of an agent of a simulated fleet
    # training samples of which limits and accounts are, those that were left out included; None: those that are here
    stated: int | None = None

    def __repr__(self) -> str:
        n = len(self.targets)
        tests = len(self.test_targets)
        return f"<Dataset {self.source}: {n} + {tests} samples of shape {self.shape}>"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.features.shape[1:])

    @property
    def has_test(self) -> bool:
        """Whether the data has a test part of its own."""
        return len(self.test_targets) > 0

    @property
    def regression(self) -> bool:
        """Whether the targets are values, not class indices."""
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
    columns: RawColumns | None = None,
    overlap: int | None = None,
) -> Dataset:
    """A checked Dataset.

    Args:
        features: (n, *shape) numbers; types that are not in SMALL_TYPES become float32.
        targets: (n,) or (n, 1); whole numbers become int64, others float32. Those of forecasts are (n, steps).
        test: features and targets of the test part.
        source: where the data came from, for messages.
        labels, ordered, groups, test_groups, populations, columns, overlap: as the fields of a Dataset. With columns, features
            may be NaN.

    Raises:
        DataError: counts or shapes differ, a number is not finite, or there are fewer than two samples.
    """
    missing = columns is not None
    x, y = _checked(features, targets, source, missing=missing)
    test_x = x[:0]
    test_y = y[:0]
    if test:
        test_x, test_y = _checked(*test, f"{source}, test part", missing=missing)
    if len(y) + len(test_y) < 2:
        fault = "one sample only; training and testing need at least two"
        raise DataError(f"{source}: {fault}", public=fault)
    if test_x.shape[1:] != x.shape[1:]:
        shape = x.shape[1:]
        test_shape = test_x.shape[1:]
        fault = (
            f"test samples have shape {test_shape}, training samples {shape}; bring both to one "
            "shape"
        )
        raise DataError(f"{source}: {fault}", public=fault)
    for entries in (groups, populations):
        if entries is not None and len(entries) != len(y):
            fault = f"{len(entries)} group entries for {len(y)} samples; expected one per sample"
            raise DataError(f"{source}: {fault}", public=fault)
    # values of a regression task that happen to be whole numbers in one part
    kinds_differ = test_y.dtype.kind != y.dtype.kind
    if len(test_y) and kinds_differ:
        y = y.astype(np.float32)
        test_y = test_y.astype(np.float32)
    return Dataset(
        features=x,
        targets=y,
        test_features=test_x,
        test_targets=test_y,
        labels=labels,
        groups=groups,
        source=source,
        ordered=ordered,
        test_groups=test_groups,
        populations=populations,
        columns=columns,
        overlap=overlap,
    )


def encode(train: Sequence[str], test: Sequence[str] = ()) -> tuple[Array, Array, tuple[str, ...]]:
    """Targets as people spell them: (targets, test targets, names).

    Whole numbers become int64 and other numbers float32, both without names; anything else becomes
    indices into the sorted names.
    """
    spelled = [*train, *test]
    names: tuple[str, ...] = ()
    array = _as_numbers(spelled)
    if array is None:
        names = tuple(sorted(set(spelled)))
        index_of = {name: index for index, name in enumerate(names)}
        array = np.array([index_of[name] for name in spelled], np.int64)
    cut = len(train)
    return array[:cut], array[cut:], names


def with_test(data: Dataset, share: float = TESTS, seed: int = 0) -> Dataset:
    """The same samples with a test part: its own if it has one, else `share` of them.

    Samples are drawn on the seed, of each class as large a share as of all. If the data has the moments of its rows, the
    latest ones test. Of windows over rows, the latest ones of each series test, and those that share rows with them are
    left out of training: a model would know most of their rows. All unusual samples test.

    Raises:
        DataError: no window is left to train on.
    """
    if data.has_test:
        return data
    if data.features.ndim == 3 and extras.has("formats"):
        data = extras.part("formats", "published").in_recordings(data)
    if kind_of(data.targets) == "anomalies" and data.targets.any():
        return _with_unusual(data, share, seed)
    n = len(data.targets)
    moments = None if data.columns is None else data.columns.moments
    groups, overlap = windows_in(data)
    if overlap is not None:
        train, test = earlier_and_latest(groups, overlap, share)
        if not len(train):
            fault = f"{n} windows, and all of them share rows with those that test"
            raise DataError(
                f"{data.source}: {fault}; give more rows, or windows that are shorter or overlap less",
                public=fault,
            )
    else:
        held = held_out(n, share)
        if moments is not None:
            test = np.argsort(moments, kind="stable")[n - held :]
        else:
            test = _drawn(data, held, generator(seed, "test part"))
        train = np.setdiff1d(np.arange(n), test)
        test = np.sort(test)
    return replace(
        take(data, train),
        test_features=data.features[test],
        test_targets=data.targets[test],
        test_groups=_rows(data.groups, test),
    )


def _with_unusual(data: Dataset, share: float, seed: int) -> Dataset:
    """A test part of all unusual samples and of a share of the others. Windows that share rows with unusual ones are in
    neither part."""
    groups, overlap = windows_in(data)
    unusual = np.flatnonzero(data.targets)
    usual = np.flatnonzero(apart_from(unusual, groups, overlap or 0))
    if len(usual) < 2:
        fault = f"{len(usual)} usual samples; training and testing need at least two"
        raise DataError(f"{data.source}: {fault}", public=fault)
    found = with_test(take(data, usual), share, seed)
    test_groups = _rows(data.groups, unusual)
    if found.test_groups is not None and test_groups is not None:
        test_groups = np.concatenate([found.test_groups, test_groups])
    return replace(
        found,
        test_features=np.concatenate([found.test_features, data.features[unusual]]),
        test_targets=np.concatenate([found.test_targets, data.targets[unusual]]),
        test_groups=test_groups,
    )


def _drawn(
    data: Dataset, held: int, rng: np.random.Generator, some: Indices | None = None
) -> Indices:
    """Random samples, of all or of `some`: of each class its share, up to one sample more or less. Their places in `some`."""
    strata = _strata(data) if some is None else _strata(data)[some]
    order = rng.permutation(len(strata))
    if data.regression:
        return order[:held]
    by_class = order[np.argsort(strata[order], kind="stable")]
    return by_class[((np.arange(held) + 0.5) * len(order) / held).astype(np.int64)]


def _strata(data: Dataset) -> Array:
    """The class (n,) of each training sample; of several labels, which of them it has."""
    if data.targets.ndim == 1:
        return data.targets
    return np.unique(data.targets, axis=0, return_inverse=True)[1].reshape(-1)


def windows_in(data: Dataset) -> tuple[Indices, int | None]:
    """The series (n,) of each training sample, and how many before one share rows with it; None: these are no windows."""
    moments = None if data.columns is None else data.columns.moments
    return series_of(data.features, data.groups, moments, data.overlap)


def ties_of(data: Dataset) -> Ties:
    """What ties the training samples of a data set to each other."""
    moments = None if data.columns is None else data.columns.moments
    return Ties.of(data.features, data.groups, moments, data.overlap)


def units_of(data: Dataset, stretches: int = STRETCHES) -> Indices:
    """The unit (n,) of each training sample; samples of one unit belong together. Of a series about as many as `stretches`."""
    return ties_of(data).units(data.targets, stretches)


def hold_back(data: Dataset, seed: int, client: str) -> tuple[Dataset, Dataset | None]:
    """What an agent trains on where it compares models on data of its own, and the samples that it holds back for that.

    They look like the rest: a tenth of the units, drawn, so that those of a series are stretches of all its time: the models
    that are compared have seen none of them, and need not forecast. They are the same in every phase of a run, none of the test
    part, and in training is neither a copy of one nor a sample that shares rows with one. Their units are their groups. Units
    that have more than a tenth of the samples train: a model would miss them. A data set of fewer than `VOTING` samples, or of a
    few units, holds nothing back: its agent has no vote.
    """
    ties = ties_of(data)
    units = ties.units(data.targets, JUDGING)
    _, first, of_sample, sizes = np.unique(
        units, return_index=True, return_inverse=True, return_counts=True
    )
    amount = max(round(HELD_BACK * len(first)), min(LEAST, len(first) // LEAST))
    small = np.flatnonzero(sizes <= max(HELD_BACK * len(units), LEAST))
    if len(units) < VOTING or not 1 < amount <= len(small):
        return data, None
    chosen = small[_drawn(data, amount, generator(seed, "held back", client), first[small])]
    train, held = ties.split(np.flatnonzero(np.isin(of_sample, chosen)))
    if not len(train) or len(held) < LEAST:
        return data, None
    alone = replace(
        data,
        groups=units,
        overlap=None,
        columns=data.columns and replace(data.columns, moments=None),
        test_features=data.test_features[:0],
        test_targets=data.test_targets[:0],
        test_groups=None,
        shared_tests=None,
    )
    return take(data, train), take(alone, held)


def folds(data: Dataset, seed: int, client: str) -> Iterator[tuple[Dataset, Indices]]:
    """The training samples in three ways, each time with another third of the units as test part: to compare models that train
    on the rest.

    Of samples in time order a third of the time tests: of stretches of all of it, neighbours in time would answer, which are not
    there in use. Samples of the test part have no part in this. Fewer units than folds give nothing.

    Yields:
        The data set of a fold, and the unit of each sample of its test part.
    """
    units = units_of(data, JUDGING)
    for train, test in splits(data, seed, client):
        fold = replace(
            take(data, train),
            test_features=data.features[test],
            test_targets=data.targets[test],
            test_groups=None,
            shared_tests=None,
        )
        yield fold, units[test]


def splits(data: Dataset, seed: int, client: str) -> list[Split]:
    """The samples that train and those that judge, in each fold."""
    ties = ties_of(data)
    units = ties.units(data.targets, JUDGING)
    _, first, of_sample = np.unique(units, return_index=True, return_inverse=True)
    if len(first) < FOLDS:
        return []
    if ties.places is not None:
        found = list(ties.parts_in_time(FOLDS))
    else:
        order = generator(seed, "folds", client).permutation(len(first))
        by_class = order[np.argsort(_strata(data)[first][order], kind="stable")]
        thirds = [by_class[place::FOLDS] for place in range(FOLDS)]
        found = [ties.split(np.flatnonzero(np.isin(of_sample, third))) for third in thirds]
    return [(train, test) for train, test in found if len(train) and len(test)]


def held_out(n: int, share: float) -> int:
    """How many of n samples test: the share, but at least one, and at least one stays for training."""
    return min(max(round(share * n), 1), n - 1)


def take(data: Dataset, train: Indices) -> Dataset:
    """The data set with only the given training samples; the test part stays."""
    columns = data.columns
    if columns is not None and columns.moments is not None:
        columns = replace(columns, moments=columns.moments[train])
    return replace(
        data,
        columns=columns,
        features=data.features[train],
        targets=data.targets[train],
        groups=_rows(data.groups, train),
        populations=_rows(data.populations, train),
    )


def small(features: Array) -> Array:
    """Features in one of the types that a Dataset holds; other numbers become float32."""
    if features.dtype.name in SMALL_TYPES:
        return features
    return features.astype(np.float32)


def _rows(entries: Array | None, rows: Indices) -> Array | None:
    if entries is None:
        return None
    return entries[rows]


def _checked(features: Array, targets: Array, source: str, *, missing: bool) -> tuple[Array, Array]:
    """Features and targets (n,) in the types of a Dataset. DataError names the first fault; NaN is one unless `missing`."""
    x = np.asarray(features)
    y = np.asarray(targets)
    if x.dtype.kind not in "uifb":
        raise DataError(
            f"{source}: features are {x.dtype}; expected numbers", public="features must be numeric"
        )
    if x.ndim < 2:
        fault = f"features have shape {x.shape}; expected (samples, ...) with at least 2 axes"
        raise DataError(f"{source}: {fault}", public=fault)
    n = len(x)
    if not n:
        raise DataError(f"{source}: no samples; give a file with at least two", public="no samples")
    if y.ndim not in (1, 2) or len(y) != n or 0 in y.shape:
        fault = f"{n} samples, but targets of shape {y.shape}; expected one target per sample"
        raise DataError(f"{source}: {fault}", public=fault)
    if 0 in x.shape:
        fault = f"samples of shape {x.shape[1:]} hold no numbers"
        raise DataError(f"{source}: {fault}", public=fault)
    if not missing:
        _check_finite(x, source)
    checked_y = _targets(y.reshape(-1), source)
    if y.size > n:
        checked_y = checked_y.reshape(n, -1)
    # cells of columns become small once they are standardised: a counter of ten digits changes in its last ones
    return np.ascontiguousarray(x if missing else small(x)), checked_y


def _check_finite(x: Array, source: str) -> None:
    """DataError for the first feature that is not finite as float32, with its row and column counted from 1."""
    if x.dtype.kind != "f":
        return
    with np.errstate(over="ignore"):
        single = x.astype(np.float32, copy=False)
    finite = np.isfinite(single)
    if finite.all():
        return
    first = tuple(np.argwhere(~finite)[0].tolist())
    row, *position = first
    column: object = tuple(position)
    if len(position) == 1:
        column = position[0] + 1
    place = f"row {row + 1}, column {column}"
    value = x[first]
    raise DataError(
        f"{source}: {place}: {value}; expected a finite number: correct it or leave the row out",
        public=f"{place} is not a finite number",
    )


def _targets(y: Array, source: str) -> Array:
    """Targets (n,) as int64 or float32. DataError for other types and for missing values."""
    if y.dtype.kind in "uib":
        return y.astype(np.int64)
    if y.dtype.kind != "f":
        raise DataError(
            f"{source}: targets are {y.dtype}; expected class indices or values",
            public="targets must be numeric",
        )
    missing = np.flatnonzero(~np.isfinite(y))
    if len(missing):
        row = int(missing[0]) + 1
        fault = f"row {row}: the target is missing or infinite; fill it in or leave the row out"
        raise DataError(f"{source}: {fault}", public=fault)
    return _whole(y)


def _as_numbers(spelled: Sequence[str]) -> Array | None:
    """All texts as int64 or float32; None if one of them is no number."""
    values: list[float] = []
    for text in spelled:
        number = number_written(text)
        if number is None:
            return None
        values.append(number)
    return _whole(np.asarray(values, np.float64))


def _whole(values: Array) -> Array:
    """Whole numbers as int64, for 1.0 is how some tables spell class 1; other values as float32."""
    exact = np.abs(values) < MAX_EXACT
    whole = values == np.round(values)
    if exact.all() and whole.all():
        return values.astype(np.int64)
    return values.astype(np.float32)
