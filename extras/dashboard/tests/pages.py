"""Small finished runs, and the pages of their reports."""

from __future__ import annotations

import json
import re
import shutil
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from pyarrow import Table, parquet

from covey.coordinator.disk.versions import START
from covey.coordinator.record.records import finished
from covey.coordinator.run.result import write_all
from covey.extras.dashboard.curves import Curves, curves
from covey.extras.dashboard.html_report import page
from covey.shared.scenario.describe import dump
from covey.shared.scenario.scenario import Scenario
from covey.shared.storage import json_text
from tests.kit.small_run import in_process, scenario, setup

PLANTED = {f"agent-{i}": i % 2 for i in range(8)}


@cache
def place() -> TemporaryDirectory[str]:
    """Lasts as long as this process."""
    return TemporaryDirectory()


def run(folder: Path, method: str, **sections: Any) -> Path:
    """A finished run, in a folder of the caller's own. It is made once."""
    name = sha256(repr((method, sections)).encode()).hexdigest()
    made = Path(place().name) / name
    if not made.exists():
        _made(made, method, **sections)
    return Path(shutil.copytree(made, folder))


def _made(folder: Path, method: str, **sections: Any) -> None:
    folder.mkdir()
    evaluation = {"every": 1, **sections.pop("evaluation", {})}
    scene = scenario(method, evaluation=evaluation, **sections)
    done = in_process(folder, scene)
    write_all(done, PLANTED)
    keep_inputs(folder, scene)


def keep_inputs(folder: Path, scene: Scenario) -> None:
    """Write the files that `coordinator run` writes when a run begins."""
    (folder / "scenario.yaml").write_text(dump(scene))
    given = setup(scene)
    layout = json_text.dumps(given.layout.to_wire())
    np.savez(folder / START, starts=np.stack(given.starts), layout=np.array(layout))


def read(*folders: Path) -> list[Curves]:
    return curves(folders, [finished(folder) for folder in folders])


def page_of(*folders: Path) -> str:
    return page(read(*folders), folders)


HOSTILE = "</td><script>hacked = '&\"'</script>"  # the name of an agent


def rename(folder: Path, agent: str, name: str) -> None:
    """Give an agent another name in all files of a finished run that its report reads."""
    for file in (folder / "result.json", folder / "rounds.jsonl"):
        text = file.read_text().replace(json.dumps(agent), json.dumps(name))
        file.write_text(text)
    rows = parquet.read_table(folder / "agents.parquet").to_pylist()
    for row in rows:
        row["agent"] = row["agent"].replace(agent, name)
    parquet.write_table(Table.from_pylist(rows), folder / "agents.parquet")
    (folder / "checkpoint" / "manifest.json").unlink()  # it knows the agent by its name


def as_regression(folder: Path) -> None:
    """Turn the figures of a finished run into those of a regression: accuracies become RMSE, without F1."""
    for file in (folder / "result.json", folder / "rounds.jsonl"):
        text = re.sub(r'"accuracy": (?=\{\s*"m)', '"rmse": ', file.read_text())
        file.write_text(re.sub(r'"f1": (?=\{\s*"m)', '"mse": ', text))
    rows = parquet.read_table(folder / "agents.parquet").to_pylist()
    for row in rows:
        for mode in ("server", "tuned", "last"):
            row[f"{mode}_rmse"] = row.pop(f"{mode}_accuracy")
    parquet.write_table(Table.from_pylist(rows), folder / "agents.parquet")
