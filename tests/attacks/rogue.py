"""Somebody who may publish as coordinator and means harm: what it sends, and what it hears back."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from covey.broker.programs.options import BrokerOptions
from covey.shared.errors import DecodeError
from covey.shared.mqtt.link import Received, Up
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.wire.documents import AgentStatus, CoordinatorStatus
from covey.shared.wire.messages import OrderMessage, Part, ReportContent, Work
from covey.shared.wire.topics import Topics
from tests.brokers import embedded, hosted
from tests.processes import Program, free_port, program, until, words

TOPICS = Topics("default")
RUN = "rogue-run"


def open_broker() -> contextlib.AbstractContextManager[str]:
    """An open embedded broker in a thread, for as long as the block lasts; gives its address."""
    return hosted(lambda: embedded(BrokerOptions()))


@contextlib.contextmanager
def broker_program(folder: Path) -> Iterator[str]:
    """The same as a program, whose output is in the folder."""
    port = free_port()
    command = ["covey.broker.cli", "up", "--embedded", "--port", str(port)]
    log = folder / "broker.log"
    log.unlink(missing_ok=True)  # the "listens" of an earlier broker would speak for this one
    with program(*command, log=log) as broker:
        until(lambda: "listens" in broker.output, of=broker)
        yield f"mqtt://127.0.0.1:{port}"


@contextlib.contextmanager
def victim(
    folder: Path, url: str, *more: str, name: str = "victim", learner: str = "numpy"
) -> Iterator[Program]:
    """`agent start` with a small table of its own; numpy starts faster than torch."""
    data = folder / f"{name}.npz"
    rows = np.random.default_rng(1).normal(size=(20, 4)).astype(np.float32)
    np.savez(data, x=rows, y=np.arange(20) % 2)
    state = str(folder / f"state-{name}")
    command = words(
        "agent start",
        "--data",
        data,
        "--broker",
        url,
        "--id",
        name,
        "--state",
        state,
        "--learner",
        learner,
    )
    with program(*command, *more, log=folder / f"{name}.log") as agent:
        until(lambda: "connected" in agent.output, of=agent)
        yield agent


def task(**changes: Any) -> dict[str, Any]:
    """A task that fits the victim's data, as a coordinator spells it."""
    model = {"name": "linear", "options": {}}
    whole = {"features": [4], "classes": 2, "model": model, "scale": 1.0, "standardise": "none"}
    return {**whole, **changes}


def status(of_task: Mapping[str, Any] | None) -> CoordinatorStatus:
    """The status of a running coordinator, with any digest of a task."""
    wanted = dict(of_task) if of_task is not None else None
    return CoordinatorStatus(
        online=True, epoch="rogue.1", run=RUN, name="rogue", task=wanted, task_digest="rogue"
    )


def order(step: int = 1, **changes: Any) -> OrderMessage:
    """An order to train a linear model on the victim's data, which needs no model from the broker."""
    layout = {"tensors": [["fc.weight", [2, 4]], ["fc.bias", [2]]], "trainable": 2}
    fields: dict[str, Any] = {
        "phase": "train",
        "round": 0,
        "seed": 0,
        "strategy": {"name": "fedavg"},
        "training": {},
        "task": task(),
        "layout": layout,
        "scaling": None,
        "models": [],
        "numbers": {},
        "cluster": None,
        "sizes": {},
        "codec": {"name": "float32"},
        "evaluation": {},
        "part_bytes": 512 * 1024,
    }
    return OrderMessage(
        run=RUN, step=step, accepted=0, closed=0, work=Work(**{**fields, **changes})
    )


class Heard:
    """What an agent published: its statuses, and its reports put together from their first parts."""

    def __init__(self) -> None:
        self.statuses: list[AgentStatus] = []
        self.reports: list[ReportContent] = []

    def take(self, message: Received) -> None:
        if not message.payload:
            return
        if message.topic.endswith("/status"):
            self.statuses.append(AgentStatus.from_bytes(message.payload))
            return
        part = Part.from_bytes(message.payload)
        if part.count == 1:
            self.reports.append(ReportContent.from_bytes(part.data, verified=True))

    @property
    def failures(self) -> list[str]:
        """Why orders were not carried out."""
        return [report.failure for report in self.reports if report.failure is not None]

    @property
    def problems(self) -> list[str]:
        """Why the agent stays out."""
        return [status.problem for status in self.statuses if status.problem is not None]


def attack(
    url: str,
    messages: Mapping[str, bytes],
    *,
    name: str = "victim",
    enough: Callable[[Heard], Any] = lambda heard: False,
    within_s: float = 60.0,
) -> Heard:
    """Publish retained messages by topic and listen to the agent `name` until it is enough, or `within_s` have passed."""

    async def publish_and_listen() -> Heard:
        heard, end = Heard(), time.monotonic() + within_s
        async with MqttLink(url, client_id="rogue") as link:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(end - time.monotonic()):
                    async for incoming in link.incoming():
                        if isinstance(incoming, Up):
                            await link.subscribe([TOPICS.status(name), TOPICS.report(name)])
                            for topic, payload in messages.items():
                                await link.publish(topic, payload, retain=True)
                        if isinstance(incoming, Received):
                            with contextlib.suppress(DecodeError):
                                heard.take(incoming)
                        if enough(heard):
                            break
        return heard

    return asyncio.run(publish_and_listen())
