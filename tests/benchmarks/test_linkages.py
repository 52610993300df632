"""The comparison of linkages: the same distances, cut by each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.linkages import LINKAGES, Row, compared, line


def chain() -> npt.NDArray[np.float64]:
    """Two groups on a line whose points lie 1 apart, with a gap of 1.5 between them, and one point far away."""
    places = np.array([0.0, 1, 2, 3, 4.5, 5.5, 6.5, 7.5, 30])
    distances: npt.NDArray[np.float64] = np.abs(places[:, None] - places)
    return distances


def test_every_linkage_cuts_the_same_distances() -> None:
    truth = [*"aaaa", *"bbbb", "c"]
    rows = {row.linkage: row for row in compared(chain(), truth, 3)}
    assert tuple(rows) == LINKAGES
    for row in rows.values():
        assert row.sizes == (4, 4, 1)
        assert row.singles == 1
        assert row.ari == pytest.approx(1)
    assert rows["single"].gap == pytest.approx(1.5)


def test_one_cluster_has_no_next_merge() -> None:
    for row in compared(chain(), ["a"] * 9, 1):
        assert row.sizes == (9,)
        assert row.gap == 1


def test_a_line_names_the_largest_clusters_only() -> None:
    row = Row("ward", 8, (5, 4, 3, 2, 2, 2, 1, 1), 2, 0.5, 1.25)
    assert line(row) == "| ward | 8 | 5 + 4 + 3 + 2 + 2 + 2 + ... | 2 | 0.50 | 1.25 |"
