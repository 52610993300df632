"""Accuracy against epsilon: the noise of each agent under secure sums next to that of the coordinator; Fashion-MNIST.

    python -m benchmarks.secure_noise --data-root ../shared/data [--table]

Fleet, training and account are those of `benchmarks/privacy.py` for FedAvg with client-level privacy, and the column of the
coordinator is from its record. Under secure sums each agent turns its update into integers and adds discrete Gaussian noise by the code of a device, and the sum is read by the code
of the coordinator. Masks are left out: the sums have the same bytes with them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring import record_options, resumed
from benchmarks.privacy import OUT as PRIVACY
from benchmarks.privacy import SETTINGS, Cell, Run
from covey.extras.secure.integers import add_noise, to_integers, total_of
from covey.extras.secure.parameters import Scale, group_of, groups, noised_scale
from covey.extras.secure.primitives import hashed, number
from covey.extras.secure.sums import SecureSums
from covey.shared.strategies.base import Phase
from covey.shared.strategies.client_half import Report

DATA = "fashion-mnist"
NOISES = (2.0, 8.0)
# the most members of a group, and how many of them answer at least; 0: the fewest that protect
WHERE = {"one group": (512, 0), "one group, 450 answer": (512, 450), "groups of 125": (128, 0)}


@dataclass(frozen=True)
class Noised:
    where: str
    noise: float
    seed: int

    @property
    def key(self) -> str:
        return f"{self.where}/{self.noise:g}/{self.seed}"


class SecureRun(Run):
    """A run in which agents add the noise.

    Args:
        cell: clip, noise multiplier and seed.
        data_root: where named data sets lie.
        most: members of a group.
        threshold: members that answer, at least; 0: the fewest that protect.
    """

    def __init__(self, cell: Cell, data_root: Path | None, most: int, threshold: int) -> None:
        super().__init__(cell, data_root)
        assert cell.noise is not None
        self.seed = cell.seed
        self.drawn = groups(self.agents.names, most)
        fewest = min(group_of(len(one), threshold=threshold or None).honest for one in self.drawn)
        clip = SETTINGS[cell.data, cell.kind].clip
        self.scale: Scale = noised_scale(fewest, self.start.size, clip, cell.noise)

    def round(self, round_: int) -> None:
        start = self.strategy.clusters(self.state)[0]
        ends = dict(zip(self.agents.names, self.trained(self.served(), round_), strict=True))
        sums = SecureSums()
        for members in self.drawn:
            integers = np.zeros(start.size, np.uint32)
            for name in members:
                own = to_integers(ends[name].astype(np.float64) - start, 1, self.scale)
                key = hashed("benchmark", number(self.seed), number(round_), name.encode())
                add_noise(own, self.scale, key)
                integers += own
            sums.add("0", start, total_of(integers, len(members), self.scale), self.scale)
        bare = [(name, Report({}, 1)) for name in self.agents.names]
        self.state = self.strategy.fold(self.state, Phase(), sums, bare)
        assert self.private is not None
        self.private.count_sums(Phase(), bare, self.state)


def measured(cell: Noised, data_root: Path | None) -> dict[str, Any]:
    plain = Cell(DATA, "client", "fedavg", cell.noise, cell.seed)
    run = SecureRun(plain, data_root, *WHERE[cell.where])
    for round_ in range(run.plan.rounds.count):
        run.round(round_)
    return {"accuracy": run.agents.accuracy(run.served()), "epsilon": run.epsilon()}


def main() -> None:
    out = Path("benchmarks/results/secure_noise.json")
    parser = record_options(__doc__, out, (1, 2, 3))
    parser.add_argument("--data-root", type=Path, help="where named data sets lie")
    options = parser.parse_args()
    cells = [
        Noised(where, noise, seed) for seed in options.seeds for noise in NOISES for where in WHERE
    ]
    found = resumed(
        options,
        {cell.key: partial(measured, cell, options.data_root) for cell in cells},
        {"data": DATA},
    )
    of_coordinator = json.loads(PRIVACY.read_text())
    columns = ("the coordinator", *WHERE)
    print(f"| noise multiplier | epsilon | {' | '.join(columns)} |")
    print("|---:|---:|" + "---:|" * len(columns))
    for noise in NOISES:
        by_column = [
            [
                of_coordinator[Cell(DATA, "client", "fedavg", noise, seed).key]
                for seed in options.seeds
            ],
            *(
                [found[cell.key] for cell in cells if (cell.where, cell.noise) == (where, noise)]
                for where in WHERE
            ),
        ]
        epsilon = max(one["epsilon"] for own in by_column for one in own)
        print(f"| {noise:g} | {epsilon:.2f} | {' | '.join(map(_mean, by_column))} |")


def _mean(cells: list[dict[str, Any]]) -> str:
    percent = [100 * one["accuracy"] for one in cells]
    return f"{np.mean(percent):.1f} ± {np.std(percent, ddof=1):.1f}"


if __name__ == "__main__":
    main()
