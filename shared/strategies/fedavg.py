"""FedAvg: local SGD for E epochs, then the sample-weighted mean of the models.

McMahan et al. 2017, Communication-Efficient Learning of Deep Networks from Decentralized Data, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from shared.strategy import ClientId, Job, Local, Memory, Order, Phase, Report, Reports, Setup, Strategy, View
from shared.vectors import Vector, mean


@dataclass(frozen=True)
class Single:
    """The state of a method with one model."""

    model: Vector


class FedAvg(Strategy[Single]):
    """The reference: one model for everybody."""

    summary: ClassVar[str] = "one model for all, mean of local models weighted by samples"
    source: ClassVar[str] = "McMahan et al. 2017"

    name: Literal["fedavg"] = "fedavg"

    def init(self, setup: Setup) -> Single:
        return Single(setup.starts[0])

    def plan(self, state: Single, view: View) -> Phase:
        return Phase(sizes={"model": state.model.size})

    def order(self, state: Single, phase: Phase, client: ClientId) -> Order:
        return Order(models=("0",))

    def model(self, state: Single, key: str) -> Vector:
        return state.model

    def work(self, job: Job, local: Local, memory: Memory) -> tuple[Report, Memory]:
        done = local.descend(job.models[0])
        return Report({"model": done.end}, local.examples, {}, done.steps, done.loss, {"model": 0}), memory

    def fold(self, state: Single, phase: Phase, reports: Reports) -> Single:
        return Single(mean([(report.vectors["model"], report.examples) for _, report in reports]))

    def serve(self, state: Single, client: ClientId) -> Order:
        return Order(models=("0",))

    def clusters(self, state: Single) -> tuple[Vector, ...]:
        return (state.model,)
