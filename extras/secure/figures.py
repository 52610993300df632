"""Figures of an evaluation as the slots of a secure sum: what an agent adds to it, and the averages that a sum gives.

Numbers are exact in the sum: each is a fixed-point number of 96 bits in six slots of 16 bits, so that no clip and no weight
of a model is in them. Each member adds all of its figures, those of its own test rows: a mode or a figure that only some of
the members have would show these apart, so figures of own last models and AUC are in no sum.

In the last evaluation the weights of an agent's candidates follow, each with a 1 for a candidate that it has, and by how much
its mixture gains. An agent with too few samples for weights of its own adds those of what it uses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.extras.judge.mixture import SURE, FleetWeights, mean_weights
from covey.extras.secure.integers import OutOfRangeError
from covey.shared.candidate_names import CANDIDATES, DELIVERED, GAIN, USES, WEIGHTS
from covey.shared.numerics.measures import derived, kind_of_task
from covey.shared.numerics.vectors import Vector

FIGURES = "figures"  # the vector of a report
BITS = 16  # of a slot
LIMBS = 6  # slots of a number
FRACTION = 32  # bits after the point
MODULUS = 1 << (BITS * LIMBS)
LARGEST = 2.0 ** (
    BITS * LIMBS - FRACTION - 11
)  # of one agent: the sums of 1 024 stay below half of the modulus
ALWAYS = ("server", "baseline")  # modes that each evaluation has
SHARES = ("accuracy", "f1", "recall")  # each between 0 and 1
OF_CLASSES = (*SHARES, "loss")
OF_VALUES = ("rmse", "mae", "mse", "loss")
MOMENTS = ("mean", "square")  # of the test targets, for R2

Row = dict[str, Any]


@dataclass(frozen=True)
class FigureSlots:
    """Everything that is summed, in the order of the slots: figures by mode, then what the judges of agents have found."""

    modes: tuple[str, ...]
    names: tuple[str, ...]
    has_moments: bool  # of the targets
    counts_training: bool  # agents weigh by all their samples, not by those of the test
    judges: bool  # agents weigh what they can answer with after the last round

    @classmethod
    def of(cls, evaluation: Mapping[str, Any], task: Mapping[str, Any]) -> FigureSlots:
        """Those of an order, or of a scenario: the sections as they travel."""
        asked = {"tuned": evaluation.get("tune_epochs"), DELIVERED: "deliver" in evaluation}
        has_values = kind_of_task(task) == "values"
        return cls(
            modes=(*ALWAYS, *(mode for mode, amount in asked.items() if amount)),
            names=OF_VALUES if has_values else OF_CLASSES,
            has_moments=has_values,
            counts_training=evaluation.get("weight") == "total",
            judges="deliver" in evaluation,
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """The numbers of a mode: of agents, their weight, of each figure its sum and its weighted sum, weighted moments."""
        moments = MOMENTS if self.has_moments else ()
        weighted = [f"weighted {name}" for name in (*self.names, *moments)]
        return ("agents", "weight", *self.names, *weighted)

    @property
    def length(self) -> int:
        return LIMBS * (
            len(self.modes) * len(self.columns) + self.judges * (2 * len(CANDIDATES) + 2)
        )

    @property
    def longest(self) -> float:
        """The norm that no vector of an agent exceeds."""
        return ((1 << BITS) - 1) * math.sqrt(self.length)

    def vector(self, numbers: Mapping[str, Mapping[str, Any]], train_samples: int) -> Vector:
        """What an agent adds, (length,): integers below 2**16.

        A mode whose model gave no finite outputs adds nothing.

        Args:
            numbers: of the agent's report of an evaluation.
            train_samples: of the agent.
        """
        found: list[float] = []
        for mode in self.modes:
            row = self._row(numbers.get(mode, {}), train_samples)
            found += [row.get(column, 0.0) for column in self.columns]
        if self.judges:
            found += _of_judge(numbers)
        slots = [slot for number in found for slot in _slots(number)]
        return np.array(slots, np.float32)

    def _row(self, figures: Mapping[str, Any], train_samples: int) -> dict[str, float]:
        if not figures.get("n") or "diverged" in figures:
            return {}
        known = {**figures, **derived(figures)} if self.has_moments else dict(figures)
        if self.has_moments:
            known["square"] = known["variance"] + known["mean"] ** 2
        weight = figures["n"] + train_samples * self.counts_training
        row: dict[str, float] = {"agents": 1.0, "weight": weight}
        for column in self.columns[2:]:
            name = column.removeprefix("weighted ")
            row[column] = known[name] * (1.0 if name == column else weight)
        fits = all(abs(value) < LARGEST for value in row.values())  # neither infinite nor NaN
        return row if fits else {}

    def averages(self, totals: npt.NDArray[np.int64], reported: int) -> dict[str, Row]:
        """{mode: {figure: {"micro", "macro"}, "agents"}}, as `coordinator.fold.means` has them.

        Args:
            totals: of the slots (length,), without masks.
            reported: agents in the sum.

        Raises:
            OutOfRangeError: no honest agents have made this sum.
        """
        numbers = self._numbers(totals, reported)
        width = len(self.columns)
        rows = {}
        for place, mode in enumerate(self.modes):
            own = numbers[place * width : (place + 1) * width]
            rows[mode] = self._averages(dict(zip(self.columns, own, strict=True)), reported)
        if self.judges and not rows[DELIVERED]["agents"]:  # no evaluation but the last one has it
            del rows[DELIVERED]
        return rows

    def fleet(self, totals: npt.NDArray[np.int64], reported: int) -> FleetWeights | None:
        """What the weights of the agents say about the fleet; None without any. Raises as `averages` does."""
        if not self.judges:
            return None
        count = len(CANDIDATES)
        numbers = self._numbers(totals, reported)[-2 * count - 2 :]
        weights, holders = (
            dict(zip(CANDIDATES, numbers[at : at + count], strict=True)) for at in (0, count)
        )
        gain, variance = numbers[-2:]
        slack = 2.0**-FRACTION * reported
        for name, held in holders.items():
            if (
                held != int(held)
                or not 0 <= held <= reported
                or not 0 <= weights[name] <= held + slack
            ):
                raise OutOfRangeError(
                    f"{held:g} agents and a weight of {weights[name]:g} for {name}"
                )
        if not 0 <= variance <= reported or not abs(gain) <= reported:
            raise OutOfRangeError(f"a gain of {gain:g} with the variance {variance:g}")
        found = mean_weights(weights, holders)
        return FleetWeights(found, gain > SURE * math.sqrt(variance)) if found else None

    def _numbers(self, totals: npt.NDArray[np.int64], reported: int) -> list[float]:
        """The numbers that sums of slots stand for."""
        if totals.size != self.length or totals.min() < 0 or totals.max() >= reported << BITS:
            raise OutOfRangeError("a slot of the sum of figures is out of range")
        return [_number(slots) for slots in totals.reshape(-1, LIMBS).tolist()]

    def _averages(self, sums: Mapping[str, float], reported: int) -> Row:
        agents, weight = sums["agents"], sums["weight"]
        if not 0 <= agents <= reported or agents != int(agents) or weight < agents:
            raise OutOfRangeError(f"{agents:g} agents and {weight:g} rows in a sum of {reported}")
        row: Row = {"agents": int(agents)}
        if not agents:
            return row
        for name in self.names:
            row[name] = {"micro": sums[f"weighted {name}"] / weight, "macro": sums[name] / agents}
        shares = [row[name] for name in self.names if name in SHARES]
        slack = 2.0**-FRACTION * reported
        if any(not -slack <= mean <= 1 + slack for means in shares for mean in means.values()):
            raise OutOfRangeError("a share in the sum of figures is not between 0 and 1")
        if self.has_moments:
            row["rmse"]["micro"] = math.sqrt(max(row["mse"]["micro"], 0.0))
            mean = sums["weighted mean"] / weight
            variance = sums["weighted square"] / weight - mean**2
            if variance > 0:
                row["r2"] = {"micro": 1 - row["mse"]["micro"] / variance}
        return row


def _of_judge(numbers: Mapping[str, Any]) -> list[float]:
    """Weights, a 1 for each candidate that there is, and the gain with its variance: each of one agent is at most 1."""
    weights = numbers.get(WEIGHTS) or numbers.get(USES, {})
    gain, variance = numbers.get(GAIN, (0.0, 0.0))
    return [
        *(weights.get(name, 0.0) for name in CANDIDATES),
        *(float(name in weights) for name in CANDIDATES),
        min(max(gain, -1.0), 1.0),
        min(variance, 1.0),
    ]


def _slots(number: float) -> list[int]:
    """The six slots of a number, lowest first; a negative one as its complement."""
    fixed = round(number * (1 << FRACTION)) % MODULUS
    return [(fixed >> (BITS * place)) % (1 << BITS) for place in range(LIMBS)]


def _number(slots: Sequence[int]) -> float:
    """The number that sums of slots stand for."""
    fixed = sum(slot << (BITS * place) for place, slot in enumerate(slots)) % MODULUS
    signed = fixed - MODULUS if fixed >= MODULUS // 2 else fixed
    return signed / float(1 << FRACTION)
