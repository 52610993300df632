"""A simulated run next to a plain loop in torch that trains the same: what records, seeds and a resume cost without a network.

    python -m benchmarks.simulation [--times 3] [--rounds 20]

FedAvg on scikit-learn's digits, with the partition, model and training of `scenarios/digits.yaml`: ten of twenty agents in a round,
each two epochs in batches of ten. The loop is what a researcher writes in an afternoon: a process that averages state
dictionaries and measures the last model. *Served* measures the last model too; *in use* is the default, with the judge on
each device. All train with one thread, and each processor time has the imports in it.
"""

from __future__ import annotations

import argparse
import copy
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.measuring import OUT, Cost, Row, cost_of_children, foreign_load, median, show

DIGITS = Path("scenarios/digits.yaml")
SERVED = ("evaluation.deliver=served", "evaluation.tune_epochs=0")


def plain(rounds: int) -> float:
    """The accuracy of FedAvg's last model, as a mean over agents, after this number of rounds."""
    import torch
    from torch import nn

    from covey.agent.data.partition import fleet_data
    from covey.shared.scenario.load import load

    scene = load(DIGITS)
    data, split = fleet_data(scene)
    held_back = split.test_of == "train"
    tests = data.features if held_back else data.test_features
    truth = data.targets if held_back else data.test_targets
    torch.set_num_threads(1)
    torch.manual_seed(0)
    draws = np.random.default_rng(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    loss_of = nn.CrossEntropyLoss()
    for _ in range(rounds):
        trained: list[tuple[int, Any]] = []
        for agent in draws.choice(split.agents, split.agents // 2, replace=False):
            rows = split.train(agent)
            x = torch.from_numpy(data.features[rows].astype(np.float32) * scene.task.scale)
            y = torch.from_numpy(data.targets[rows])
            own = copy.deepcopy(model)
            descent = torch.optim.SGD(own.parameters(), lr=0.1)
            for _ in range(2):
                for batch in torch.randperm(len(y)).split(10):  # type: ignore[no-untyped-call]
                    descent.zero_grad()
                    loss_of(own(x[batch]), y[batch]).backward()
                    descent.step()
            trained.append((len(y), own.state_dict()))
        samples = sum(count for count, _ in trained)
        mean = {
            name: sum(count / samples * values[name] for count, values in trained)
            for name in trained[0][1]
        }
        model.load_state_dict(mean)
    shares = []
    for agent in range(split.agents):
        rows = split.test(agent)
        x = torch.from_numpy(tests[rows].astype(np.float32) * scene.task.scale)
        hits = model(x).argmax(1).numpy() == truth[rows]
        shares.append(float(hits.mean()))
    return float(np.mean(shares))


def loop(rounds: int) -> Cost:
    """The plain loop in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.simulation", "--plain", str(rounds)]
    return cost_of_children(lambda: subprocess.run(command, check=True, capture_output=True))


def product(rounds: int, chosen: tuple[str, ...]) -> Cost:
    """`coordinator run --in-process`."""
    with tempfile.TemporaryDirectory() as name:
        content = yaml.safe_load(DIGITS.read_text("utf-8"))
        content["strategy"] = {"name": "fedavg"}
        content["rounds"]["count"] = rounds
        content["evaluation"] = {"every": rounds}
        content["fleet"]["workers"] = 1
        file = Path(name) / "digits.yaml"
        file.write_text(yaml.safe_dump(content), "utf-8")
        options = [word for one in chosen for word in ("--set", one)]
        command = [sys.executable, "-m", "covey.coordinator.cli", "run", str(file), *options]
        command += ["--in-process", "--json", "--out", str(Path(name) / "run")]
        return cost_of_children(lambda: subprocess.run(command, check=True, capture_output=True))


def measure(times: int, rounds: int) -> list[Row]:
    """The loop, the served model and what devices use, in turns."""
    ways = {
        "the loop": partial(loop, rounds),
        "served": partial(product, rounds, SERVED),
        "in use": partial(product, rounds, ()),
    }
    costs: dict[str, list[Cost]] = {name: [] for name in ways}
    for _ in range(times):
        for name, way in ways.items():
            costs[name].append(way())
    floor = median(costs.pop("the loop"))
    return [
        Row(f"{rounds} rounds, {name}", floor, median(own), times) for name, own in costs.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--plain", type=int, help="the loop alone, with this number of rounds")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    if options.plain:
        print(plain(options.plain))
        return
    with foreign_load() as load:
        rows = measure(options.times, options.rounds)
    show("simulation", "a simulated run next to a plain loop", rows, load, options.out)


if __name__ == "__main__":
    main()
