"""`compare --jobs`: cells at the same time on one machine have the bytes that they have one by one."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from covey.coordinator.run.options import RunOptions
from covey.extras.compare.compare import CompareRequest, compare
from covey.extras.compare.tests.comparisons import scenario

TWO_CELLS = {"methods": [{"name": "fedavg"}, {"name": "fedclust", "n_clusters": 2}], "seeds": [4]}


@pytest.mark.processes
def test_cells_at_once_have_the_models_that_they_have_one_by_one(
    numpy_learner: None, tmp_path: Path
) -> None:
    scene = scenario(compare={**TWO_CELLS, "published": {}})
    found = []
    for request in (CompareRequest(in_process=True), CompareRequest(machines=2)):
        shown = io.StringIO()
        folder = tmp_path / str(request.machines)
        assert compare(scene, RunOptions(folder), request, Console(file=shown, width=80))
        models = sorted(folder.glob("*/*/models/*.safetensors"))
        found.append({str(path.relative_to(folder)): path.read_bytes() for path in models})
    assert len(found[0]) == 3, "one of FedAvg and two of FedClust"
    assert found[0] == found[1]
    assert "finished on" in shown.getvalue()
