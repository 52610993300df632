"""Many agents that train as one batch, next to the same agents one after the other. Prints a table, writes JSON.

    python -m benchmarks.together --device cuda [--agents 100] [--models lenet5 resnet9]

Every agent has 80 images (LeNet-5: Fashion-MNIST, ResNet-9: CIFAR-10, below --data-root) and trains in batches of ten from a
common start, for ten epochs and for five. Speeds are agents per second of the clock, medians over --times measurements in turns, after one
agent that warms up. Accuracy is that of the agents' own models on the common test images, macro average over agents.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measuring import Found, record_options, resumed
from benchmarks.torch_runs import device_option, repeatable
from covey.agent.data import fit
from covey.agent.data.partition import client_dataset, fleet_data
from covey.agent.training.learner import Nets, TorchLocal
from covey.agent.training.models import initial
from covey.agent.training.together import together
from covey.extras.simulate.batched import batched
from covey.shared.scenario.scenario import Scenario
from covey.shared.seeds import generator
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import TrainingResult

OUT = Path(__file__).parent / "results" / "together.json"
TASKS: dict[str, dict[str, Any]] = {
    "lenet5": {"features": [1, 28, 28], "data": "fashion-mnist"},
    "resnet9": {"features": [3, 32, 32], "data": "cifar10"},
}
TRAININGS: dict[str, dict[str, Any]] = {
    "lenet5": {"epochs": 10, "batch": 10, "lr": 0.05, "momentum": 0.9},
    "resnet9": {"epochs": 5, "batch": 10, "lr": 0.01, "momentum": 0.9},
}
IMAGES = 80  # of an agent, for training


def scenario(model: str, agents: int) -> Scenario:
    """The fleet of a measurement."""
    task = TASKS[model]
    return Scenario.model_validate(
        {
            "name": "together",
            "seed": 1,
            "task": {
                "features": task["features"],
                "classes": 10,
                "scale": 1 / 255,
                "model": {"name": model},
            },
            "strategy": {"name": "fedavg"},
            "rounds": {"count": 1},
            "fleet": {"agents": agents, "data": task["data"], "limit": IMAGES * agents},
        }
    )


def timed(train: Callable[[], Sequence[TrainingResult]]) -> tuple[float, Sequence[TrainingResult]]:
    """Seconds of the clock, and the results."""
    began = time.perf_counter()
    results = train()
    return time.perf_counter() - began, results


def measured(model: str, agents: int, device: str, times: int, root: Path | None) -> dict[str, Any]:
    """Agents per second and accuracy, one after the other and as one batch."""
    scene = scenario(model, agents)
    data, split = fleet_data(scene, root)
    people = [fit(client_dataset(data, split, index), scene.task) for index in range(agents)]
    start, layout = initial(scene.task, 1)
    training = Training.model_validate({**TRAININGS[model], "device": device})
    nets = Nets()

    def learners(number: int) -> list[TorchLocal]:
        return [
            TorchLocal(
                one,
                scene.task,
                layout,
                training=training,
                rng=generator(1, "order", index),
                nets=nets,
            )
            for index, one in enumerate(people[:number])
        ]

    def one_by_one(number: int = agents) -> list[TrainingResult]:
        return [local.train(start) for local in learners(number)]

    def as_one(number: int = agents) -> list[TrainingResult]:
        return together([partial(local.train, start) for local in learners(number)], batched)

    one_by_one(1), as_one(1)
    measurements = [(timed(one_by_one), timed(as_one)) for _ in range(times)]
    singles, batches = zip(*measurements, strict=True)
    tests = learners(1)[0]
    targets = tests.targets("test")

    def accuracy(results: Sequence[TrainingResult]) -> float:
        hits = [
            (tests.predict(one.end, "test").argmax(axis=1) == targets).mean() for one in results
        ]
        return round(100 * float(np.mean(hits)), 2)

    found = {}
    for name, runs in (("one by one", singles), ("batched", batches)):
        seconds = [taken for taken, _ in runs]
        found[name] = {
            "agents a second": round(agents / float(np.median(seconds)), 2),
            "accuracy": accuracy(runs[0][1]),
        }
    ratios = [single[0] / batch[0] for single, batch in measurements]
    ends = zip(singles[0][1], batches[0][1], strict=True)
    gap = max(float(np.abs(one.end - other.end).max()) for one, other in ends)
    return {**found, "ratio": round(float(np.median(ratios)), 2), "largest difference": gap}


def table(found: Found) -> str:
    """Markdown: a row for each model and device."""
    lines = [
        "| model, agents, device | one by one | as one batch | accuracy | as one batch |",
        "|---|--:|--:|--:|--:|",
    ]
    for key, row in found.items():
        figures = [
            f"{row[how][figure]:.1f}"
            for figure in ("agents a second", "accuracy")
            for how in ("one by one", "batched")
        ]
        lines.append(f"| {key.replace('/', ', ')} | {' | '.join(figures)} |")
    return "\n".join(lines)


def main() -> None:
    parser = record_options(__doc__, OUT, [1])
    device_option(parser)
    parser.add_argument("--models", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--agents", type=int, default=100)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--data-root", type=Path)
    options = parser.parse_args()
    repeatable()
    kind = "cpu"
    if options.device == "cuda":
        kind = torch.cuda.get_device_name()

    found = resumed(
        options,
        {
            f"{model}/{options.agents}/{kind}": partial(
                measured, model, options.agents, options.device, options.times, options.data_root
            )
            for model in options.models
        },
        {"images": IMAGES, "trainings": TRAININGS, "torch": torch.__version__},
    )
    print(table(found))


if __name__ == "__main__":
    main()
