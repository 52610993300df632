"""What it costs that no two secure sums differ by few members, in two forms, where agents drop out.

    python -m benchmarks.secure_steady [--seeds 1 2 3] [--out benchmarks/results/secure_steady.json] [--table]

Memberships alone: who is in a round's cohort, who reports, and whose answers open the sum. In one form agents compare the
members of a sum with those of the sums that they answered before, by the function that devices use (`is_too_near`): two sums
have the same members, or differ by at least t - c, or t. A coordinator may help: where the reporters are refused, it takes the
largest earlier sum whose members have all reported, or leaves reporters out at random. In the other form members are cut into
fixed batches that count whole or not at all (So et al., Securing secure aggregation: mitigating multi-round privacy leakage
in federated learning, AAAI 2023).

Groups of 10 and 100 agents with the usual numbers (c 20 %), 100 rounds, one attempt each. The cohort is the fleet, or a group
drawn in each round from ten times as many (whole batches where there are batches). Agents drop out before they report,
each on its own in each round; or that share of them, one at least, is gone from the start.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measuring import record_options, resumed
from covey.extras.secure.memberships import is_too_near
from covey.extras.secure.parameters import Group, group_of

ROUNDS = 100
MEMBERS = (10, 100)
GONE = (0.05, 0.1, 0.3)
DRAWS = 30  # sets of reporters that a helping coordinator tries
NO_RULE, HONEST, THRESHOLD, HELPED = "no rule", "t - c", "t", "t, helped"
COHORTS = ("all", "a tenth", "all, for good")


@dataclass(frozen=True)
class Cell:
    members: int  # of a cohort
    gone: float
    cohort: str
    form: str

    @property
    def key(self) -> str:
        return f"{self.members} agents, {self.gone:.0%} gone, {self.cohort}, {self.form}"

    @property
    def batch(self) -> int:
        """Members of a batch; 1 without batches."""
        kind, _, size = self.form.partition("batches of ")
        return 1 if kind else int(size)

    @property
    def group(self) -> Group:
        return group_of(self.members)


def forms_of(members: int) -> tuple[str, ...]:
    """Batches of five, and of the next multiple of five above c: with honest members wherever the colluders are."""
    sizes = {5, 5 * (group_of(members).colluders // 5 + 1)}
    return NO_RULE, HONEST, THRESHOLD, HELPED, *(f"batches of {size}" for size in sorted(sizes))


def measured(cell: Cell, seeds: list[int]) -> dict[str, Any]:
    """Sums, voids and lost reports of all seeds together, per 100 rounds."""
    counts = [Fleet(cell, seed).run() for seed in seeds]
    arrived = sum(count.arrived for count in counts)
    return {
        "sums": sum(count.sums for count in counts) / len(seeds),
        "voids": sum(count.voids for count in counts) / len(seeds),
        "lost": 1.0 - sum(count.summed for count in counts) / arrived,
    }


@dataclass
class Counts:
    sums: int = 0
    voids: int = 0  # too few members, nothing was asked
    arrived: int = 0  # reports
    summed: int = 0  # of them


class Fleet:
    """The agents of a cell, each with the sums that it answered, as bits of members."""

    def __init__(self, cell: Cell, seed: int) -> None:
        self.cell, self.group = cell, cell.group
        self.random = random.Random(f"{cell.key} {seed}")  # noqa: S311 - no secrets
        size = cell.members * (10 if cell.cohort == "a tenth" else 1)
        batches = range(0, size, cell.batch)
        self.batches = [range(first, first + cell.batch) for first in batches]
        self.answered: list[set[int]] = [set() for _ in range(size)]
        self.sums: dict[int, list[int]] = {}  # that were opened: members by their bits
        for_good = cell.cohort.endswith("for good")
        self.chance = 0.0 if for_good else cell.gone
        lost = max(1, round(cell.gone * size)) if for_good else 0
        self.lost = set(self.random.sample(range(size), lost))
        self.needed = {HONEST: self.group.honest, NO_RULE: 0}.get(cell.form, self.group.threshold)

    def run(self) -> Counts:
        counts = Counts()
        for _ in range(ROUNDS):
            came = self.came()
            counts.arrived += len(came)
            summed = self.chosen(came)
            if len(summed) < self.group.least:
                counts.voids += 1
            elif self.opens(summed):
                counts.sums += 1
                counts.summed += len(summed)
        return counts

    def came(self) -> list[int]:
        """Those of a new cohort who report, by batch."""
        drawn = self.random.sample(self.batches, self.cell.members // self.cell.batch)
        cohort = sorted(agent for batch in drawn for agent in batch)
        return [
            agent
            for agent in cohort
            if agent not in self.lost and self.random.random() >= self.chance
        ]

    def chosen(self, came: list[int]) -> list[int]:
        """The reporters that the coordinator names."""
        if self.cell.batch > 1:
            here = set(came)
            return [agent for batch in self.batches if here.issuperset(batch) for agent in batch]
        if self.cell.form != HELPED:
            return came
        return next((some for some in self.helped(came) if self.is_allowed(some)), [])

    def helped(self, came: list[int]) -> Iterator[list[int]]:
        yield came
        here = bits_of(came)
        yield max(
            (some for bits, some in self.sums.items() if bits & here == bits), key=len, default=[]
        )
        for _ in range(DRAWS if len(came) >= self.group.least else 0):
            yield sorted(self.random.sample(came, self.random.randint(self.group.least, len(came))))

    def is_allowed(self, members: list[int]) -> bool:
        bits = bits_of(members)
        return not any(is_too_near(bits, other, self.needed) for other in self.sums)

    def opens(self, members: list[int]) -> bool:
        """Whether enough members answer."""
        bits, answers = bits_of(members), []
        for agent in members if self.cell.batch == 1 else ():
            if not any(is_too_near(bits, other, self.needed) for other in self.answered[agent]):
                answers.append(agent)
        for agent in answers:
            self.answered[agent].add(bits)
        if self.cell.batch == 1 and len(answers) < self.group.threshold:
            return False
        self.sums[bits] = members
        return True


def bits_of(members: list[int]) -> int:
    return sum(1 << member for member in members)


def table(found: dict[str, Any]) -> Iterator[str]:
    """Sums and voids of 100 rounds, and the reports in no sum, at each share of agents that are gone."""
    yield "| agents | cohort | rule | " + " | ".join(f"{gone:.0%} gone" for gone in GONE) + " |"
    yield "|---:|---|---|" + "---:|" * len(GONE)
    for members in MEMBERS:
        for cohort in COHORTS:
            for form in forms_of(members):
                cells = [found[Cell(members, gone, cohort, form).key] for gone in GONE]
                shown = (
                    f"{cell['sums']:.0f}, {cell['voids']:.0f}, {cell['lost']:.0%}" for cell in cells
                )
                yield f"| {members} | {cohort} | {form} | " + " | ".join(shown) + " |"


def main() -> None:
    out = Path("benchmarks/results/secure_steady.json")
    options = record_options(__doc__, out, (1, 2, 3, 4, 5)).parse_args()
    cells = [
        Cell(members, gone, cohort, form)
        for members in MEMBERS
        for cohort in COHORTS
        for gone in GONE
        for form in forms_of(members)
    ]
    found = resumed(
        options,
        {cell.key: partial(measured, cell, options.seeds) for cell in cells},
        {"rounds": ROUNDS, "seeds": options.seeds, "draws": DRAWS},
    )
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
