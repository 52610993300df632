"""The bytes that a run of light agents ends with if nothing disturbs it: computed in this process, without a broker."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path

from benchmarks.light_fleet import SAMPLES, agent_name, report_of
from covey.coordinator.engine.events import Joined
from covey.coordinator.processes.launch import started
from covey.coordinator.run.effects import Effect, RunOver, SendOrder
from covey.coordinator.run.result import write_models
from covey.coordinator.run.rules import rules_of
from covey.coordinator.run.run import Run
from covey.shared.scenario.load import load
from tests.processes import model_bytes


def undisturbed_models(folder: Path, agents: int, out: Path) -> dict[str, bytes]:
    """The model files of an undisturbed run.

    Args:
        folder: of a run over the network, with its scenario and its initial model.
        agents: how many take part.
        out: an empty folder.
    """
    scenario = load(str(folder / "scenario.yaml"))
    run = Run.start(
        out, scenario, started(folder, scenario), rules=rules_of(scenario), run="reference", now=0.0
    )
    run.store.durable = False
    waiting: deque[SendOrder] = deque()
    for number in range(agents):
        name = agent_name(number)
        run.members.of(name).samples = (SAMPLES, SAMPLES)
        waiting += _orders(run.handle(Joined(name), 0.0))
    while waiting:
        send = waiting.popleft()
        step = run.engine.step
        if step is None or send.order.step != step.number:
            continue  # the order is out of date
        waiting += _orders(run.accept(send.client, report_of(send.order, send.client), 0.0))
    write_models(run)
    return model_bytes(out)


def _orders(effects: Sequence[Effect]) -> list[SendOrder]:
    """The orders with work among these effects. Raises RuntimeError if the run was given up."""
    found: list[SendOrder] = []
    for effect in effects:
        match effect:
            case SendOrder(_, order) if order.work is not None:
                found.append(effect)
            case RunOver(why) if why:
                raise RuntimeError(why)
    return found
