"""A training process: its start and its first order next to `import torch`, and an order next to its training alone.

    python -m benchmarks.worker [--times 7] [--jobs 200]

`cold` is a process that starts, does its first order (one step of SGD on LeNet-5) and ends; its floor is a process that
imports torch and ends. The memory of both is printed: PSS, which counts pages shared with other processes in part, and
the anonymous pages, which do not depend on other processes. `warm` is an order in a process that has done others; its floor is
the same step of SGD in bare torch. `evaluation` is an order to evaluate all three modes on 240 samples; its floor is the
same epoch of fine-tuning and the same three passes over 60 test samples in bare torch. `fleet`, where Fashion-MNIST is at
hand, is one model tested by 100 simulated agents, each on all test images of its two classes: each agent alone, and with the
images that agents have in common computed once. The floor of both computes the 10 000 images once in bare torch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.measuring import OUT, Cost, Row, cost_of, cost_of_children, foreign_load, in_turns
from benchmarks.measuring import show as show_rows
from covey.agent.policy import NO_CODE_RULES
from covey.agent.worker import fleet_share
from covey.agent.worker.memory_file import save_memory
from covey.shared.numerics.vectors import Layout
from covey.shared.programs.child import environment, worker_environment
from covey.shared.scenario.task import Model, Task
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import LAST_MODEL
from covey.shared.wire.codec import Codec, encode_model
from covey.shared.wire.jobs import DeviceData, FleetShare, JobRules, Perform, Performed, pack, read
from covey.shared.wire.messages import ModelRef, OrderMessage, Work, digest

SAMPLES = 8
EVALUATED = 240
TESTED = 60
BATCH = 20
TASK = Task(features=(1, 28, 28), classes=10, model=Model(name="lenet5", options={}))
IMPORT_TORCH = "import sys, torch; print(flush=True); sys.stdin.read()"
WORKER = "covey.agent.worker.worker"


def layout() -> Layout:
    """LeNet-5's, from torch, which this process has for the floor anyway."""
    from covey.agent.training.models import build, layout_of

    return layout_of(build(TASK, 0))


def write_data(folder: Path, samples: int, tests: int) -> Path:
    rng = np.random.default_rng(0)
    path = folder / f"data-{samples}.npz"
    features = rng.random((samples, 1, 28, 28), np.float32)
    targets = np.arange(samples) % 10
    np.savez(path, x=features, y=targets, x_test=features[:tests], y_test=targets[:tests])
    return path


def job(folder: Path, form: Layout, phase: str = "train") -> Perform:
    """The job of an order to train one step, or to evaluate."""
    samples = SAMPLES if phase == "train" else EVALUATED
    tests = SAMPLES if phase == "train" else TESTED
    batch = SAMPLES if phase == "train" else BATCH
    rng = np.random.default_rng(1)
    vector = rng.standard_normal(form.size, np.float32) * np.float32(0.02)
    content = encode_model(vector, form.digest, Codec(), rng)
    name = digest(content)
    model = folder / f"{name.hex()}.model"
    model.write_bytes(content)
    ref = ModelRef(key="0", digest=name, parts=1, size=len(content))
    work = Work(
        phase=phase,
        round=1,
        seed=0,
        strategy={"name": "fedavg"},
        training={"epochs": 1, "batch": batch, "lr": 0.001},
        task=TASK.for_agents(),
        layout=form.to_wire(),
        scaling=None,
        models=[ref],
        numbers={},
        cluster=0,
        sizes={"model": form.size},
        codec=Codec().to_wire(),
        evaluation={"tune_epochs": 1},
        part_bytes=1 << 19,
    )
    data = write_data(folder, samples, tests)
    memory = folder / "last.npz"
    save_memory(memory, {LAST_MODEL: vector}, durable=False)
    order = OrderMessage(run="run", step=1, accepted=0, closed=0, work=work)
    return Perform(
        source=DeviceData(data=str(data)),
        client="agent-1",
        order=order.to_bytes(),
        models=[model],
        memory=memory,
        report_out=folder / "report",
        memory_out=folder / "memory",
        durable=False,
        rules=JobRules(policy={}),
    )


# -- the start of a process --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """Memory of a process in MB."""

    pss_mb: float
    anonymous_mb: float

    @classmethod
    def of(cls, pid: int) -> Memory:
        full = psutil.Process(pid).memory_full_info()
        anonymous = full.rss - full.shared
        return cls(full.pss / 1e6, anonymous / 1e6)


Memories = list[Memory]


def median_of(memories: Memories) -> Memory:
    pss_mb = statistics.median(memory.pss_mb for memory in memories)
    return Memory(pss_mb, statistics.median(memory.anonymous_mb for memory in memories))


def run_worker(order: Perform, memories: Memories) -> None:
    """A new worker process does one order; `memories` gets its memory."""
    settings = worker_environment(threads="1")
    with subprocess.Popen(
        [sys.executable, "-m", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=settings
    ) as process:
        assert process.stdin is not None  # both are pipes
        assert process.stdout is not None
        process.stdin.write(pack(order))
        process.stdin.flush()
        answer = read(process.stdout)
        assert isinstance(answer, Performed), answer
        assert not answer.failed, answer
        memories.append(Memory.of(process.pid))
        process.stdin.close()


def import_torch(memories: Memories) -> None:
    """A new process imports torch; `memories` gets its memory."""
    settings = environment(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    with subprocess.Popen(
        [sys.executable, "-c", IMPORT_TORCH],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=settings,
    ) as process:
        assert process.stdin is not None  # both are pipes
        assert process.stdout is not None
        process.stdout.readline()
        memories.append(Memory.of(process.pid))
        process.stdin.close()


def cold(order: Perform, times: int) -> tuple[Row, dict[str, Memory]]:
    """The first order of a process next to `import torch`, and the memory of both."""
    of_import: Memories = []
    of_order: Memories = []
    row = in_turns(
        "first order of a process",
        lambda: cost_of_children(lambda: import_torch(of_import)),
        lambda: cost_of_children(lambda: run_worker(order, of_order)),
        times,
    )
    memories = {"import torch": median_of(of_import), row.what: median_of(of_order)}
    return row, memories


# -- an order of a warm process ----------------------------------------------------------------------------------------


def bare_step() -> Any:
    """One step of SGD in torch alone, on data and a model that are there."""
    import torch
    from torch.nn import functional

    from covey.agent.training.models import build

    module = build(TASK, 0)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.001)
    features = torch.rand(SAMPLES, 1, 28, 28)
    targets = torch.arange(SAMPLES) % 10

    def step() -> None:
        optimiser.zero_grad()
        loss = functional.cross_entropy(module(features), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    return step


def bare_evaluation() -> Any:
    """An epoch of fine-tuning and three passes over the test samples in torch alone."""
    import torch
    from torch.nn import functional

    from covey.agent.training.models import build

    module = build(TASK, 0)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.001)
    features = torch.rand(EVALUATED, 1, 28, 28)
    targets = torch.arange(EVALUATED) % 10

    def test() -> None:
        with torch.inference_mode():
            found = module(features[:TESTED]).argmax(dim=1)
            float((found == targets[:TESTED]).double().mean())

    def evaluate() -> None:
        test()
        order = torch.randperm(EVALUATED)
        for start in range(0, EVALUATED, BATCH):
            rows = order[start : start + BATCH]
            optimiser.zero_grad()
            loss = functional.cross_entropy(module(features[rows]), targets[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        test()
        test()

    return evaluate


def warm(what: str, order: Perform, step: Any, times: int, jobs: int) -> Row:
    """An order of a process that has done others, next to the same in bare torch."""
    from covey.agent.worker.worker import answer

    def work() -> None:
        done = answer(order)
        assert isinstance(done, Performed), done
        assert not done.failed, done

    for _ in range(5):
        work()
        step()

    def floor() -> Cost:
        return cost_of(step, jobs)

    def product() -> Cost:
        return cost_of(work, jobs)

    return in_turns(what, floor, product, times)


# -- a simulated fleet -------------------------------------------------------------------------------------------------

FLEET = {
    "name": "tested",
    "task": {"features": [1, 28, 28], "classes": 10, "model": {"name": "lenet5"}},
    "strategy": {"name": "fedavg"},
    "fleet": {
        "agents": 100,
        "data": "fashion-mnist",
        "partition": {"name": "label_skew", "share": 0.2},
    },
}


def fleet_rows(folder: Path, form: Layout, times: int) -> list[Row]:
    """One model tested by all agents of a fleet. None without the data set."""
    from torch import from_numpy, inference_mode

    from covey.agent.data.named import find_root, load_named
    from covey.agent.training.models import build
    from covey.agent.training.torch_learner import LEARNER
    from covey.agent.worker.sources import dataset
    from covey.shared.work.evaluate import measure

    root = find_root()
    if root is None or not (root / "fashion-mnist.npz").exists():
        return []
    scenario = folder / "fleet.yaml"
    scenario.write_text(json.dumps(FLEET))
    model = np.random.default_rng(1).standard_normal(form.size, np.float32) * np.float32(0.02)
    images = from_numpy(load_named("fashion-mnist").test_features.astype(np.float32))
    module = build(TASK, 0)

    def once() -> None:
        with inference_mode():
            for rows in images.reshape(-1, 1, 28, 28).split(256):  # type: ignore[no-untyped-call]
                module(rows)

    def tested(*, alone: bool) -> Cost:
        fleet_share._fleet.cache_clear()
        shares = [
            dataset(FleetShare(scenario=scenario, data_root=root, index=index), TASK)
            for index in range(100)
        ]

        def by_all() -> None:
            for share in shares:
                data = replace(share, shared_tests=None) if alone else share
                rng = np.random.default_rng(0)
                local = LEARNER.local(
                    data, TASK, form, training=Training(), rng=rng, rules=NO_CODE_RULES
                )
                measure(((1.0, model),), local)

        return cost_of(by_all)

    return [
        in_turns(what, lambda: cost_of(once), partial(tested, alone=alone), times)
        for what, alone in (("fleet, each agent alone", True), ("fleet, common images once", False))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    from covey.agent.training.torch_learner import configure_torch

    configure_torch()
    form = layout()
    with tempfile.TemporaryDirectory() as name, foreign_load() as load:
        folder = Path(name)
        training = job(folder, form)
        evaluation = job(folder, form, "evaluate")
        row, memories = cold(training, options.times)
        rows = [row]
        for what, order, floor in (
            ("order of a warm process", training, bare_step()),
            ("order to evaluate", evaluation, bare_evaluation()),
        ):
            rows.append(warm(what, order, floor, options.times, options.jobs))
        rows += fleet_rows(folder, form, min(options.times, 3))
    for what, memory in memories.items():
        print(f"{what}: {memory.pss_mb:.0f} MB (PSS), of these {memory.anonymous_mb:.0f} anonymous")
        load[f"{what}, pss_mb"] = round(memory.pss_mb, 1)
        load[f"{what}, anonymous_mb"] = round(memory.anonymous_mb, 1)
    show_rows("worker", "a training process", rows, load, options.out)


if __name__ == "__main__":
    main()
