"""Reports into a whole run: whatever they contain, each is accepted or refused, and the run ends as planned."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from covey.coordinator.engine.events import Joined
from covey.coordinator.run.effects import SendOrder
from covey.coordinator.run.run import Run
from covey.shared.errors import DecodeError
from covey.shared.wire.messages import OrderMessage, ReportContent
from tests.fuzz.mutate import mutated, mutated_tree, packed
from tests.fuzz.target import Target
from tests.fuzz.wire_targets import sealed
from tests.kit.local_clients import report_on
from tests.kit.small_run import DEEP, begun, clients, judged, local_for
from tests.methods import METHODS

FIELDS = (
    "numbers",
    "numbers",
    "vectors",
    "vectors",
    "examples",
    "steps",
    "loss",
    "seconds",
    "failure",
    "step",
    "client",
)


@dataclass
class Course:
    """A run that is begun again when it is over; `turn` counts runs, so that each has another method."""

    folder: Path
    names: tuple[str, ...]
    turn: int = 0
    lies: int = 0  # since an honest report was accepted
    run: Run | None = None
    people: dict[str, Any] = field(default_factory=dict)
    memories: dict[str, Any] = field(default_factory=dict)

    def begin(self) -> Run:
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        self.scene = judged(
            self.names[self.turn % len(self.names)],
            task={"standardise": "none" if self.turn % 2 else "federated"},
            evaluation={"every": 1, "track": True},
            rounds={"count": 2},
        )
        self.turn += 1
        self.people, self.memories = clients(scene=self.scene), {}
        run = begun(self.folder / "run", self.scene, name="r")
        run.store.durable = False
        run.members.note_samples(dict.fromkeys(self.people, (24, 24)))
        for client in self.people:
            run.handle(Joined(client), 0.0)
        return run

    def next_order(self) -> tuple[str, OrderMessage]:
        """An order with work of a run that is not over."""
        while True:
            if self.run is None or self.run.engine.stage.value == "finished":
                self.run = self.begin()
            orders = [effect for effect in self.run.desired() if isinstance(effect, SendOrder)]
            open_ones = [
                (effect.client, effect.order) for effect in orders if effect.order.work is not None
            ]
            if open_ones:
                return open_ones[0]
            self.run = None

    def honest(self, client: str, order: OrderMessage) -> tuple[ReportContent, Any]:
        work = order.work
        assert work is not None
        assert self.run is not None
        if work.phase == "moments":
            told = {"count": [24] * 5, "sum": [0.0] * 5, "square": [24.0] * 5}
            plain: dict[str, Any] = {
                "examples": 24,
                "steps": 0,
                "loss": 0.0,
                "seconds": 0.0,
                "vectors": {},
            }
            made = {"run": "r", "step": order.step, "client": client, "work": work.digest}
            whole = {**made, "numbers": told, **plain}
            return ReportContent.model_validate(whole), self.memories.get(client, {})
        local = local_for(self.people)(client, order)
        return report_on(self.run, client, order, local, self.memories.get(client))


def lie(report: ReportContent, rng: Random) -> bytes:
    """A report with a right checksum and something wrong in it."""
    tree = report.model_dump()
    if rng.random() < 0.1:
        return sealed(report, mutated(rng, [packed(tree)]))
    for _ in range(rng.randint(1, 2)):
        name = rng.choice(FIELDS)
        tree[name] = mutated_tree(rng, [tree[name]])
        tree[name] = tree[name][0] if isinstance(tree[name], list) and tree[name] else tree[name]
    return sealed(report, packed(tree))


def report_target() -> Target:
    def ready(folder: Path) -> Callable[[Any], str]:
        course = Course(folder, tuple(name for name in METHODS if name not in DEEP))
        cache: dict[tuple[int, str, int], tuple[ReportContent, Any]] = {}

        def take(seed: int) -> str:
            client, order = course.next_order()
            run = course.run
            assert run is not None
            place = (course.turn, client, order.step)
            if place not in cache:
                cache.clear()
                cache[place] = course.honest(client, order)
            report, kept = cache[place]
            course.lies += 1
            truth = course.lies > 30
            try:
                run.accept(client, report.to_bytes() if truth else lie(report, Random(seed)), 0.0)
            except DecodeError:
                if truth:
                    course.run = None  # this agent is set aside: the next run begins
                    course.lies = 0
                raise
            except BaseException:
                course.run = None  # the next input begins a new run
                raise
            if run.members.accepted(client) == order.step:
                course.memories[client] = kept
                course.lies = 0
            return "honest" if truth else ""

        return take

    return Target("run.accept", lambda rng: rng.randrange(1 << 60), ready, (DecodeError,), 2)
