"""Fuzzy-CFL with a real network: its head finds two planted kinds of images, and agents' mixtures show in the counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.superclasses import membership
from covey.agent.data.dataset import Dataset, dataset
from covey.agent.training.learner import TorchLocal
from covey.agent.training.models import initial
from covey.shared.scenario.task import Model, Task
from covey.shared.seeds import entropy, generator
from covey.shared.strategies.base import Job, Setup, Training
from covey.shared.strategies.fuzzy import Fuzzy
from tests.drive import Run

SIDE = 8
TASK = Task(
    features=(1, SIDE, SIDE), classes=2, model=Model(name="mlp", options={"hidden": 16, "head": 2})
)
TRAINING = Training(batch=50, lr=0.1, momentum=0.9)
SHARES = (0.9, 0.9, 0.9, 0.1, 0.1, 0.1)  # of kind 0 in each agent's images
TRUTH = [(share, 1 - share) for share in SHARES]
UNIFORM = 2 * 0.4**2  # the error of one half and one half for everybody


pytestmark = pytest.mark.usefixtures("single_thread")


def images(share: float, seed: int, count: int = 150) -> Dataset:
    """A bar on dim noise, upright in a `share` of the images and level in the others, somewhere in the middle."""
    draw = generator(seed, "planted")
    upright = np.arange(count) < round(share * count)
    pictures = draw.uniform(0, 0.2, (count, 1, SIDE, SIDE))
    for picture, is_upright in zip(pictures[:, 0], upright, strict=True):
        at = draw.integers(2, 5)
        bar = (slice(None), slice(at, at + 2)) if is_upright else (slice(at, at + 2), slice(None))
        picture[bar] += 0.7
    return dataset(pictures.astype(np.float32), (~upright).astype(np.int64), source="planted")


class Learning(Run):
    """A run whose clients train a real network; `locals` are their data sets."""

    def local(self, job: Job) -> Any:
        data: Any = self.locals[job.client]
        draw = generator(entropy(job.seed, "planted run"), job.client, job.round)
        return TorchLocal(data, TASK, job.layout, training=job.training, rng=draw)


def membership_error(strategy: Fuzzy, seed: int, rounds: int = 6) -> float:
    """Mean over agents of the squared error of their estimated memberships, summed over the two clusters."""
    start, layout = initial(TASK, seed)
    data: Any = {f"agent-{i}": images(share, seed=i) for i, share in enumerate(SHARES)}
    run = Learning(strategy, Setup((start,), layout, seed, rounds, 1.0, TRAINING), data).rounds(
        rounds
    )
    estimated = strategy.shown(run.state).memberships
    error = membership(estimated, dict(zip(data, TRUTH, strict=True)))
    assert error is not None
    return error


@pytest.mark.parametrize("seed", [0, 5])
def test_estimated_memberships_are_closer_to_the_truth_than_uniform_ones(seed: int) -> None:
    """Of the starts 0 to 5, five are this close after six rounds: the entropy term pulls towards even splits."""
    assert membership_error(Fuzzy(), seed) < UNIFORM / 2


def test_a_head_without_its_loss_finds_nothing() -> None:
    assert membership_error(Fuzzy(beta=0.0), seed=0) > UNIFORM / 2
