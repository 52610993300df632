"""The floor of a round: bare MQTT clients that exchange the same bytes, and clients that also promise what Covey promises.

    python -m benchmarks.bare play|lead PORT PARAMETERS ROUNDS plain|durable|kept

One client publishes the model and ten orders, ten clients answer with a report of the same size, in the same parts. `plain`
is that alone: zeros that nobody looks at. The other two promise what a round of Covey does, with as little as that takes:

- each content is hashed where it is made and where it arrives, and compared;
- an agent makes one step of SGD from the model that it got, and has the report in a file before it sends it;
- the coordinator has each report in a file before its sender would learn that it counts, and model and round too;
- the reports are averaged, and the mean is the next model.

`durable` waits for the disk at each of these files, as real agents and their coordinator do; `kept` does not, as a simulated
fleet, which survives a kill and trains again after a power cut.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiomqtt
import numpy as np

AGENTS = 10
ORDER_BYTES = 2500
PART_BYTES = 512 * 1024
DIGEST_BYTES = 16
RATE = 0.001
SAMPLES = 8
PROMISES = ("plain", "durable", "kept")


def parts_of(size: int) -> list[int]:
    """The sizes of the parts of a content."""
    whole, rest = divmod(size, PART_BYTES)
    return [PART_BYTES] * whole + [rest] * (rest > 0)


def hashed(content: bytes | bytearray | memoryview) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


@dataclass(frozen=True)
class Exchange:
    """One bare exchange: where, of what size, for how long, and with which promises."""

    port: int
    parameters: int
    rounds: int
    promise: str

    @property
    def promises(self) -> bool:
        return self.promise != "plain"

    @property
    def sizes(self) -> list[int]:
        return parts_of(4 * self.parameters)

    def write(self, path: Path, content: bytes | memoryview) -> None:
        """Have a content in a file, and on the disk where that is promised."""
        with path.open("wb") as file:
            file.write(content)
            if self.promise == "durable":
                file.flush()
                os.fsync(file.fileno())


class Assembled:
    """The parts of one content, put together and compared with its digest."""

    def __init__(self, sizes: list[int]) -> None:
        self._sizes = sizes
        self._content = bytearray(sum(sizes))
        self._missing = set(range(len(sizes)))

    def take(self, index: int, payload: bytes) -> np.ndarray[Any, Any] | None:
        """The values once all parts are here: the first bytes of each part are the digest of the whole."""
        start = index * PART_BYTES
        self._content[start : start + self._sizes[index]] = memoryview(payload)[DIGEST_BYTES:]
        self._missing.discard(index)
        if self._missing:
            return None
        self._missing = set(range(len(self._sizes)))
        if hashed(self._content) != payload[:DIGEST_BYTES]:
            raise ValueError("the content is damaged")
        return np.frombuffer(bytes(self._content), np.float32)


class Trainer:
    """One step of SGD of the model that the product trains, on eight samples."""

    def __init__(self, parameters: int) -> None:
        import torch

        from benchmarks.rounds import KINDS, scenario
        from covey.agent.training.models import build
        from covey.shared.scenario.scenario import Scenario

        torch.set_num_threads(1)
        [kind] = [one for one in KINDS.values() if one.parameters == parameters][:1]
        task = Scenario.model_validate(scenario(kind, 1)).task
        self._torch = torch
        self._module = build(task, 0)
        draws = torch.Generator().manual_seed(0)
        self._inputs = torch.rand(SAMPLES, *kind.features, generator=draws)
        self._labels = torch.arange(SAMPLES) % 10

    def step(self, model: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The model after the step."""
        torch = self._torch
        weights = torch.from_numpy(model.copy())
        start = 0
        for one in self._module.parameters():
            one.data = weights[start : start + one.numel()].view(one.shape)
            one.grad = None
            start += one.numel()
        torch.nn.functional.cross_entropy(self._module(self._inputs), self._labels).backward()
        with torch.no_grad():
            for one in self._module.parameters():
                if one.grad is not None:
                    one.sub_(RATE * one.grad)
        return weights.numpy()  # type: ignore[no-any-return]


async def send(client: aiomqtt.Client, topic: str, content: memoryview, *, retain: bool) -> None:
    """A content in parts, each with the digest of the whole in front."""
    name = hashed(content)
    for index, start in enumerate(range(0, len(content), PART_BYTES)):
        payload = name + content[start : start + PART_BYTES]
        await client.publish(f"{topic}/{index}", payload, qos=1, retain=retain)


async def answer(this: Exchange, number: int, trainer: Trainer | None, folder: Path) -> None:
    """A bare agent: publish a report for each order."""
    sizes = this.sizes
    model = Assembled(sizes)
    values = np.zeros(0, np.float32)
    async with aiomqtt.Client("127.0.0.1", this.port, timeout=60) as client:
        await client.subscribe([("model/#", 1), (f"order/{number}", 1)])
        # retained: the bare coordinator may subscribe later
        await client.publish(f"ready/{number}", b"here", qos=1, retain=True)
        async for message in client.messages:
            place, _, rest = message.topic.value.partition("/")
            if trainer is None:
                if place == "order":
                    for index, size in enumerate(sizes):
                        await client.publish(f"report/{number}/{index}", bytes(size), qos=1)
                continue
            if place == "model":
                found = model.take(int(rest), message.payload)
                values = values if found is None else found
                if found is not None:
                    this.write(folder / f"model-{number}", found.view(np.uint8).data)
                continue
            report = trainer.step(values).view(np.uint8).data
            this.write(folder / f"report-{number}", report)
            await send(client, f"report/{number}", report, retain=False)


async def play(this: Exchange) -> None:
    """All bare agents."""
    trainer = Trainer(this.parameters) if this.promises else None
    with tempfile.TemporaryDirectory() as name:
        async with asyncio.TaskGroup() as group:
            for number in range(AGENTS):
                group.create_task(answer(this, number, trainer, Path(name)))


async def lead(this: Exchange) -> float:
    """A bare coordinator. Returns the seconds of one round."""
    sizes = this.sizes
    mean = np.zeros(this.parameters, np.float32)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with aiomqtt.Client("127.0.0.1", this.port, timeout=60) as client:
            await client.subscribe([("report/#", 1), ("ready/#", 1)])
            messages = client.messages
            for _ in range(AGENTS):
                await anext(messages)
            began = 0.0
            for number in range(this.rounds + 1):  # the first one warms up
                if number == 1:
                    print("began", flush=True)
                    began = time.perf_counter()
                if this.promises:
                    content = mean.view(np.uint8).data
                    this.write(folder / "model", content)
                    await send(client, "model", content, retain=True)
                else:
                    for index, size in enumerate(sizes):
                        await client.publish(f"model/{index}", bytes(size), qos=1, retain=True)
                for agent in range(AGENTS):
                    order = bytes(ORDER_BYTES)
                    await client.publish(f"order/{agent}", order, qos=1, retain=True)
                mean = await gather(this, messages, folder, mean)
    return (time.perf_counter() - began) / this.rounds


async def gather(
    this: Exchange, messages: Any, folder: Path, mean: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Take the reports of one round. Returns their mean."""
    sizes = this.sizes
    total = np.zeros(this.parameters, np.float64)
    reports = [Assembled(sizes) for _ in range(AGENTS)]
    for _ in range(AGENTS * len(sizes)):
        message = await anext(messages)
        if not this.promises:
            continue
        _, agent, index = message.topic.value.split("/")
        found = reports[int(agent)].take(int(index), message.payload)
        if found is not None:
            this.write(folder / f"report-{agent}", found.view(np.uint8).data)
            total += found
    return (total / AGENTS).astype(np.float32) if this.promises else mean


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("role", choices=("play", "lead"))
    parser.add_argument("numbers", nargs=3, type=int)
    parser.add_argument("promise", choices=PROMISES)
    options = parser.parse_args()
    port, parameters, rounds = options.numbers
    this = Exchange(port, parameters, rounds, options.promise)
    if options.role == "play":
        asyncio.run(play(this))
        return
    print("seconds", asyncio.run(lead(this)), flush=True)
    time.sleep(5)  # until its processor time was read; then it is ended
    sys.exit()


if __name__ == "__main__":
    main()
