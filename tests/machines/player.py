"""Transcripts of a machine: text files of what happens to a program, and of what it does about it.

    # An agent works on an order.
    agent

    0 begin
    0 up
        subscribe coordinator/status agents/pi/order agents/pi/status
        publish agents/pi/status online
    1 order step=1

A line that begins with a time (s) is an event; what follows, indented, are the notices that people see and the effects of the
machine, in order, and `wakes` where the time changes at which it asks to be called. No broker, no worker, no event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from covey.agent.device import events as e
from covey.agent.device.identity import Identity
from covey.agent.device.performing import Done
from covey.agent.device.service import INSPECT, SEND, WORK, Agent, Begin, Known
from covey.coordinator.run.run import Run
from covey.coordinator.serve.publisher import NotTaken
from covey.coordinator.serve.service import Begin as Serve
from covey.coordinator.serve.service import Frozen, Service, Stop
from covey.shared.mqtt.link import Down, Incoming, Received, Up
from covey.shared.mqtt.program import (
    Cancel,
    Effect,
    End,
    Look,
    Machine,
    Publish,
    Show,
    Start,
    Subscribe,
    Unsubscribe,
)
from covey.shared.mqtt.subscriptions import TopicsRefused
from covey.shared.wire.documents import AgentStatus, Control, CoordinatorStatus
from covey.shared.wire.jobs import Failure, FleetShare, Performed
from covey.shared.wire.messages import OrderMessage, Part, digest
from covey.shared.wire.topics import AgentTopic, ClusterTopic, PlainTopic, Topics
from tests.agent import orders
from tests.coordinator.test_report_path import content_of, messages_of
from tests.kit.small_run import begun, judged, rules, setup

TOPICS = Topics("default")
BASE = "covey/default/"
REPORT = b"r" * 2500


def replayed(text: str, folder: Path) -> str:
    """The transcript with the effects that the machine has now. Raises ValueError for a line that cannot be read."""
    lines: list[str] = []
    player: Player | None = None
    for line in text.splitlines():
        if line.startswith(" "):
            continue
        lines.append(line)
        if not line or line.startswith("#"):
            continue
        if player is None:
            player = {"agent": AgentPlayer, "coordinator": CoordinatorPlayer}[line](folder)
            continue
        lines += [f"    {answer}" for answer in player.play(line)]
    return "\n".join(lines) + "\n"


class Player:
    """Feeds one machine."""

    machine: Machine

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[str] = []  # of the event that is played
        self.works: dict[str, Any] = {}  # that were started and have not ended
        self.published: dict[str, bytes] = {}  # the newest payload of each topic
        self._wake_at: float | None = None

    def play(self, line: str) -> Sequence[str]:
        time, event, *words = line.split()
        self.now = float(time)
        self.lines = []
        options = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        act: Callable[..., None] | None = getattr(self, f"on_{event}", None)
        if act is None:
            raise ValueError(f"no event is called {event}")
        act(*plain, **options)
        wake_at = self.machine.wake_at
        if wake_at != self._wake_at:
            self._wake_at = wake_at
            self.lines.append("wakes: never" if wake_at is None else f"wakes: {wake_at:g}")
        return self.lines

    def notice(self, notice: object) -> None:
        self.lines.append(f"show {type(notice).__name__}")

    def handle(self, *items: Any) -> None:
        for effect in self.machine.handle(items, self.now):
            self.lines += self._lines_of(effect)

    def read(self, incoming: Incoming) -> None:
        for found in self.machine.read(incoming, self.now):
            if isinstance(found, Effect):
                self.lines += [f"at once: {line}" for line in self._lines_of(found)]
            else:
                self.handle(found)

    def message(self, topic: str, payload: bytes, *, retained: bool = False) -> None:
        self.read(Received(topic, payload, retained))

    def on_tick(self) -> None:
        self.handle()

    def on_up(self) -> None:
        self.read(Up())

    def on_down(self) -> None:
        self.read(Down("lost"))

    def on_refused(self, *topics: str) -> None:
        self.handle(TopicsRefused(tuple(BASE + topic for topic in topics)))

    def _lines_of(self, effect: Effect) -> Iterator[str]:
        match effect:
            case Publish():
                for topic, payload in messages_in(effect):
                    self.published[topic] = payload
                    yield f"publish {topic.removeprefix(BASE)} {sense_of(topic, payload)}"
            case Subscribe(topics):
                yield f"subscribe {names(topics)}"
            case Unsubscribe(topics):
                yield f"unsubscribe {names(topics)}"
            case Look(topics, ends):
                yield f"{'look no longer' if ends else 'look'} at {names(topics)}"
            case Start(name, work):
                self.works[name] = work
                yield f"start {name}"
            case Cancel(name):
                self.works.pop(name, None)
                yield f"cancel {name}"
            case Show(notice):
                yield f"show {type(notice).__name__}"
            case End(result):
                yield f"end {result!r}"


class AgentPlayer(Player):
    """An agent `pi`, whose worker's answers are events."""

    machine: Agent

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self.machine = self._new()

    def _new(self) -> Agent:
        unused: Any = None
        identity = Identity(
            "pi", "default", FleetShare(scenario=Path()), self._folder / "pi", durable=False
        )
        return Agent(identity, unused, session="s", observer=self.notice)

    def on_begin(self) -> None:
        self.handle(Begin())

    def on_restart(self) -> None:
        """A kill, and the next life, whose session has the same name."""
        self.machine.outbox.close()
        self.works.clear()
        self.machine = self._new()
        self.handle(Begin())

    def on_coordinator(self, *words: str, **fields: Any) -> None:
        status = orders.status(task="task" in words, **fields)
        self.message(TOPICS.coordinator_status, status.to_bytes(), retained="retained" in words)

    def on_order(self, step: str, **fields: str) -> None:
        numbers: dict[str, Any] = {name: int(value) for name, value in fields.items()}
        message = orders.order(int(step), orders.ref(), **numbers)
        self.message(TOPICS.order("pi"), message.to_bytes())

    def on_rest(self, **fields: str) -> None:
        numbers: dict[str, Any] = {name: int(value) for name, value in fields.items()}
        message = orders.rest(**numbers)
        self.message(TOPICS.order("pi"), message.to_bytes())

    def on_model(self) -> None:
        content = orders.MODEL
        part = Part(
            digest=digest(content), index=0, count=1, size=len(content), about=1, data=content
        )
        self.message(f"{TOPICS.model('0')}/0", part.to_bytes())

    def on_inspected(self) -> None:
        """The data are compared with the task, and the broker has taken the status with their numbers."""
        self.works.pop(INSPECT)
        self.handle(e.Inspected(orders.TASK.digest, samples=80, test_samples=20))
        self.handle(Known(taken=True))

    def on_worked(self) -> None:
        """The worker has written a report and a memory."""
        (order,) = self.works.pop(WORK).args
        report, memory = self.machine.outbox.places(order.step)
        report.write_bytes(REPORT)
        memory.write_bytes(b"memory")
        answer = Performed(digest=digest(REPORT), size=len(REPORT), memory_digest=b"seal")
        self.handle(Done(order, answer))

    def on_failed(self) -> None:
        (order,) = self.works.pop(WORK).args
        self.handle(Done(order, Failure(why="out of memory")))

    def on_wrote(self) -> None:
        """The report that names a failure is on the disk."""
        self.handle(asyncio.run(self.works.pop(WORK)()))

    def on_looked(self) -> None:
        """The report was read again before it is sent."""
        self.handle(asyncio.run(self.works.pop(SEND)()))

    def on_sent(self, *words: str) -> None:
        """The broker has taken the parts of the report; "no": not all of them."""
        publish = self.works.pop(SEND)
        for topic, payload in messages_in(publish):
            self.lines.append(f"sent {topic.removeprefix(BASE)} {sense_of(topic, payload)}")
        self.handle(publish.then("no" not in words))

    def on_stop(self) -> None:
        self.machine.stop()
        self.handle()


class CoordinatorPlayer(Player):
    """The coordinator of a run of two agents over one broker."""

    machine: Service

    def __init__(self, folder: Path) -> None:
        super().__init__()
        rounds = {"count": 1, "participation": 1.0, "start_agents": 2}
        self._scene = judged("fedavg", rounds=rounds)
        self._folder = folder / "run"
        run = begun(self._folder, self._scene)
        self.machine = self._service(run)
        self._serials = 0

    def _service(self, run: Run) -> Service:
        unused: Any = None
        return Service(run, unused, session="0s")

    def on_begin(self) -> None:
        self.handle(Serve(()))

    def on_restart(self) -> None:
        """A kill, and the run is taken up from its folder."""
        run, first = Run.resume(
            self._folder, self._scene, setup(self._scene), rules=rules(self._scene), now=self.now
        )
        self.machine = self._service(run)
        self.handle(Serve(first))

    def on_status(self, agent: str, *words: str) -> None:
        self._serials += 1
        own = CoordinatorStatus.from_bytes(self.published[TOPICS.coordinator_status])
        status = AgentStatus(
            agent=agent,
            session="s",
            serial=self._serials,
            online="offline" not in words,
            epoch=own.epoch,
            task=self._scene.task.digest,
            samples=10,
            test_samples=10,
        )
        self.message(TOPICS.status(agent), status.to_bytes())

    def on_report(self, agent: str) -> None:
        order = OrderMessage.from_bytes(self.published[TOPICS.order(agent)])
        (message,) = messages_of(self.machine, agent, content_of(agent, order))
        self.read(message)

    def on_control(self, command: Any) -> None:
        self.message(TOPICS.control, Control(command=command).to_bytes())

    def on_other(self, session: str, **fields: Any) -> None:
        """Another coordinator publishes its status."""
        status = CoordinatorStatus(online=True, epoch=f"{session}.1", name="other", **fields)
        self.message(TOPICS.coordinator_status, status.to_bytes())

    def on_cleared(self) -> None:
        self.message(TOPICS.coordinator_status, b"")

    def on_untaken(self, agent: str) -> None:
        """The broker has not taken the newest order of an agent."""
        self.handle(NotTaken(agent))

    def on_frozen(self, seconds: str) -> None:
        self.handle(Frozen(float(seconds)))

    def on_stop(self) -> None:
        self.handle(Stop())


def messages_in(effect: Publish) -> list[tuple[str, bytes]]:
    """What an effect publishes."""
    messages = effect.messages
    if not callable(messages):
        return list(messages)

    async def collected() -> list[tuple[str, bytes]]:
        return [one async for one in messages()]

    return asyncio.run(collected())


def names(topics: Sequence[str]) -> str:
    return " ".join(topic.removeprefix(BASE) for topic in topics)


def sense_of(topic: str, payload: bytes) -> str:
    """What a message holds, in short."""
    if not payload:
        return "cleared"
    match TOPICS.parse(topic):
        case AgentTopic(_, "status"):
            of_agent = AgentStatus.from_bytes(payload)
            words = ["online" if of_agent.online else "offline"]
            return " ".join([*words, *(["busy"] if of_agent.busy else [])])
        case AgentTopic(_, "order"):
            order = OrderMessage.from_bytes(payload)
            return f"step={order.step} accepted={order.accepted} closed={order.closed}"
        case AgentTopic() | ClusterTopic():
            part = Part.from_bytes(payload)
            return f"part={part.index + 1}/{part.count} about={part.about}"
        case PlainTopic("coordinator/status"):
            status = CoordinatorStatus.from_bytes(payload)
            return f"{status.state} round={status.round} step={status.step} epoch={status.epoch}"
    return "..."
