"""Clients in groups whose answers are known by hand, and a run over them without a network."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.coordinator.processes.launch import setup_of
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.seeds import generator
from covey.shared.strategies.base import Setup, Strategy, Training
from covey.shared.strategies.client_half import Job
from tests.bowl import Bowl, Softmax, Trainer, bowl_layout, flat, softmax_client
from tests.drive import Run

ONE = Training(epochs=1, batch=100, lr=0.5)  # one step, in a bowl half of the way
WHOLE = Training(epochs=1, batch=100, lr=1.0)  # one step, in a bowl the whole way
SGD = Training(epochs=2, batch=8, lr=0.1)
TWO = Training(epochs=2, batch=8, lr=0.1, momentum=0.5)


def bowls(*minima: tuple[float, ...], examples: int = 10) -> dict[str, Bowl]:
    return {f"c{i:02d}": Bowl(flat(*minimum), examples) for i, minimum in enumerate(minima)}


def two_groups(each: int = 4, spread: float = 0.1) -> dict[str, Bowl]:
    """Members alternate: c00, c02, ... around +5, the others around -5."""
    return bowls(*(((-1) ** i * 5.0, (-1) ** i * 5.0 + spread * i) for i in range(2 * each)))


def softmaxes(count: int = 6, n: int = 24, more: int = 4) -> dict[str, Softmax]:
    """Members alternate in their two labels; each has `more` samples more than the one before."""
    return {
        f"c{i}": softmax_client(((0, 1), (2, 3))[i % 2], seed=i, n=n + more * i)
        for i in range(count)
    }


def unequal() -> dict[str, Softmax]:
    """Two groups of labels, different numbers of samples and so of steps."""
    return softmaxes(4, n=12, more=8)


def equal() -> dict[str, Softmax]:
    return softmaxes(4, more=0)


def alternating(locals_: Any) -> dict[str, int]:
    """What a method should find that recovers the groups."""
    return {client: i % 2 for i, client in enumerate(locals_)}


def layout_of(locals_: Any) -> Layout:
    first = next(iter(locals_.values()))
    return first.layout if isinstance(first, Softmax) else bowl_layout(len(first.minimum))


def starts_of(count: int, layout: Layout) -> list[Vector]:
    """Zeros, then as many drawn vectors as are missing."""
    drawn = (
        generator(j, "s").normal(0, 1, layout.size).astype(np.float32) for j in range(1, count)
    )
    return [np.zeros(layout.size, np.float32), *drawn]


def setup(
    locals_: Any,
    training: Training = ONE,
    *starts: Vector,
    rounds: int = 10,
    participation: float = 1.0,
    count: int = 1,
) -> Setup:
    layout = layout_of(locals_)
    return Setup(
        tuple(starts or starts_of(count, layout)), layout, 7, rounds, participation, training
    )


def run(
    strategy: Strategy[Any],
    locals_: Any,
    training: Training = ONE,
    *starts: Vector,
    rounds: int = 3,
    participation: float = 1.0,
    **more: Any,
) -> Run:
    begun = setup(
        locals_,
        training,
        *starts,
        rounds=rounds,
        participation=participation,
        count=strategy.starts,
    )
    return Run(strategy, begun, locals_, **more).rounds(rounds)


def job(
    *models: Vector,
    training: Training = ONE,
    phase: str = "train",
    round_: int = 0,
    layout: Layout | None = None,
    seed: int = 3,
    **numbers: Any,
) -> Job:
    """An order as agent `c` gets it."""
    return Job(
        phase,
        round_,
        "c",
        seed,
        models,
        numbers,
        None,
        layout or bowl_layout(len(models[0])),
        training,
    )


def trained(strategy: Strategy[Any], the_job: Job, local: Trainer) -> Vector:
    local = replace(local, training=the_job.training, seed=the_job.seed)
    return strategy.work(the_job, local, {})[0].vectors["model"]


def setup_for(scene: Any, names: tuple[str, str] = ("out.weight", "out.bias")) -> Setup:
    layout = replace(softmax_client((0, 1), seed=0), names=names).layout
    return setup_of(scene, [np.zeros(layout.size, np.float32)], layout)


def close(a: npt.ArrayLike, b: npt.ArrayLike) -> bool:
    return bool(np.allclose(a, b, rtol=1e-5, atol=1e-6))


def same(a: Run, b: Run) -> None:
    """Two runs of single-model methods end in one model, but for the last bits."""
    np.testing.assert_allclose(a.state.model, b.state.model, rtol=1e-5, atol=1e-7)
