"""The page of curves: what it reads out of a run's record, and that it is one file with everything in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from coordinator import display, records
from coordinator.curves import Curves, curves
from coordinator.page import page
from coordinator.records import finished
from shared.errors import UserError
from tests.small_run import in_process, scenario

PLANTED = {f"agent-{i}": i % 2 for i in range(8)}


def run(folder: Path, method: str, **sections: Any) -> Path:
    folder.mkdir()
    done = in_process(folder, scenario(method, evaluation={"every": 1}, **sections))
    records.write_all(done, PLANTED)
    return folder


def read(*folders: Path) -> list[Curves]:
    return curves(folders, [finished(folder) for folder in folders])


def test_curves_are_what_the_record_says(tmp_path: Path) -> None:
    (one,) = read(run(tmp_path / "one", "fedclust"))
    result = finished(tmp_path / "one")
    assert (one.label, one.figure) == ("fedclust", "accuracy")
    assert [x for x, _ in one.loss] == [1, 2, 3]  # the one-shot clustering before them is no round
    assert [x for x, _ in one.over_rounds("server")] == [1, 2, 3]
    assert one.over_rounds("server")[-1][1] == result["accuracy"]["server"]["accuracy"]["macro"]
    assert one.over_traffic("server")[-1][0] == pytest.approx(result["mbit_per_agent"])
    assert one.sizes[-1] == (3, {"0": 4, "1": 4})
    assert sum(one.by_truth().values()) == 8
    assert len(one.by_truth()) == 2  # every group in a cluster of its own


def test_runs_are_called_by_their_method_or_by_what_differs_in_their_paths(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = run(tmp_path / "a" / "seed-1", "fedavg"), run(tmp_path / "b" / "seed-1", "fedavg")
    assert [one.label for one in read(first, second)] == ["a/seed-1", "b/seed-1"]
    third = run(tmp_path / "c", "ifca")
    assert [one.label for one in read(first, third)] == ["fedavg", "ifca"]


def test_a_page_is_one_file_and_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    folders = [run(tmp_path / "<b>", "fedclust"), run(tmp_path / "two", "fedavg"), run(tmp_path / "three", "fedavg")]
    table = display.results([finished(folder) for folder in folders])
    made = page(read(*folders))
    assert made == page(read(*folders))
    assert made.count("<svg") == made.count("</svg>") == made.count("<figure>") == 6
    assert "src=" not in made
    assert 'href="http' not in made
    assert "<b>" not in made  # a folder's name is text, whatever it is
    for start in made.split("<svg")[1:]:
        ElementTree.fromstring(f"<svg{start[: start.index('</svg>')]}</svg>")  # noqa: S314 - our own
    for word in (*table.headers, "fedclust", "Agents per cluster over rounds"):
        assert word in made


def test_a_run_that_is_not_finished_has_no_page(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no result\.json"):
        read(tmp_path)
