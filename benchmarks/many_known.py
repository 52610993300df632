"""What a coordinator needs for agents that it knows: memory, and the time of everything that looks at all of them.

    python -m benchmarks.many_known 100000

No broker and no agents: the statuses of that many agents go through the intake, the roster and the run of a service.
Prints one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from covey.coordinator.engine.events import Joined, Planned
from covey.coordinator.engine.members import Members
from covey.coordinator.engine.rounds import RoundEngine
from covey.coordinator.engine.rules import RoundRules
from covey.coordinator.run.run import Run
from covey.coordinator.serve import attendance, rate
from covey.coordinator.serve.intake import StatusQueued
from covey.coordinator.serve.service import Service
from covey.shared.mqtt.link import Received
from covey.shared.mqtt.program import TOGETHER
from covey.shared.strategies.base import Phase
from covey.shared.wire.documents import AgentStatus
from tests.kit.memory_broker import MemoryBroker
from tests.kit.small_run import judged, rules, setup

SHARE = 0.05
TIMES = 3


def name_of(number: int) -> str:
    return f"light-{number:06d}"


def seconds_of(work: Callable[[], object]) -> float:
    """Processor time of a call, the best of three."""
    best = float("inf")
    for _ in range(TIMES):
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return best


def memory() -> int:
    return int(psutil.Process().memory_full_info().uss)


async def measure(agents: int, folder: Path) -> dict[str, Any]:
    """The figures of a coordinator that knows this many agents."""
    scene = judged("fedavg", rounds={"count": 1, "start_agents": agents + 1})
    run = Run.start(folder, scene, setup(scene), rules=rules(scene), run="run-1", now=0.0)
    rate.UNKNOWN_STATUSES = (1e9, 1e9)  # here they come sooner than in any fleet
    rate.UNKNOWN_BYTES = (1e12, 1e12)
    async with MemoryBroker().link("coordinator") as link:
        service = Service(run, link)
        before = memory()
        began = time.process_time()
        take_statuses(service, agents)
        took_s = time.process_time() - began
        grown = memory() - before
        show = service.desk.show
        members = Members()
        for number in range(agents):
            members.join(name_of(number))
        roster = service.roster
        while roster.pages.take_page() is not None:
            pass
        roster.pages.take_changes()

        def a_round_of_changes() -> None:
            for number in range(int(SHARE * agents)):
                roster.reported(name_of(number), 1.0, worked=True)
            show._message(roster.pages.take_changes()).to_bytes()

        def a_page() -> None:
            roster.reported(name_of(0), 1.0, worked=True)
            page = roster.pages.take_page()
            assert page is not None
            show._message(page[1]).to_bytes()

        def a_checkpoint() -> None:
            run.store.changed()
            run.store.commit(run)

        return {
            "kb_per_known_agent": round(grown / agents / 1e3, 2),
            "ms_per_status": round(1e3 * took_s / agents, 3),
            "ms_of_a_rounds_changes": round(1e3 * seconds_of(a_round_of_changes), 1),
            "ms_of_a_page": round(1e3 * seconds_of(a_page), 1),
            "ms_of_a_draw": round(1e3 * seconds_of(lambda: draw(members)), 1),
            "ms_of_a_checkpoint": round(1e3 * seconds_of(a_checkpoint), 1),
        }


def take_statuses(service: Service, agents: int) -> None:
    """Everything that happens to the first status of each agent, without the network."""
    topics = service.topics
    together: list[str] = []
    for number in range(agents):
        name = name_of(number)
        status = AgentStatus(
            agent=name,
            session="0199f00c5b20aa11bb22",
            serial=1,
            online=True,
            task=service.scenario.task.digest,
            samples=10,
            test_samples=10,
            version="0.1.0",
        )
        (item,) = service.read(Received(topics.status(name), status.to_bytes()), 0.0)
        assert isinstance(item, StatusQueued)
        together.append(name)
        if len(together) == TOGETHER or number == agents - 1:
            with service.desk.lock:
                attendance.take(service.desk, together, 0.0)
            together = []


def draw(members: Members) -> None:
    """Draw a cohort; the engine is made for it, which is part of the figure."""
    number = len(members.known)
    engine = RoundEngine(RoundRules(start_agents=number, participation=SHARE), members=members)
    engine.handle(Joined(name_of(0)), 0.0)
    engine.handle(Planned(Phase()), 0.0)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(measure(int(sys.argv[1]), Path(folder)))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
