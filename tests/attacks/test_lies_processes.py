"""A liar among three honest agents, with the real coordinator, its real commands and a real Mosquitto.

The agents are played by this process: they train nothing, and answer every order with a small step.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import yaml

from covey.shared.wire.codec import Codec, encode
from covey.shared.wire.messages import Encoded, OrderMessage
from tests.attacks.lies import LIES, packed
from tests.kit.parrot import Parrot
from tests.kit.scenes import start_file
from tests.processes import (
    Program,
    free_port,
    mosquitto,
    needs_mosquitto,
    program,
    rows,
    until,
    words,
)

pytestmark = [pytest.mark.broker, needs_mosquitto]

LIAR = "liar"
PEOPLE = (LIAR, "one", "three", "two")
PAUSE_S = 0.05  # between an order and its report


class Played(Parrot):
    """`lies` are told one after another; without any it is honest."""

    def __init__(self, name: str, url: str, lies: Sequence[str] = ()) -> None:
        super().__init__(name, url, PAUSE_S)
        self.lies = lies

    def weights(self, size: int) -> Encoded:
        values, rng = np.full(size, 0.25, np.float32), np.random.default_rng(1)
        encoded, _ = encode(values, Codec(), base=None, base_digest=b"", error=None, rng=rng)
        return encoded

    def content(self, order: OrderMessage) -> bytes:
        if not self.lies:
            return super().content(order)
        lie = LIES[self.lies[order.step % len(self.lies)]]
        bent = lie.bend(self.report(order).model_dump(), order)
        if bent is None:
            return super().content(order)
        return bent if isinstance(bent, bytes) else packed(msgpack.packb(bent, use_bin_type=True))


@contextlib.contextmanager
def played(url: str, lies: Sequence[str]) -> Iterator[None]:
    """Everybody, in a thread with a loop of its own."""
    loop = asyncio.new_event_loop()

    async def all_of_them() -> None:
        await asyncio.gather(
            *(Played(name, url, lies if name == LIAR else ()).live() for name in PEOPLE)
        )

    task = loop.create_task(all_of_them())

    def live() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task)

    thread = threading.Thread(target=live)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()


def scene(folder: Path, count: int) -> Path:
    task = {"features": [4], "classes": 2, "model": {"name": "linear"}}
    data = {
        "name": "liars",
        "task": {**task, "init": start_file(folder, task)},
        "strategy": {"name": "fedavg"},
        "rounds": {"count": count, "start_agents": len(PEOPLE), "quorum": 2, "deadline_s": 60},
        "evaluation": {"every": 1, "tune_epochs": 0},
    }
    path = folder / "scenario.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def run(folder: Path, url: str, count: int, *more: str) -> Program:
    command = words(
        "coordinator run", scene(folder, count), "--broker", url, "--out", folder / "run"
    )
    return Program([*command, "--json", *more], folder / f"coordinator{len(more)}.log")


def blamed(folder: Path, *events: str) -> set[str]:
    return {row["agent"] for row in rows(folder) if row["event"] in events}


def status(url: str, folder: Path) -> dict[str, Any]:
    with program(
        "covey.coordinator.cli", "status", "--broker", url, "--json", log=folder / "status.log"
    ) as asked:
        asked.process.wait(60)
        seen: dict[str, Any] = json.loads(asked.output.splitlines()[-1])
        return seen


@pytest.mark.whole
def test_a_quarantine_outlasts_a_kill_and_ends_with_release(tmp_path: Path) -> None:
    port, folder = free_port(), tmp_path / "run"
    url = f"mqtt://127.0.0.1:{port}"
    with mosquitto(tmp_path, port), played(url, ("loss_1.7e308",)):
        first = run(tmp_path, url, 10_000)
        until(lambda: folder.exists() and blamed(folder, "quarantined") == {LIAR}, of=first)
        first.kill()
        second = run(tmp_path, url, 10_000, "--resume")
        try:
            until(lambda: '"up": true' in second.output, of=second)
            held = until(
                lambda: status(url, tmp_path)["roster"]["agents"].get(LIAR, {}).get("quarantined"),
                of=second,
            )
            assert "loss is 1.7e+308" in held
            with program(
                "covey.coordinator.cli",
                "lab",
                "release",
                "one",
                "--broker",
                url,
                log=tmp_path / "r0.log",
            ) as wrong:
                assert wrong.process.wait(60) == 2
                assert "one is not in quarantine" in wrong.output
            with program(
                "covey.coordinator.cli",
                "lab",
                "release",
                LIAR,
                "--broker",
                url,
                log=tmp_path / "r1.log",
            ) as release:
                assert release.process.wait(60) == 0, release.output
            until(lambda: blamed(folder, "released") == {LIAR}, of=second)
            until(
                lambda: [row["event"] for row in rows(folder)].count("quarantined") == 2, of=second
            )
        finally:
            second.stop()
