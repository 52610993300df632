"""Which lies a coordinator tells in the history of a seed, to whom, and what its fleet is like: pure."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from covey.extras.secure.tests.live import SECTIONS, TASK
from covey.shared.scenario.scenario import Scenario
from tests.kit import small_run
from tests.kit.scenes import Scenes
from tests.methods import METHODS, NORMED
from tests.simulator.lies import ABOUT, AGAIN, COUNTED, LIES, MEMBERS, Lie, To

FAULTS = ("gone", "asked again")  # an agent misses a phase; it does an order twice
# in what the row differs that the two tables of the victim have: as far as others, far out, in cells of few values
ODD = ("usual", "far", "very far", "target", "cells")
HIDDEN = ("labels=hidden", "words=hidden")  # demands that come on top
SUMS = (
    "secure_least: 3",
    "secure_least: 3, secure_steady: true",
    "secure_least: 3, secure_clear: true",
)
AGENTS = (4, 4, 4, 5, 6)  # a sum with a member less still has three
ROWS = 24  # of a table
TO: tuple[To, ...] = ("all", "all", "the victim", "the others")
NAMED = ("u", "v", "w")  # columns, by the honest task
HONEST_TASK = {**TASK, "columns": NAMED, "ignore": ["*"]}
NOISE = "local_epsilon: 0.5"
NOISED_SHARE = 0.04  # of the seeds: DP-SGD, which needs torch
SECURE_CLEAR = "secure_clear"


@dataclass(frozen=True)
class LyingPlan:
    """A history that one seed fixes. All agents take part; agent `a1` is the victim."""

    seed: int
    method: str
    agents: int
    rounds: int
    evaluates: bool
    demand: str  # of each agent's owner, of privacy
    hidden: tuple[str, ...]
    odd: str
    row: int
    faults: tuple[str, ...]
    lies: tuple[Lie, ...]

    pace = "lying"

    def __str__(self) -> str:
        demands = ", ".join([self.demand, *self.hidden])
        title = f"{self.method}, {self.agents} agents under {demands}, {self.rounds} rounds"
        row = f"row {self.row} of the victim: {self.odd}"
        return "\n  ".join([title, row, *self.faults, *map(str, self.lies)])

    @property
    def is_noised(self) -> bool:
        return self.demand == NOISE

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_json(cls, text: str) -> LyingPlan:
        fields = json.loads(text)
        lies = tuple(Lie(**lie) for lie in fields.pop("lies"))
        for name in ("hidden", "faults"):
            fields[name] = tuple(fields[name])
        return cls(lies=lies, **fields)

    def simpler(self) -> Iterator[LyingPlan]:
        """Plans that are a step simpler, the simplest first."""
        for number in range(len(self.lies)):
            yield replace(self, lies=self.lies[:number] + self.lies[number + 1 :])
        for number in range(len(self.faults)):
            yield replace(self, faults=self.faults[:number] + self.faults[number + 1 :])
        if self.evaluates:
            yield replace(self, evaluates=False)
        if self.rounds > 1:
            yield replace(self, rounds=self.rounds - 1)
        if self.hidden:
            yield replace(self, hidden=())
        if self.demand not in (SUMS[0], NOISE):
            yield replace(self, demand=SUMS[0])
        if self.method != "fedavg":
            yield replace(self, method="fedavg")
        if self.agents > min(AGENTS) and not self.is_noised:
            yield replace(self, agents=self.agents - 1)
        for number, lie in enumerate(self.lies):
            for plainer in (replace(lie, to="all"), replace(lie, since=0)):
                if plainer != lie:
                    others = (*self.lies[:number], plainer, *self.lies[number + 1 :])
                    yield replace(self, lies=others)


def scene_of(plan: LyingPlan, seed: int) -> Scenario:
    privacy: dict[str, Any] = {"secure": {"clip": 10.0, "cap": 1000}}
    if plan.is_noised:
        privacy = {"local": {"noise_multiplier": 100.0, "max_grad_norm": 1.0, "delta": 1e-5}}
    sections = {
        **SECTIONS,
        "training": {"epochs": 2, "batch": 1000 if plan.seed % 2 else 8, "lr": 0.05},
        "rounds": {"count": plan.rounds, "participation": 1.0, "start_agents": plan.agents},
        "privacy": privacy,
        "evaluation": {"deliver": "served", "tune_epochs": 0},
    }
    method = {"name": plan.method, **METHODS[plan.method]}
    return Scenes.of("lying", HONEST_TASK, seed=seed, **sections)(method)


@cache
def summed() -> tuple[str, ...]:
    """Methods that secure sums are for, with a model of one layer."""
    others = {*small_run.DEEP, *small_run.IMAGES, *NORMED}
    return tuple(name for name in sorted(set(METHODS) - others) if _is_summed(name))


def _is_summed(method: str) -> bool:
    plan = LyingPlan(0, method, AGENTS[0], 1, False, SUMS[0], (), ODD[0], 0, (), ())
    try:
        scene_of(plan, 3)
    except ValueError:
        return False
    return True


def lying_plan(seed: int, kinds: Sequence[str] = LIES) -> LyingPlan:
    """Draw the history of a seed."""
    draw = random.Random(f"lying plan {seed}")  # noqa: S311  bad luck, no secrets
    is_noised = draw.random() < NOISED_SHARE
    plan = LyingPlan(
        seed=seed,
        method="fedavg" if is_noised or draw.random() < 1 / 2 else draw.choice(summed()),
        agents=1 if is_noised else draw.choice(AGENTS),
        rounds=1,
        evaluates=draw.random() < 0.3,
        demand=NOISE if is_noised else draw.choice(SUMS),
        hidden=tuple(one for one in HIDDEN if draw.random() < 1 / 3),
        odd=draw.choice(ODD),
        row=draw.randrange(ROWS),
        faults=tuple(one for one in FAULTS if draw.random() < 0.15),
        lies=(),
    )
    lies = [_lie(draw, draw.choice(kinds)) for _ in range(draw.choice((1, 1, 1, 2, 3)))]
    if not is_noised and draw.random() < 0.4:  # the same work again, with a member less
        lies = [replace(one, since=1, to="all") for one in lies[:1]]
        lies.append(Lie("again", draw.choice(AGAIN)))
        lies.append(Lie("member", draw.choice(MEMBERS), draw.randrange(99), since=1))
        plan = replace(plan, rounds=2)
    if "status" in kinds:
        lies.append(Lie("status", draw.choice((COUNTED, *ABOUT["status"])), draw.randrange(1000)))
    if any(one.kind == "ruler" for one in lies):
        plan = replace(plan, evaluates=True)
    lies = [one for one in lies if one.kind in kinds]
    return replace(plan, lies=tuple(lies))


def _lie(draw: random.Random, kind: str) -> Lie:
    about = draw.choice(ABOUT[kind])
    to = draw.choice(TO)
    return Lie(kind, about, draw.randrange(1000), to, draw.choice((0, 0, 0, 1)))
