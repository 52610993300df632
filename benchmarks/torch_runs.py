"""Whole runs in this process whose clients train with torch, hostile ones among them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from covey.agent.data import Dataset
from covey.agent.training.learner import TorchLocal
from covey.agent.training.models import initial
from covey.agent.training.together import together
from covey.coordinator.processes.launch import setup_of
from covey.coordinator.record.notices import Observer, ignore
from covey.coordinator.run.effects import Effect
from covey.coordinator.run.folder import IN_PROCESS
from covey.coordinator.run.happenings import Refused
from covey.coordinator.run.rules import rules_of
from covey.coordinator.run.run import Run
from covey.coordinator.simulate.virtual_clock import Driver, Work
from covey.extras.simulate.batched import batched
from covey.shared.errors import DecodeError
from covey.shared.numerics.vectors import Vector
from covey.shared.scenario.scenario import Scenario
from covey.shared.seeds import generator
from covey.shared.strategies.base import ClientId, Setup, Training
from covey.shared.wire.codec import Codec, decode, decode_model, encode
from covey.shared.wire.messages import OrderMessage, ReportContent
from covey.shared.work.at_hand import shuffle
from tests.kit.local_clients import HeldBackFor, LocalClients

TIMES = 10.0  # how far a bent step goes, in lengths of the honest one


def device_option(parser: argparse.ArgumentParser) -> None:
    """Where agents train."""
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="that trains")


def device_options(parser: argparse.ArgumentParser) -> None:
    """Where agents train, and how many of them at once."""
    device_option(parser)
    parser.add_argument("--together", type=int, default=0, help="agents that train at once")


def repeatable(options: argparse.Namespace | None = None) -> None:
    """Make the figures of a cell the same at each try; `options` are those of `device_options`."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    if options is not None:
        TorchClients.device = options.device
        TorchClients.together = options.together


def started(scene: Scenario) -> Setup:
    """The setup of a run from as many models as its method starts from."""
    made = [initial(scene.task, scene.seed, place) for place in range(scene.strategy.starts)]
    return setup_of(scene, [start for start, _ in made], made[0][1])


class Judging(Driver[LocalClients]):
    """A driver among liars: a refused report counts against its sender, as over a broker."""

    def refused(self, client: ClientId, order: OrderMessage, error: DecodeError) -> list[Effect]:
        return self.run.handle(Refused(client, error), self.now)


class TorchClients(LocalClients):
    """Agents that train on data at hand, one after the other; several at once with `together`.

    Args:
        scene: of the run.
        setup: of the run.
        datasets: of all agents.
        held_back: as for `LocalClients`.
    """

    driver: type[Driver[LocalClients]] = Driver  # of the run
    device: ClassVar[str] = "cpu"  # that trains
    together: ClassVar[int] = 0  # agents that train at once; 0: one after the other

    def __init__(
        self,
        scene: Scenario,
        setup: Setup,
        datasets: Mapping[ClientId, Dataset],
        held_back: HeldBackFor | None = None,
    ) -> None:
        super().__init__(
            lambda client, order: self.trainer(self.data(client, order), client, order), held_back
        )
        self.scene, self.setup, self.datasets = scene, setup, datasets
        self.ahead = max(self.together - 1, 0)
        self._ready: dict[tuple[ClientId, int], bytes] = {}

    def compute(self, run: Run, work: Work) -> None:
        if self.together:
            works = [partial(self.work, run, client, order) for client, order in work]
            for (client, order), report in zip(work, together(works, batched), strict=True):
                self._ready[client, order.step] = report.to_bytes()

    def report(self, run: Run, client: ClientId, order: OrderMessage) -> bytes:
        return self._ready.pop((client, order.step), None) or super().report(run, client, order)

    def data(self, client: ClientId, order: OrderMessage) -> Dataset:
        """What an agent works on."""
        return self.datasets[client]

    def trainer(self, data: Dataset, client: ClientId, order: OrderMessage) -> TorchLocal:
        """An agent's learner, with the randomness of the order."""
        work = order.work
        assert work is not None
        training = Training.model_validate({**work.training, "device": self.device})
        rng = shuffle(work, client)
        return TorchLocal(
            data,
            self.scene.task,
            self.setup.whole,
            training=training,
            rng=rng,
            scaling=work.scaling,
        )

    def samples(self) -> dict[ClientId, tuple[int, int]]:
        """Training and test samples of each agent."""
        return {
            client: (len(data.targets), len(data.test_targets))
            for client, data in self.datasets.items()
        }

    def run(
        self,
        folder: Path,
        samples: Mapping[ClientId, tuple[int, int]] | None = None,
        observer: Observer = ignore,
    ) -> Run:
        """The whole run; `samples` are those that the agents claim, None: their own."""
        rules = rules_of(self.scene)
        run = Run.start(folder, self.scene, self.setup, rules=rules, run=IN_PROCESS, now=0.0)
        return self.driver(run, self, observer).complete(samples or self.samples())


def megabytes(run: Run, agents: int) -> float:
    """Of vectors in all rounds, both ways and without evaluations, per agent."""
    traffic = run.traffic
    values = traffic["up_vectors"] + traffic["down_vectors"] - traffic["evaluation_vectors"]
    return round(4e-6 * values / agents, 4)


class WithLiars(TorchClients):
    """Agents of which some are hostile."""

    driver = Judging


def bent(honest: Vector, base: Vector, attack: str, draw: np.random.Generator) -> Vector:
    """The model (d,) that a hostile agent reports instead of an honest one.

    `sign_flip` goes ten times the honest step, backwards; `random` goes a random step ten times as long as the honest
    one; anything else goes ten times the honest step.
    """
    step = honest.astype(np.float64) - base
    if attack == "random":
        noise = draw.normal(0, 1, step.size)
        direction = noise / np.linalg.norm(noise)
        step = direction * np.linalg.norm(step)
    times = -TIMES if attack == "sign_flip" else TIMES
    return np.asarray(base + step * times, np.float32)


def models_of(run: Run, order: OrderMessage) -> list[Vector]:
    """The models that an order names."""
    assert order.work is not None
    contents = (run.orders.content_of(ref.key) for ref in order.work.models)
    return [decode_model(content, run.setup.whole) for content in contents]


def chosen(report: ReportContent, models: Sequence[Vector]) -> int:
    """Which of the order's models a report started from; an order that names one leaves no choice."""
    return int(report.numbers.get("choice", 0)) if len(models) > 1 else 0


def lied(
    report: ReportContent, base: Vector, attack: str, draw: np.random.Generator
) -> ReportContent:
    """An honest report with a bent model (see `bent`).

    Args:
        report: the honest one.
        base: the model (d,) that it started from.
        attack: how it is bent.
        draw: of the lie.
    """
    vector = bent(decode(report.vectors["model"], length=base.size), base, attack, draw)
    encoded, _ = encode(vector, Codec(), base=None, base_digest=b"", error=None, rng=draw)
    return report.model_copy(update={"vectors": {"model": encoded}})


def draw_of(seed: int, report: ReportContent) -> np.random.Generator:
    """The randomness of a lie."""
    return generator(seed, "lie", report.client, report.step)
