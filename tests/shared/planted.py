"""Clients in groups whose answers are known by hand, and a run over them without a network."""

from typing import Any

import numpy as np

from shared.seeds import generator
from shared.strategy import Setup, Strategy, Training
from shared.vectors import Vector
from tests.bowl import Bowl, Softmax, bowl_layout, flat, softmax_client
from tests.drive import Run

ONE = Training(epochs=1, batch=100, lr=0.5)  # one step, half of the way


def bowls(*minima: tuple[float, ...], examples: int = 10) -> dict[str, Bowl]:
    return {f"c{i:02d}": Bowl(flat(*minimum), examples) for i, minimum in enumerate(minima)}


def two_groups(each: int = 4) -> dict[str, Bowl]:
    """Members alternate: c00, c02, ... around +5, the others around -5."""
    return bowls(*(((-1) ** i * 5.0, (-1) ** i * 5.0 + 0.1 * i) for i in range(2 * each)))


def softmaxes(count: int = 6, n: int = 24) -> dict[str, Softmax]:
    return {f"c{i}": softmax_client(((0, 1), (2, 3))[i % 2], seed=i, n=n + 4 * i) for i in range(count)}


def run(strategy: Strategy[Any], locals_: Any, training: Training = ONE, *, rounds: int = 3, **more: Any) -> Run:
    first = next(iter(locals_.values()))
    layout = first.layout if isinstance(first, Softmax) else bowl_layout(len(first.minimum))
    starts = more.pop("starts", None) or [
        np.zeros(layout.size, np.float32) if j == 0 else generator(j, "s").normal(0, 1, layout.size).astype(np.float32)
        for j in range(strategy.starts)
    ]
    setup = Setup(tuple(starts), layout, 7, rounds, more.pop("participation", 1.0), training)
    return Run(strategy, setup, locals_, **more).rounds(rounds)


def alternating(locals_: Any) -> dict[str, int]:
    return {client: i % 2 for i, client in enumerate(locals_)}


def close(a: Vector, b: Vector) -> None:
    assert float(np.linalg.norm(a - b)) <= 1e-5 * float(np.linalg.norm(b))
