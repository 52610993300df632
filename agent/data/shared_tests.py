"""Test rows that agents of a simulated fleet have in common: a model computes on each of them once.

Rules that hand out labels give every agent all test rows of each of its labels, so that the same rows test many agents. The
rows that test the same agents are a set. A model computes on one set after the other, whichever agent asks first, so the
outputs are the same bytes for all of them, in every process.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from cachetools import LRUCache

from covey.shared.wire.messages import digest

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
