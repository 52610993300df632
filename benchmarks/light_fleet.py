"""Many light agents in one process: Covey's own agent, session and link, with work that costs next to nothing.

    python -m benchmarks.light_fleet URL FOLDER FIRST COUNT

Agents FIRST to FIRST + COUNT - 1 connect to the broker at URL and live until the process is ended. Each of them is a
`covey.agent.device.service.Agent`, with an outbox below FOLDER. Only the training is not real: the reported model is
drawn from the agent's name, the phase and the round. So a run gives the same bytes again, whatever happens to it.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from covey.agent.device.identity import Identity
from covey.agent.device.notices import DeviceNotice, DeviceObserver
from covey.agent.device.service import Agent
from covey.agent.policy import UNLIMITED, OwnersRules
from covey.shared.mqtt.mqtt_link import BrokerUrl, MqttLink
from covey.shared.numerics.vectors import Layout
from covey.shared.own_code.consent import NO_CODE
from covey.shared.storage.files import write_atomically
from covey.shared.strategies.phase_names import EVALUATE, TRAIN
from covey.shared.wire.codec import Codec, encode
from covey.shared.wire.jobs import DataSummary, FleetShare, InspectData, Performed
from covey.shared.wire.messages import Encoded, OrderMessage, ReportContent, Work, digest

STARTS_AT_ONCE = 20  # agents that start together
START_PAUSE_S = 0.1  # before the next of them
SAMPLES = 10  # of each agent, for training and for tests
FIGURES = {"n": SAMPLES, "correct": 1, "accuracy": 0.1, "f1": 0.1, "loss": 2.3}


def agent_name(number: int) -> str:
    return f"light-{number:06d}"


class LightPool:
    """A `covey.agent.worker.pool.PoolLike` that makes reports up, in this process."""

    async def call(self, job: Any, *, weight: float = 0) -> Any:
        """The answer to a job of an agent."""
        if isinstance(job, InspectData):
            return DataSummary(samples=SAMPLES, test_samples=SAMPLES)
        content = report_of(OrderMessage.from_bytes(job.order), job.client)
        write_atomically(job.report_out, content, durable=False)
        return Performed(digest=digest(content), size=len(content))


def report_of(order: OrderMessage, client: str) -> bytes:
    """The report that this agent makes up for an order."""
    work = order.work
    assert work is not None
    vectors: dict[str, Encoded] = {}
    numbers: Mapping[str, Any] = {}
    if work.phase == TRAIN:
        vectors["model"] = _model(work, client)
    if work.phase == EVALUATE:
        numbers = {"server": FIGURES}
    report = ReportContent(
        run=order.run,
        step=order.step,
        work=work.digest,
        client=client,
        examples=SAMPLES,
        steps=1,
        loss=1.0,
        numbers=dict(numbers),
        seconds=0.0,
        vectors=vectors,
    )
    return report.to_bytes()


def _model(work: Work, client: str) -> Encoded:
    """The model that an agent reports in a round, whichever attempt at the round it is."""
    rng = np.random.default_rng(zlib.crc32(f"{client}/{work.phase}/{work.round}".encode()))
    weights = rng.standard_normal(Layout.from_wire(work.layout).size, np.float32)
    encoded, _ = encode(weights, Codec(), base=None, base_digest=b"", error=None, rng=rng)
    return encoded


def ignore(notice: DeviceNotice) -> None:
    """Show nothing."""


async def live(
    number: int,
    url: str | Sequence[str],
    folder: Path,
    pool: LightPool,
    observer: DeviceObserver = ignore,
) -> None:
    """The life of one agent, at a broker or at the first of several that can be reached."""
    name = agent_name(number)
    identity = Identity(
        name, "default", FleetShare(scenario=folder, index=number), folder / name, durable=False
    )
    agent = Agent(identity, pool, rules=OwnersRules(UNLIMITED, NO_CODE), observer=observer)
    urls = [BrokerUrl.parse(one) for one in ([url] if isinstance(url, str) else url)]
    async with MqttLink(urls, client_id=agent.client_id, will=agent.will) as link:
        await agent.run(link)


async def host(url: str, folder: Path, first: int, count: int) -> None:
    """Start the agents a few at a time, and let them live until this process is ended."""
    pool = LightPool()
    numbers = iter(range(first, first + count))
    async with asyncio.TaskGroup() as group:
        while together := list(itertools.islice(numbers, STARTS_AT_ONCE)):
            for number in together:
                group.create_task(live(number, url, folder, pool))
            await asyncio.sleep(START_PAUSE_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    options = parser.parse_args()
    asyncio.run(host(options.url, options.folder, options.first, options.count))


if __name__ == "__main__":
    main()
