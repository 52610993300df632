"""What local training costs in float32, bfloat16 and float16 (`training.precision`). Prints a line for each cell, writes JSON.

    python -m benchmarks.precision --device cuda --data-root ../shared/data

ResNet-9 trains on 4 000 images of CIFAR-10, in batches of 64 for five epochs, seeds 1 to 3. Seconds are those of the clock, after some
steps that warm up; memory is the largest that torch has allocated on the card. The accuracy is that on the test images.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.measuring import record_options, resumed
from benchmarks.torch_runs import device_option, repeatable
from covey.agent.data import fit
from covey.agent.data.partition import client_dataset, fleet_data
from covey.agent.training.learner import TorchLocal
from covey.agent.training.models import initial
from covey.shared.scenario.scenario import Scenario
from covey.shared.seeds import generator
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import Drill

OUT = Path(__file__).parent / "results" / "precision.json"
PRECISIONS = ("fp32", "bf16", "fp16")
TRAINING: dict[str, Any] = {"epochs": 5, "batch": 64, "lr": 0.02, "momentum": 0.9}
IMAGES = 4000


def scenario(seed: int) -> Scenario:
    """One agent with all images."""
    return Scenario.model_validate(
        {
            "name": "precision",
            "seed": seed,
            "task": {
                "features": [3, 32, 32],
                "classes": 10,
                "scale": 1 / 255,
                "model": {"name": "resnet9"},
            },
            "strategy": {"name": "fedavg"},
            "rounds": {"count": 1},
            "fleet": {"agents": 1, "data": "cifar10", "limit": IMAGES},
        }
    )


def measured(precision: str, seed: int, device: str, root: Path | None) -> dict[str, Any]:
    """Seconds, megabytes, loss and accuracy of a training."""
    scene = scenario(seed)
    data, split = fleet_data(scene, root)
    own = fit(client_dataset(data, split, 0), scene.task)
    start, layout = initial(scene.task, seed)
    settings = {**TRAINING, "device": device, "precision": precision}
    training = Training.model_validate(settings)

    def learner() -> TorchLocal:
        return TorchLocal(own, scene.task, layout, training=training, rng=generator(seed, "order"))

    learner().train(start, Drill(steps=5))
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    local = learner()
    began = time.perf_counter()
    result = local.train(start)
    seconds = time.perf_counter() - began
    peak = torch.cuda.max_memory_allocated() >> 20 if device == "cuda" else None
    hits = local.predict(result.end, "test").argmax(axis=1) == local.targets("test")
    return {
        "seconds": round(seconds, 2),
        "mb": peak,
        "loss": round(result.loss, 4),
        "accuracy": round(100 * float(hits.mean()), 2),
    }


def main() -> None:
    parser = record_options(__doc__, OUT, [1, 2, 3])
    device_option(parser)
    parser.add_argument("--data-root", type=Path)
    options = parser.parse_args()
    repeatable()
    kind = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    planned = {
        f"{kind}/{precision}/{seed}": partial(
            measured, precision, seed, options.device, options.data_root
        )
        for seed in options.seeds
        for precision in PRECISIONS
    }
    settings = {"images": IMAGES, "training": TRAINING, "torch": torch.__version__}
    found = resumed(options, planned, settings)
    for key, row in found.items():
        print(f"{key}: {row}")


if __name__ == "__main__":
    main()
