"""What goes wrong in the history of a seed, and when: pure."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Literal

from covey.coordinator.engine.rules import RoundRules
from covey.coordinator.run.rules import rules_of
from covey.extras.scale.partial_sums import check_aggregators
from covey.shared.errors import UserError
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import Strategy
from tests.kit import small_run

HABITS = ("lost", "late", "doubled", "overtaken")  # of single packets
NETWORK = ("cut", "part", "stall", "half close up", "half close down")
PROGRAMS = ("kill coordinator", "kill agent", "kill aggregator", "copy folder", "put back folder")
BROKERS = ("restart broker", "clear retained", "power cut")
DISKS = (
    "cut off coordinator",  # a kill in the middle of a write
    "cut off agent",
    "power cut of coordinator",  # what was not synced may be lost
    "power cut of agent",
    "power cut after a message",  # of the coordinator, which has just published it
    "full disk",
    "read-only disk",
    "no descriptors",
    "rotten report",
    "rotten model",
    "rotten memory",
    "rotten checkpoint",
)
EVENTS = (*NETWORK, *PROGRAMS, *BROKERS, *DISKS)
KINDS = (*HABITS, *EVENTS)
NEEDS_AGGREGATORS = {"power cut", "kill aggregator"}
WHO = ("", "coordinator", "agent-0", "agent-1", "aggregator")  # pairs that a habit strikes; "": all

AGENTS = 4
ROUNDS = 2
SECURE_SHARE = 0.3  # of the histories whose method can be summed under masks
DEADLINE_S = 20.0  # where there is hurry
NEVER_S = 36_000.0

Pace = Literal["patient", "hasty", "buffered"]
PACES: tuple[Pace, ...] = ("patient", "hasty", "buffered")


@dataclass(frozen=True)
class Fault:
    """A fault at `at` (virtual s) that lasts `lasts` (s). A habit strikes packets with this chance."""

    kind: str
    at: float = 0.0
    lasts: float = 0.0
    target: int = 0  # a number that names the victim
    chance: float = 0.0
    who: str = ""  # client ids that a habit strikes begin with this

    def __str__(self) -> str:
        if self.kind in HABITS:
            place = f"at broker {self.target}" if self.target < 2 else "everywhere"
            return f"{self.kind}: {self.chance:.1%} of the packets of {self.who or 'all'} {place} for {self.lasts:.0f} s"
        return f"{self.kind} {self.target} at {self.at:.2f} s for {self.lasts:.2f} s"

    def is_at(self, shard: int) -> bool:
        """Whether a habit strikes at this broker."""
        return self.target in (shard, 2)


@dataclass(frozen=True)
class Plan:
    """A history that one seed fixes.

    `pace` is "patient" (all agents take part, and nobody is given up), "hasty" (half of them, within a deadline that some
    miss) or "buffered".
    """

    seed: int
    method: str
    pace: Pace
    shards: int
    aggregators: bool
    faults: tuple[Fault, ...]
    secure: bool = False  # under secure sums, of all agents

    def __str__(self) -> str:
        aggregators = "with aggregators" if self.aggregators else "without aggregators"
        title = f"{self.method}, {self.pace}, {self.shards} brokers {aggregators}"
        return "\n  ".join([title, *map(str, self.faults)])

    @property
    def agents(self) -> int:
        return self.scene.rounds.start_agents or AGENTS

    @property
    def scene(self) -> Scenario:
        scene = scene_of(self.method, self.pace, self.secure)
        if self.secure and self.shards > 1:  # groups lie within one broker
            brokers = tuple(f"mqtt://{shard}.local" for shard in range(self.shards))
            return scene.model_copy(update={"brokers": brokers})
        return scene

    @property
    def end(self) -> float:
        """When the last fault is over (s)."""
        return max((fault.at + fault.lasts for fault in self.faults), default=0.0)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_json(cls, text: str) -> Plan:
        fields = json.loads(text)
        faults = tuple(Fault(**fault) for fault in fields.pop("faults"))
        return cls(faults=faults, **fields)

    def simpler(self) -> Iterator[Plan]:
        """Plans that are a step simpler, the simplest first."""
        for number in range(len(self.faults)):
            yield replace(self, faults=self.faults[:number] + self.faults[number + 1 :])
        if self.aggregators and not any(fault.kind in NEEDS_AGGREGATORS for fault in self.faults):
            yield replace(self, aggregators=False)
        if self.shards > 1:
            yield replace(self, shards=1)
        if self.secure:
            yield replace(self, secure=False)
        if self.method != "fedavg":
            yield replace(self, method="fedavg")
        for number, fault in enumerate(self.faults):
            for plainer in _plainer(fault):
                changed = (*self.faults[:number], plainer, *self.faults[number + 1 :])
                yield replace(self, faults=changed)


def _plainer(fault: Fault) -> Iterator[Fault]:
    if fault.target:
        yield replace(fault, target=0)
    for digits in (0, 1):
        rounded = replace(fault, at=round(fault.at, digits), lasts=round(fault.lasts, digits))
        if rounded != fault:
            yield rounded


@cache
def has_clusters(method: str) -> bool:
    """Whether the method finds clusters, each with sums of its own."""
    return type(small_run.judged(method).method).assignment is not Strategy.assignment


@cache
def scene_of(method: str, pace: Pace, secure: bool = False) -> Scenario:
    """The scenario of a history. Raises ValueError where the method has no buffered rounds, or no secure sums."""
    if secure:
        privacy = {"secure": {"clip": 10.0, "cap": 100}}
        agents = AGENTS * (2 if has_clusters(method) else 1)  # a sum of a cluster needs four
        rounds = {"count": ROUNDS, "participation": 1.0, "start_agents": agents}
        return small_run.judged(method, rounds=rounds, privacy=privacy)
    if pace == "buffered":
        buffered = {
            "buffer": 2,
            "count": 2 * ROUNDS,
            "start_agents": AGENTS,
            "deadline_s": DEADLINE_S,
            "timing": {"rollcall_s": 5.0},
        }
        return small_run.buffered(
            method, rounds=buffered, fleet={"agents": AGENTS, "durations": None}
        )
    rounds = {"count": ROUNDS, "participation": 1.0, "start_agents": AGENTS}
    if pace == "hasty":
        rounds |= {"count": ROUNDS + 1, "participation": 0.5}
    return small_run.judged(method, rounds=rounds)


def rules_for(plan: Plan) -> RoundRules:
    """How long the coordinator waits, and for whom. It never gives a run up."""
    if plan.pace == "buffered":
        return replace(rules_of(plan.scene), void_limit=10_000, alike_limit=10_000)
    # no allowance for the first work, and no shorter wait once most have reported
    rules = small_run.rules(plan.scene, first_work_s=0.0, patience_s=None)
    if plan.pace == "patient":
        return replace(rules, absence_s=NEVER_S / 10, rollcall_s=NEVER_S / 10, deadline_s=NEVER_S)
    return replace(
        rules,
        absence_s=2.0,
        rollcall_s=5.0,
        deadline_s=DEADLINE_S,
        void_limit=10_000,
        alike_limit=10_000,
    )


@cache
def may_be_buffered(method: str) -> bool:
    try:
        scene_of(method, "buffered")
    except ValueError:
        return False
    return True


@cache
def may_be_secure(method: str) -> bool:
    try:
        scene_of(method, "patient", secure=True)
    except ValueError:
        return False
    return True


@cache
def may_be_summed(method: str, pace: Pace, secure: bool) -> bool:
    """Whether the coordinator accepts `--aggregators`."""
    try:
        check_aggregators(scene_of(method, pace, secure))
    except UserError:
        return False
    return True


def plan(
    seed: int, methods: Sequence[str], kinds: Sequence[str] = KINDS, paces: Sequence[Pace] = PACES
) -> Plan:
    """Draw the history of a seed."""
    draw = random.Random(f"plan {seed}")  # noqa: S311  bad luck, no secrets
    pace = draw.choice(paces)
    if pace == "buffered":
        methods = [one for one in methods if may_be_buffered(one)] or methods
    method = draw.choice(methods)
    if pace == "buffered" and not may_be_buffered(method):
        pace = "hasty"
    shards = draw.choice((1, 1, 2))
    likes_aggregators = draw.random() < 1 / 2
    faults = tuple(_fault(draw, draw.choice(kinds)) for _ in range(draw.randint(1, 5)))
    needs = any(fault.kind in NEEDS_AGGREGATORS for fault in faults)
    secure = pace != "buffered" and draw.random() < SECURE_SHARE and may_be_secure(method)
    aggregators = (likes_aggregators or needs) and may_be_summed(method, pace, secure)
    return Plan(seed, method, pace, shards, aggregators, faults, secure)


def _fault(draw: random.Random, kind: str) -> Fault:
    if kind in HABITS:
        most = 0.03 if kind == "lost" else 0.1
        chance, who = draw.uniform(0.005, most), draw.choice(WHO)
        return Fault(
            kind, lasts=draw.uniform(5, 40), target=draw.randrange(3), chance=chance, who=who
        )
    lasts = min(draw.expovariate(1 / 4), 60.0)
    if kind in (
        "copy folder",
        "put back folder",
    ):  # long enough for the first coordinator to miss deadlines
        lasts = draw.uniform(0, 3 * DEADLINE_S)
    return Fault(kind, draw.uniform(0, 6), lasts, draw.randrange(48))
