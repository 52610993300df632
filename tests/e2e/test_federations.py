"""Several runs at once on one fleet: each a federation of its own at one Mosquitto, one of them killed and resumed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tests.e2e.conftest import coordinator, finish
from tests.e2e.test_devices import NUMPY, start
from tests.processes import (
    Program,
    free_port,
    model_bytes,
    mosquitto,
    needs_mosquitto,
    program,
    rows,
    until,
)

pytestmark = [pytest.mark.processes, pytest.mark.broker, needs_mosquitto]

AGENTS = 3
ROUNDS = 10
METHODS = {"north": "fedavg", "south": "ditto", "east": "fedprox"}
WITHIN_S = 300.0


@contextmanager
def devices(folder: Path, port: int, federations: Sequence[str]) -> Iterator[None]:
    """Agents that belong to all of these federations, each with its share of the digits."""
    x, y = load_digits(return_X_y=True)
    first, *others = federations
    options = [*NUMPY, "--threads", "1", "--federation", first]
    for other in others:
        options += ["--also", other]
    with ExitStack() as living:
        for number in range(AGENTS):
            name = f"device-{number}"
            data = folder / f"{name}.npz"
            part = slice(number, None, AGENTS)
            np.savez(data, x=x[part].reshape(-1, 1, 8, 8).astype(np.float32), y=y[part])
            command = start(folder, name, data, port, *options)
            living.enter_context(program(*command, log=folder / f"{name}.log"))
        yield


def run_of(folder: Path, port: int, federation: str, *more: str) -> Program:
    """The coordinator of one federation."""
    home = folder / federation
    home.mkdir(exist_ok=True)
    return coordinator(
        home,
        port,
        *more,
        federation=federation,
        strategy={"name": METHODS[federation]},
        rounds={
            "count": ROUNDS,
            "participation": 0.5,
            "start_agents": AGENTS,
            "deadline_s": WITHIN_S,
        },
    )


def test_three_runs_at_once_end_with_the_bytes_of_each_alone_and_one_of_them_is_killed(
    tmp_path: Path,
) -> None:
    together = tmp_path / "together"
    together.mkdir()
    port = free_port()
    with ExitStack() as living:
        living.enter_context(mosquitto(together, port))
        living.enter_context(devices(together, port, list(METHODS)))
        runs = {federation: run_of(together, port, federation) for federation in METHODS}
        for this in runs.values():
            living.callback(this.stop)
        until(lambda: rows(together / "south" / "run"), WITHIN_S, of=runs["south"])
        runs["south"].kill()
        assert len(rows(together / "south" / "run")) < ROUNDS, "it was over before it was killed"
        runs["south"] = run_of(together, port, "south", "--resume")
        living.callback(runs["south"].stop)
        for this in runs.values():
            finish(this, WITHIN_S)
    alone, port = tmp_path / "alone", free_port()
    alone.mkdir()
    with mosquitto(alone, port), devices(alone, port, list(METHODS)):
        for federation in METHODS:  # one after another
            finish(run_of(alone, port, federation), WITHIN_S)
            found = [model_bytes(folder / federation / "run") for folder in (together, alone)]
            assert found[0] == found[1]
