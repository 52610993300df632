"""Small secure runs under kills: `python -m tests.simulator.secure_chaos --runs 500`.

A run has eight agents and two rounds, in this process. Agents and coordinator are killed before or after anything that they
write to their disks, and start again with what lies there; agents vanish for a phase. Each group must end as the integers
that its members have made, or as void or passed over with a reason, and no run ends early.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

from covey.coordinator.disk.checkpoint import Checkpoint
from covey.coordinator.disk.spool import Spool
from covey.coordinator.run.run import Run
from covey.coordinator.simulate.virtual_clock import Driver
from covey.extras.secure.secure_folder import SecureFolder
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import ClientId
from covey.shared.wire.messages import OrderMessage, ReportContent
from tests.kit import small_run
from tests.kit.local_clients import LocalClients
from tests.simulator.judge import Sums
from tests.simulator.world import SeededClient

METHODS = ("fedavg", "ditto", "fedrep")
KINDS = ("agent killed", "coordinator killed", "agent gone")
ENDS = ("secure sum", "secure void", "secure passed over")
MOST_KILLS = 8  # in a run, so that it ends
CHANCE = 0.03  # of a kill at one write
GONE = 0.05  # of an agent in one phase
DISKS: dict[str, list[tuple[type, str]]] = {
    "agent killed": [(SecureFolder, name) for name in ("save", "save_vector", "erase_work")],
    "coordinator killed": [(Checkpoint, "save"), (Spool, "keep"), (Spool, "drop")],
}


class Killed(BaseException):
    """The program ends here."""


class Chaos:
    """What befalls one run."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(f"secure chaos {seed}")  # noqa: S311 - bad luck, no secrets
        self.struck: Counter[str] = Counter()
        self.failures: list[str] = []

    def strikes(self, kind: str, chance: float) -> bool:
        if self.struck.total() >= MOST_KILLS or self.draw.random() >= chance:
            return False
        self.struck[kind] += 1
        return True

    @contextmanager
    def kills(self) -> Iterator[None]:
        """Each write of a program may be its last, or the first that it does not come to."""

        def deadly(kind: str, write: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(write)
            def written(*about: Any, **named: Any) -> Any:
                if self.strikes(kind, CHANCE):
                    raise Killed
                result = write(*about, **named)
                if self.strikes(kind, CHANCE):
                    raise Killed
                return result

            return written

        with ExitStack() as stack:
            for kind, writes in DISKS.items():
                for owner, name in writes:
                    write = getattr(owner, name)
                    stack.enter_context(patch.object(owner, name, deadly(kind, write)))
            yield


class Clients(LocalClients):
    """Agents that start again after a kill, and do the order that they find."""

    def __init__(self, chaos: Chaos, sums: Sums, scene: Scenario) -> None:
        super().__init__(small_run.local_for(small_run.clients(scene=scene)))
        self.chaos, self.sums = chaos, sums

    def client(self, run: Run, client: ClientId, order: OrderMessage) -> SeededClient:
        who = super().client(run, client, order)
        return SeededClient(**vars(who), token=self.chaos.draw.randbytes, sums=self.sums)

    def work(self, run: Run, client: ClientId, order: OrderMessage) -> ReportContent:
        if order.step and self.chaos.strikes("agent gone", GONE):
            return ReportContent.failed(order, client, "gone")
        while True:
            try:
                return super().work(run, client, order)
            except Killed:
                continue


def play(seed: int, folder: Path) -> Chaos:
    """One run."""
    chaos = Chaos(seed)
    ends: Counter[str] = Counter()  # and the faults that sums met: not counted as kills
    sums = Sums(lambda error: chaos.failures.append(str(error)), ends)
    secure = {"clip": 10.0, "cap": 100, "group": chaos.draw.choice((4, 8))}
    rounds = {"count": 2, "participation": 1.0}
    method = chaos.draw.choice(METHODS)
    scene = small_run.judged(method, rounds=rounds, privacy={"secure": secure})
    people = small_run.samples_of(small_run.clients())
    clients = Clients(chaos, sums, scene)
    setup, rules = small_run.setup(scene), small_run.rules(scene, void_limit=1000)
    run = Run.start(folder, scene, setup, rules=rules, run="in-process", now=0.0)
    first: Any = ()
    with sums.watched(), chaos.kills():
        while True:
            try:
                Driver(run, clients).complete(people, first)
                break
            except Killed:
                run, first = _resumed(
                    lambda: Run.resume(folder, scene, setup, rules=rules, now=0.0)
                )
                for client in people:  # what came with an accepted report is theirs
                    clients.settle(run, client, run.members.accepted(client))
            except Exception as error:
                chaos.failures.append(f"the run ended: {type(error).__name__}: {error}")
                break
    chaos.struck += ends
    return chaos


def _resumed(resume: Callable[[], tuple[Run, Any]]) -> tuple[Run, Any]:
    while True:
        try:
            return resume()
        except Killed:
            continue


def main() -> int:
    """0 where each sum of each run is right, and each kind of fault struck."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulator.secure_chaos", description=__doc__
    )
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="seed of the first run")
    options = parser.parse_args()
    struck: Counter[str] = Counter()
    failed = 0
    for seed in range(options.first, options.first + options.runs):
        with tempfile.TemporaryDirectory() as folder:
            chaos = play(seed, Path(folder))
        struck += chaos.struck
        failed += bool(chaos.failures)
        for failure in chaos.failures:
            print(f"seed {seed}: {failure}", flush=True)
    print(f"{options.runs} runs, {failed} failed")
    print(", ".join(f"{kind}: {struck[kind]}" for kind in (*KINDS, *ENDS)))
    missed = [kind for kind in (*KINDS, "secure sum") if not struck[kind]]
    if missed:
        print(f"never happened: {', '.join(missed)}; expected each at least once")
    return int(bool(failed or missed))


if __name__ == "__main__":
    sys.exit(main())
