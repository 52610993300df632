"""What neighbouring sums tell of one agent that comes and goes, and what it costs that devices refuse them.

    python -m benchmarks.secure_overlap [--seeds 1 2 3] [--out benchmarks/results/secure_overlap.json] [--table]

First, five devices train in 24 rounds, and one of them is in every second sum. Its update is computed from the sum of a round
and the one after it, or also the one before it; the error is the distance to its true update, relative to that one's length.
Second, cohorts drawn in each of 100 rounds from larger fleets, in the product's groups, with and without `secure_steady`:
memberships alone, as in `benchmarks.secure_steady`.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.measuring import record_options, resumed
from covey.extras.light.numpy_learner import NumpyLocal
from covey.extras.secure.grouping import Grouping
from covey.extras.secure.memberships import is_too_near
from covey.extras.secure.progress import Progress
from covey.extras.secure.secured import Secured
from covey.extras.secure.tests.live import AGENTS, SECTIONS, Devices, run_of
from covey.shared.privacy.settings import SecureSettings
from covey.shared.strategies.fedavg import FedAvg

VICTIM, ROUNDS = "a3", 24
TRAINED = ((2, 1000, 0.05), (1, 8, 0.01), (2, 8, 0.05))  # epochs, batch, rate
COHORTS, TIMES, GONE = (10, 100), (10.0, 4.0, 2.0, 1.25), (0.0, 0.1, 0.3)


def errors(epochs: int, batch: int, lr: float) -> dict[str, Any]:
    """The smallest and largest error over rounds, of one difference and of three sums."""
    who, true, moves = [""], dict[int, Any](), list[Any]()
    work, train, fold, boxes = Devices.work, NumpyLocal.train, FedAvg.fold, Secured._boxes

    def worked(self: Any, run: Any, client: str, order: Any) -> Any:
        who[0] = client
        return work(self, run, client, order)

    def trained(self: Any, start: Any, *how: Any, **more: Any) -> Any:
        done = train(self, start, *how, **more)
        if who[0] == VICTIM:
            true[len(moves)] = done.end.astype(float) - start
        return done

    def folded(self: Any, state: Any, *what: Any) -> Any:
        after = fold(self, state, *what)
        moves.append(after.model.astype(float) - state.model)
        return after

    def gathered(self: Any, state: Any, reports: Any) -> Any:
        here = [one for one in reports if len(moves) % 2 == 0 or one[0] != VICTIM]
        return boxes(self, state, here)

    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(Devices, "work", worked),
        patch.object(NumpyLocal, "train", trained),
        patch.object(FedAvg, "fold", folded),
        patch.object(Secured, "_boxes", gathered),
    ):
        training = {"epochs": epochs, "batch": batch, "lr": lr}
        devices = Devices(Path(folder), "privacy={secure_least: 3}")
        run_of(devices, "run", training=training, rounds={**SECTIONS["rounds"], "count": ROUNDS})
    found: dict[str, list[float]] = {"one difference": [], "three sums": []}
    for number in range(2, len(moves) - 1, 2):
        whole, length = moves[number] * len(AGENTS), np.linalg.norm(true[number])
        others = {
            "one difference": moves[number + 1] * (len(AGENTS) - 1),
            "three sums": (moves[number + 1] + moves[number - 1]) * (len(AGENTS) - 1) / 2.0,
        }
        for name, rest in others.items():
            found[name].append(float(np.linalg.norm(whole - rest - true[number]) / length))
    return {name: [round(min(all_), 3), round(max(all_), 3)] for name, all_ in found.items()}


def lost(cohort: int, times: float, gone: float, seeds: Sequence[int]) -> dict[str, float]:
    """The share of reports in no sum, without the rule and with it."""
    shares = {}
    for is_steady in (False, True):
        counts = [_reports(cohort, times, gone, seed, is_steady=is_steady) for seed in seeds]
        summed, arrived = (sum(column) for column in zip(*counts, strict=True))
        shares["steady" if is_steady else "any"] = round(1.0 - summed / arrived, 3)
    return shares


def _reports(
    cohort: int, times: float, gone: float, seed: int, *, is_steady: bool
) -> tuple[int, int]:
    """Reports in sums, and all."""
    chance = random.Random(f"{cohort} {times} {gone} {seed}")  # noqa: S311 - no secrets
    grouping = Grouping(SecureSettings(), None, lambda _: 0)
    bits = {f"agent-{number:04}": 1 << number for number in range(round(cohort * times))}
    answered: dict[str, list[tuple[int, int]]] = {agent: [] for agent in bits}
    summed = arrived = 0
    for _ in range(100):
        for members, least in grouping.drawn(chance.sample(sorted(bits), cohort), "0", Progress()):
            came = [agent for agent in members if chance.random() >= gone]
            group = grouping.size(len(members), 0, least)
            arrived += len(came)
            if group is None or len(came) < group.least:
                continue
            here, needed = sum(bits[agent] for agent in came), group.threshold
            answers = [
                agent
                for agent in came
                if not is_steady
                or not any(is_too_near(here, one, max(t, needed)) for one, t in answered[agent])
            ]
            for agent in answers:
                answered[agent].append((here, needed))
            summed += len(came) if len(answers) >= needed else 0
    return summed, arrived


def main() -> None:
    out = Path("benchmarks/results/secure_overlap.json")
    options = record_options(__doc__, out, (1, 2, 3)).parse_args()
    cells: dict[str, Any] = {
        f"epochs {epochs}, batch {batch}, lr {lr:g}": partial(errors, epochs, batch, lr)
        for epochs, batch, lr in TRAINED
    }
    cells |= {
        f"{cohort} of {cohort * times:g}, {gone:.0%} gone": partial(
            lost, cohort, times, gone, options.seeds
        )
        for cohort in COHORTS
        for times in TIMES
        for gone in GONE
    }
    for key, one in resumed(options, cells, {"rounds": ROUNDS, "seeds": options.seeds}).items():
        print(f"{key}: {one}")


if __name__ == "__main__":
    main()
