"""A small fleet as its own process, and what an undisturbed run of it ends with."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from covey.shared import extras
from covey.shared.scenario.scenario import Scenario
from tests.kit.scenes import DIGITS, Scenes, Sections, changed, start_file
from tests.processes import Program, free_port, mosquitto, program, until, words


class Started(Scenes):
    """Scenarios whose initial models lie in a file: no program imports torch to draw them."""

    def written(
        self,
        folder: Path,
        method: str | Sections | None = None,
        *,
        file: str = "scenario.yaml",
        **changes: Any,
    ) -> Path:
        document = self.document(method, **changes)
        starts = Scenario.model_validate(document).strategy.starts
        init = {"task": {"init": start_file(folder, document["task"], starts)}}
        return super().written(folder, method, file=file, **changed(changes, init))


AGENTS = 8
REAL = Started.of(
    "e2e",
    {**DIGITS, "model": {"name": "mlp", "options": {"hidden": 32}}},
    seed=5,
    training={"epochs": 2, "batch": 10, "lr": 0.1},
    strategy={"name": "fedclust", "n_clusters": 2},
    rounds={
        "count": 8,
        "participation": 0.5,
        "start_agents": AGENTS,
        "deadline_s": 120,
        "timing": {"absence_s": 20},
    },
    evaluation={"deliver": "served"},  # the choice of a model costs two more epochs
    wire={"part_bytes": 2048},
)
# planted clusters of digits; every job takes a third of a second, so a run takes seconds
SIMULATED = Started(
    REAL.document(
        fleet={
            "agents": AGENTS,
            "data": "digits",
            "partition": {"name": "grouped_labels", "groups": 2},
            "workers": 1,  # one import of torch, which takes longer than all the work
            "faults": {"slow": 1.0, "slow_s": 0.3},
        }
    )
)


@contextlib.contextmanager
def fleet(folder: Path, port: int, **sections: Any) -> Iterator[Program]:
    """The agents alone, ready to be ordered by any coordinator at this broker."""
    path = SIMULATED.written(folder, file="fleet.yaml", **sections)
    url = f"mqtt://127.0.0.1:{port}"
    command = ["covey.agent.cli", "lab", "fleet", str(path)]
    command += ["--broker", url, "--run-dir", str(folder)]
    if extras.has("light"):
        command += ["--learner", "numpy"]  # it starts without an import of torch
    with program(*command, log=folder / "f.log") as f:
        until(lambda: "agents" in f.output, of=f)
        yield f


def coordinator(
    folder: Path, port: int, *more: str, out: str = "run", fresh: bool = False, **sections: Any
) -> Program:
    """`coordinator run` at this broker, without a fleet of its own. The caller ends it."""
    sections.pop("fleet", None)
    path = REAL.written(folder, **sections)
    url = f"mqtt://127.0.0.1:{port}"
    command = words(
        "coordinator run", path, "--out", folder / out, "--broker", url, "--json", *more
    )
    return Program(command, folder / f"{out}.log", fresh=fresh)


def finish(this: Program, within_s: float = 120.0) -> None:
    """Wait until a coordinator has come to a good end."""
    try:
        until(lambda: this.process.poll() is not None, within_s, of=this)
        assert this.process.returncode == 0, this.output[-3000:]
    finally:
        this.stop()


def whole_in_process(folder: Path, **sections: Any) -> Path:
    """The run folder of the same simulated run without a network, which nobody disturbs."""
    folder.mkdir()
    path = SIMULATED.written(folder, **changed(sections, {"fleet": {"faults": {}}}))
    command = ["covey.coordinator.cli", "run", str(path), "--out", str(folder / "run")]
    finish(Program([*command, "--in-process"], folder / "log"))
    return folder / "run"


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of an undisturbed run on a stock Mosquitto, the same for all workers of pytest-xdist."""
    common = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        common = common.parent
    folder, port = common / "undisturbed", free_port()
    with (common / "undisturbed.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "run" / "result.json").exists():
            folder.mkdir()
            with mosquitto(folder, port), fleet(folder, port):
                finish(coordinator(folder, port))
    return folder / "run"
