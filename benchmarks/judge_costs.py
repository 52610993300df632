"""What the judge costs a device: seconds of a processor, memory and bytes of its report, with NumPy and torch, on a table and on images.

    python -m benchmarks.judge_costs

Each row is a process of its own on one core, with random samples: 2 000 rows of 20 numbers and an MLP of 64 hidden units, or 500
images of 28 x 28 pixels and LeNet-5. It measures the served model (`served`), or judges as a device does within `budget_s`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from covey.agent.data.dataset import Dataset, folds
from covey.agent.policy import OwnersRules
from covey.agent.worker.learners import load_learner
from covey.extras.judge.candidates import BeforeHome
from covey.extras.judge.judge import Judgement, only_served
from covey.extras.judge.trees import trees_for
from covey.shared.numerics.figures import figures_of
from covey.shared.numerics.vectors import Layout
from covey.shared.scenario.task import Task
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import Fold, Local
from covey.shared.wire.messages import ReportContent

OUT = Path(__file__).parent / "results" / "judge_costs.json"
CASES = (("table", "numpy"), ("table", "torch"), ("images", "torch"))
WAYS = ("served", "60 s", "5 s", "1 s")
ALONE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def case(kind: str) -> tuple[Task, Dataset]:
    """A task and the data of a device."""
    draw = np.random.default_rng(0)
    rows, shape, classes, name = (2000, (20,), None, "mlp") if kind == "table" else (500, (1, 28, 28), 10, "lenet5")  # fmt: skip
    x, test = (draw.normal(size=(n, *shape)).astype(np.float32) for n in (rows, rows // 4))
    y, truth = (
        one.reshape(len(one), -1)[:, 0] if classes is None else draw.integers(0, 10, len(one))
        for one in (x, test)
    )
    model = {"name": name, **({"options": {"hidden": 64}} if kind == "table" else {})}
    task = Task.model_validate({"features": list(shape), "classes": classes, "model": model})
    return task, Dataset(x, y, test, truth)


def measured(kind: str, learner: str, way: str, start: str) -> dict[str, Any]:
    """The costs of one device, in this process."""
    task, data = case(kind)
    with np.load(start) as kept:
        vector, layout = kept["vector"], Layout.from_wire(json.loads(str(kept["layout"])))
    made, rules = load_learner(learner), OwnersRules()

    def local_of(samples: Dataset) -> Local:
        training = Training(epochs=2, batch=32, lr=0.05)
        rng = np.random.default_rng(0)
        return made.local(samples, task, layout, training=training, rng=rng, rules=rules)

    local = local_of(data)
    trees = trees_for(task) if kind == "table" else None
    given = BeforeHome(
        ((1.0, vector),), task.outputs, others={} if trees is None else {"trees": trees}
    )
    began, truth = time.process_time(), local.targets("test")
    figures = {"server": figures_of(truth, local.predict(vector, "test").astype(np.float64))}
    empty: dict[str, Any] = {"vectors": {}, "examples": 1, "steps": 0, "loss": 0.0, "seconds": 0.0}
    sender: dict[str, Any] = {"run": "costs", "step": 1, "work": bytes(16), "client": "a"}
    plain = ReportContent(**sender, **empty, numbers=only_served(figures))
    numbers, homes = plain.numbers, None
    if way != "served":
        parts = (Fold(local_of(part), units) for part, units in folds(data, 1, "a"))
        known, candidates = Judgement.made(
            local,
            given,
            parts,
            figures,
            measure="",
            budget_s=float(way.split()[0]),
            clock=time.process_time,
        )
        choice = known.choice({}, single=False)
        numbers, homes = known.numbers(choice, candidates, None, local), list(known.snapshots)
    seconds = time.process_time() - began
    report = plain.model_copy(update={"numbers": numbers})
    # not `ru_maxrss`, which begins with that of the process that started this one
    [peak] = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    more = len(report.to_bytes()) - len(plain.to_bytes())
    return {
        "seconds": round(seconds, 1),
        "peak MB": int(peak) // 1024,
        "bytes more": more,
        "epochs": homes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--one", nargs=4, help="measure one row in this process")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(*options.one)))
        return
    from covey.agent.training.models import (
        initial,  # which loads torch, and a device with NumPy does not
    )

    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for (kind, learner), way in itertools.product(CASES, WAYS):
            vector, layout = initial(case(kind)[0], 1)
            start = Path(folder) / "start.npz"
            np.savez(start, vector=vector, layout=json.dumps(layout.to_wire()))
            command = [sys.executable, "-m", "benchmarks.judge_costs", "--one"]
            done = subprocess.run(
                [*command, kind, learner, way, str(start)],
                env=os.environ | ALONE,
                capture_output=True,
                text=True,
                check=True,
            )
            found[f"{kind}, {learner}, {way}"] = json.loads(done.stdout)
            print(f"{kind}, {learner}, {way}", found[f"{kind}, {learner}, {way}"], flush=True)
    OUT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
