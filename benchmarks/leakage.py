"""How well FedClust's signatures reveal which labels an agent holds, with and without noise.

    python benchmarks/leakage.py
    python benchmarks/leakage.py --noise 0 0.1 1 --seeds 1

Agents with three of the ten digits each train one epoch from one start and send their final layers, as FedClust's
agents do. Two readers guess which labels each agent holds: one looks at the biases alone (a label that an agent has
pulls its bias up), the other has learnt from final layers of agents whose labels it knows. The figure is the area under
the ROC curve over all pairs of agent and label: 1 is certainty, 0.5 is guessing. Also printed: how much of the mean image
of a class lies in the span that PACFL sends for it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from sklearn.metrics import roc_auc_score

from covey.agent.data import Dataset, fit
from covey.agent.data.partition import client_dataset, fleet_data
from covey.agent.training.learner import TorchLocal
from covey.agent.training.models import initial
from covey.shared.numerics.vectors import Vector
from covey.shared.privacy.noise import Noise
from covey.shared.privacy.settings import SignaturePrivacy, noised
from covey.shared.scenario.scenario import Scenario
from covey.shared.seeds import generator
from covey.shared.strategies.base import Training
from covey.shared.strategies.pacfl import signature

OUT = Path(__file__).parent / "results" / "leakage.json"
AGENTS = 60
SHARE = 0.3  # of the labels, for each agent
CLASSES = 10
CLIP = 1.0
RIDGE = 10.0  # penalty of the learnt reader
NOISES = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)  # multiples of the clip

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Reading:
    """Area under the ROC curve of both readers."""

    seed: int
    noise: float | None  # in multiples of the clip; None: signatures as they are, not clipped
    biases: float  # of the reader that looks at the biases
    learnt: float  # of the reader that has learnt


def scenario(seed: int) -> Scenario:
    """Digits, a small network, three labels for each agent."""
    return Scenario.model_validate(
        {
            "name": "leakage",
            "seed": seed,
            "task": {
                "features": [1, 8, 8],
                "classes": CLASSES,
                "scale": 1 / 16,
                "model": {"name": "mlp", "options": {"hidden": 64}},
            },
            "strategy": {"name": "fedclust", "signature": "final_layer"},
            "fleet": {
                "agents": AGENTS,
                "data": "digits",
                "partition": {"name": "label_skew", "share": SHARE},
            },
        }
    )


def fleet_of(plan: Scenario) -> list[Dataset]:
    """Every agent's data."""
    assert plan.fleet is not None
    data, split = fleet_data(plan)
    return [
        fit(client_dataset(data, split, index), plan.task) for index in range(plan.fleet.agents)
    ]


def signatures(plan: Scenario, fleet: Sequence[Dataset]) -> tuple[Vector, list[Vector]]:
    """The start's final layer and each agent's after an epoch (S,)."""
    start, layout = initial(plan.task, plan.seed)
    training = Training(epochs=1, batch=10, lr=0.1)
    final_layer = layout.final_layer
    found: list[Vector] = []
    for index, data in enumerate(fleet):
        rng = generator(plan.seed, "shuffle", index)
        local = TorchLocal(data, plan.task, layout, training, rng)
        found.append(local.train(start).end[final_layer].copy())
    return start[final_layer].copy(), found


def held(fleet: Sequence[Dataset]) -> Matrix:
    """Which labels each agent holds, (agents, classes) of 0 and 1."""
    table = np.zeros((len(fleet), CLASSES))
    for i, data in enumerate(fleet):
        table[i, np.unique(data.targets)] = 1.0
    return table


def by_biases(steps: Matrix, truth: Matrix) -> float:
    """The reader that looks at the biases: the last values of a final layer."""
    biases = steps[:, -CLASSES:]
    return float(roc_auc_score(truth.ravel(), biases.ravel()))


def by_learning(steps: Matrix, truth: Matrix) -> float:
    """The reader that has seen the other half of the agents with their labels: ridge regression on final layers."""
    half = len(steps) // 2
    first = slice(0, half)
    second = slice(half, None)
    scores = np.zeros_like(truth)
    for known, asked in ((first, second), (second, first)):
        spread = steps[known].std() or 1.0
        seen = steps[known] / spread
        new = steps[asked] / spread
        kernel = seen @ seen.T + RIDGE * np.eye(half)
        centred = truth[known] - truth[known].mean(axis=0)
        solution = np.linalg.solve(kernel, centred)
        scores[asked] = new @ seen.T @ solution
    return float(roc_auc_score(truth.ravel(), scores.ravel()))


def read(seed: int, noises: Sequence[float]) -> list[Reading]:
    """Both readers on signatures as they are, and behind each amount of noise."""
    plan = scenario(seed)
    fleet = fleet_of(plan)
    base, sent = signatures(plan, fleet)
    truth = held(fleet)
    bare = steps_from(base, sent)
    found = [Reading(seed, None, by_biases(bare, truth), by_learning(bare, truth))]
    for amount in noises:
        settings = SignaturePrivacy(clip=CLIP, noise_multiplier=amount)
        hidden: list[Vector] = []
        for index, own in enumerate(sent):
            noise = Noise.simulated(seed, "leakage", index, str(amount))
            hidden.append(noised(own, base, settings, noise))
        steps = steps_from(base, hidden)
        found.append(Reading(seed, amount, by_biases(steps, truth), by_learning(steps, truth)))
    return found


def steps_from(base: Vector, signatures: Sequence[Vector]) -> Matrix:
    """How far each signature (S,) is from the start, (agents, S)."""
    return np.stack([signature.astype(np.float64) - base for signature in signatures])


def mean_in_span(seed: int) -> float:
    """Share of the squared norm of a class's mean image that lies in what PACFL sends for it, over agents and labels."""
    shares = []
    for data in fleet_of(scenario(seed)):
        inputs = data.features.reshape(len(data.targets), -1).astype(np.float32)
        vectors, labels = signature(inputs, data.targets, 3)
        for label in np.unique(data.targets):
            is_own = np.asarray(labels) == label
            own = vectors[is_own].astype(np.float64)
            images = inputs[data.targets == label]
            mean = images.mean(axis=0, dtype=np.float64)
            in_span = own @ mean
            shares.append(float(np.sum(in_span**2) / np.sum(mean**2)))
    return float(np.mean(shares))


def table(readings: Sequence[Reading]) -> str:
    """Markdown: means over the seeds."""
    lines = ["| noise on signatures | AUC, biases alone | AUC, learnt reader |", "|---|---:|---:|"]
    for amount in dict.fromkeys(one.noise for one in readings):
        own = [one for one in readings if one.noise == amount]
        biases = np.mean([one.biases for one in own])
        learnt = np.mean([one.learnt for one in own])
        lines.append(f"| {_name_of(amount)} | {biases:.3f} | {learnt:.3f} |")
    return "\n".join(lines)


def _name_of(noise: float | None) -> str:
    if noise is None:
        return "none, no clip"
    if noise == 0:
        return "clip only"
    return f"{noise:g} x clip"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--noise", nargs="+", type=float, default=list(NOISES), help="multiples of the clip"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    readings: list[Reading] = []
    for seed in options.seeds:
        readings += read(seed, options.noise)
    span = mean_in_span(options.seeds[0])
    print(table(readings))
    percent = 100 * span
    print(f"\nPACFL: {percent:.1f} % of a class's mean image lie in the span that is sent for it")
    records = [asdict(one) for one in readings]
    document = {"readings": records, "pacfl_mean_in_span": span}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=0))


if __name__ == "__main__":
    main()
