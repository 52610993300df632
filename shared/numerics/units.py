"""Units: samples of one agent that belong together, so that they never lie on both sides of a split. Pure.

Four ties make samples belong together: a group of the source (a recording, a machine, a day), nearness in time, readings that
windows share, and equality.
A rare class that was repeated, a log that was appended twice, ten readings at one spot: a model that has seen one of these
samples knows the others, and a test that takes them for independent ones finds differences where there are none.

Units divide and samples weigh: folds and standard errors are by units, means by samples, so that a rare class that was repeated
weighs as much as it was meant to. Cards, samples held back for votes and folds take their units from here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Self

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]
Split = tuple[Indices, Indices]  # samples that train and samples that judge, each ascending

STRETCHES = 8  # of a series: two in each block of a card
JUDGING = 72  # stretches of a series whose errors are compared; half as many where the class stays
CHUNK = 4096  # samples at once
RECORDINGS = 25  # of this many series each is a unit, like a group; fewer are divided in time
SHARED = 4  # readings: tables of a few columns have neighbours with common cells
PAIRS = 256  # neighbours in a file that show whether it holds windows that overlap


@dataclass(frozen=True)
class Ties:
    """What ties the n training samples of an agent to each other."""

    kinds: (
        Indices  # (n,) equal samples have one number, counted in the order in which they first come
    )
    groups: Indices  # (n,) the group of each, from 0
    overlap: int = 0  # how many samples before one, in its group, share rows of the source with it
    places: Indices | None = None  # (n,) the place of each in the order of time; None: it has none

    @classmethod
    def of(
        cls,
        samples: Array,
        groups: Array | None = None,
        moments: Array | None = None,
        overlap: int | None = None,
    ) -> Self:
        """The ties of some samples.

        Args:
            samples: (n, ...) what a model gets of each.
            groups: (n,) of the source; None: it has none.
            moments: (n,) when each was; None: they have no order in time, or the one in which they come if they are windows.
            overlap: of windows: how many before one share rows with it; None: these may be windows, see `series_in`.
        """
        n = len(samples)
        of_source, shared = series_of(samples, groups, moments, overlap)
        if overlap is None and shared is not None and of_source.max() + 1 < RECORDINGS:
            overlap = shared
        places = None
        if overlap is not None:
            places = np.arange(n)
        elif moments is not None:
            places = np.empty(n, np.int64)
            places[np.argsort(moments, kind="stable")] = np.arange(n)
        return cls(kinds_of(samples), of_source, overlap or 0, places)

    def units(self, targets: Array, stretches: int = STRETCHES) -> Indices:
        """The unit (n,) of each sample.

        Where samples have an order in time it is a stretch of a group; otherwise the group, or the sample itself if there is
        one group. A copy is of the unit of the sample that it copies.

        Args:
            targets: (n, ...) classes or values: a stretch ends where they change.
            stretches: of a group, about.
        """
        if self.places is not None:
            units = self._stretches(targets, stretches)
        elif self.groups.any():
            units = self.groups
        else:
            return self.kinds
        _, first = np.unique(self.kinds, return_index=True)
        of_first: Indices = units[first[self.kinds]]
        return of_first

    def _stretches(self, targets: Array, stretches: int) -> Indices:
        """Stretches (n,) of each group in the order of time.

        A stretch ends where the class changes, so that no run of a class is in two of them: shares of classes would agree
        between blocks by chance. It is as long as `stretches` of them fill the group, and twice as long at most if the class
        stays. Windows at the two sides of a border may share rows, so it is also longer than the windows that overlap.
        """
        units = np.zeros(len(self.kinds), np.int64)
        unit = -1
        for rows in self._series():
            usual = max(-(-len(rows) // stretches), 2 * self.overlap, 1)
            unit += 1
            length = 0
            for before, row in zip([rows[0], *rows], rows, strict=False):
                changes = np.any(targets[row] != targets[before])
                if length >= 2 * usual or (length >= usual and changes):
                    unit += 1
                    length = 0
                units[row] = unit
                length += 1
        return units

    def _series(self) -> Iterator[Indices]:
        """The samples of each group, in the order of time."""
        assert self.places is not None  # noqa: S101 - only then there are stretches
        order = np.lexsort((self.places, self.groups))
        starts = np.flatnonzero(np.diff(self.groups[order], prepend=-1))
        yield from np.split(order, starts[1:])

    def parts_in_time(self, count: int) -> Iterator[Split]:
        """In turn each of `count` parts of each group, which follow each other in time, judges; the others train."""
        series = list(self._series())
        for part in range(count):
            yield self.split(np.concatenate([np.array_split(one, count)[part] for one in series]))

    def split(self, judging: Indices) -> Split:
        """Samples that judge, and all that share neither rows nor a copy with them."""
        is_free = ~np.isin(self.kinds, self.kinds[judging]) & ~self._near(judging)
        return np.flatnonzero(is_free), np.sort(judging)

    def _near(self, some: Indices) -> npt.NDArray[np.bool_]:
        """(n,) whether a sample is one of these, or shares rows of the source with one."""
        is_near = np.zeros(len(self.kinds), np.bool_)
        is_near[some] = True
        if self.overlap:
            width = np.ones(2 * self.overlap + 1)
            for rows in self._series():
                near = np.convolve(is_near[rows], width)[self.overlap :]
                is_near[rows] = near[: len(rows)] > 0
        return is_near


def series_of(
    samples: Array, groups: Array | None, moments: Array | None, overlap: int | None
) -> tuple[Indices, int | None]:
    """The series (n,) of each sample, from 0, and how many before one share rows with it; None: these are no windows.

    Groups, times and windows that the source names come before windows that are found. The arguments are those of `Ties.of`.
    """
    series = np.zeros(len(samples), np.int64)
    if groups is not None:
        series = np.unique(groups, return_inverse=True)[1].reshape(-1).astype(np.int64)
    if overlap is not None or moments is not None or series.any():
        return series, overlap
    found, shared = series_in(samples)
    return found, shared or None


def series_in(samples: Array) -> tuple[Indices, int]:
    """The series that samples are windows of, if each begins with the end of the one before it, as in most files of windows.

    Half of the neighbours in the file must do so, with at least half of their readings and `SHARED` of them, and with contents
    that differ: by chance, or where nothing moves, nothing is found.

    Args:
        samples: (n, channels, time), (n, time, channels) or (n, values) in either direction of time.

    Returns:
        The series (n,) of each sample, from 0, and how many samples before one share readings with it: all 0 and 0 if these
        are no such windows.
    """
    n = len(samples)
    none = np.zeros(n, np.int64), 0
    if samples.ndim == 2:
        ways = [samples[:, None], samples[:, None, ::-1]]
    elif samples.ndim == 3:
        ways = [samples, samples.swapaxes(1, 2)]
    else:
        return none
    some = np.unique(np.linspace(0, max(n - 2, 0), PAIRS).astype(np.int64))
    for windows in ways if n > 2 else ():
        length = windows.shape[2]
        for step in range(1, min(length // 2, length - SHARED) + 1):
            if not _follow(windows[some], windows[some + 1], step)[1]:
                continue
            follows, is_common = _follow(windows[:-1], windows[1:], step)
            if is_common:
                return np.cumsum([False, *~follows]), -(-length // step) - 1
    return none


def _follow(before: Array, after: Array, step: int) -> tuple[npt.NDArray[np.bool_], bool]:
    """Which windows (m,) continue `step` readings later in the window after them, and whether that is what most do."""
    starts = after[:, :, :-step]
    follows = (before[:, :, step:] == starts).all(axis=(1, 2))
    count = int(follows.sum())
    is_common = 2 * count >= len(follows)
    return follows, is_common and 2 * len(np.unique(kinds_of(starts[follows]))) > count


def kinds_of(samples: Array) -> Indices:
    """The number (n,) of each sample, the same for equal ones, counted in the order in which they first come."""
    numbers: dict[bytes, int] = {}
    found = np.empty(len(samples), np.int64)
    for start in range(0, len(samples), CHUNK):
        piece = np.ascontiguousarray(samples[start : start + CHUNK])
        if piece.dtype.kind == "f":
            piece = np.where(np.isnan(piece), np.nan, piece + 0)  # one NaN, and no negative zero
        for place, sample in enumerate(piece, start):
            digest = blake2b(sample.tobytes(), digest_size=16).digest()
            found[place] = numbers.setdefault(digest, len(numbers))
    return found
