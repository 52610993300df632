"""Joins what a run's folder and its broker show, and wakes all that show it.

Follows a run at its broker, in a thread of its own, and publishes the operator's commands there.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from covey.coordinator.odd import read_odd
from covey.coordinator.view.lines import Line, PhaseLine, reduced
from covey.extras.doctor.examine import of_retained
from covey.extras.runs.devices import device_of, is_between_runs, rows_now, status_in
from covey.extras.runs.folder_reader import FolderReader
from covey.extras.runs.state import (
    COLUMNS,
    Cells,
    DashboardState,
    RunPlan,
    Sources,
    agent_cells,
    dashboard_state,
)
from covey.shared.errors import DecodeError, UserError
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.mqtt.link import Down, Link, Received, Up
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.storage import json_text
from covey.shared.wire.documents import AgentStatus, Control, CoordinatorStatus, RosterMessage
from covey.shared.wire.roster_view import RosterView
from covey.shared.wire.topics import Topics

PUBLISH_S = 5.0  # for the broker to acknowledge a command


class BrokerWatcher:
    """The newest retained documents of one federation, and the lines of the record since it was opened.

    Use it as a context. `on_change` is called in the watcher's thread.
    """

    def __init__(self, url: BrokerUrl, federation: str, on_change: Callable[[], None]) -> None:
        self.url = url
        self.topics = Topics(federation)
        self.connected = False
        self.problem = f"connecting to {url}"  # empty while connected
        self.lines: list[Line] = []
        self.roster: RosterMessage | None = None
        self._pages = RosterView()  # of which `roster` consists
        self._subscribed: set[str] = set()  # further topics of the roster, in this connection
        self.status: CoordinatorStatus | None = None
        self._statuses: dict[str, AgentStatus] = {}  # of devices, while no coordinator is at work
        self._hears_devices = False
        self.updated = 0.0  # when a message came last, in seconds since 1970
        self._on_change = on_change
        self._run = ""  # that the lines belong to
        self._newest_step = 0  # of the lines; the retained line comes again after each reconnection
        self._loop = asyncio.new_event_loop()
        self._link: Link | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._follow, name="broker watcher", daemon=True)

    def __repr__(self) -> str:
        return f"BrokerWatcher({self.url}, connected={self.connected})"

    @property
    def sources(self) -> Sources:
        """All that was read so far. While no coordinator is at work, the devices' own word is the roster."""
        is_left = self._is_left and bool(self._statuses)
        roster = self.roster
        odd = [] if roster is None else read_odd(roster.odd)
        if is_left:
            known = roster or RosterMessage()
            devices = {agent: device_of(one).to_json() for agent, one in self._statuses.items()}
            odd = of_retained(time.time(), self._statuses, roster, self.status, between_runs=True)
            rows = rows_now(known.agents, devices, between_runs=True)
            roster = known.model_copy(update={"agents": rows})
        return Sources(
            RunPlan(),
            self.lines,
            self.status,
            roster,
            connected=self.connected,
            problem=self.problem,
            updated=self.updated,
            odd=odd,
            is_left=is_left,
        )

    @property
    def _is_left(self) -> bool:
        """Whether no coordinator is at work."""
        return is_between_runs(None if self.status is None else self.status.model_dump())

    def __enter__(self) -> BrokerWatcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._cancel)
        self._thread.join(PUBLISH_S)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def publish(self, control: Control) -> bool:
        """Publish a command; False if the broker did not take it in time."""
        sent = asyncio.run_coroutine_threadsafe(self._publish(control), self._loop)
        try:
            return sent.result(PUBLISH_S)
        except TimeoutError:
            sent.cancel()
            return False

    async def _publish(self, control: Control) -> bool:
        if self._link is None:
            return False
        return await self._link.publish(self.topics.control, control.to_bytes())

    def _follow(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(self._read())
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        except UserError as error:  # the address cannot be used
            self.problem = str(error)
            self._on_change()
        finally:
            self._loop.close()

    async def _read(self) -> None:
        client_id = f"covey-dashboard-{uuid.uuid4().hex[:8]}"
        async with MqttLink(self.url, client_id=client_id) as link:
            self._link = link
            async for incoming in link.incoming():
                match incoming:
                    case Up():
                        self.connected = True
                        self.problem = ""
                        topics = self.topics
                        self._subscribed = set()
                        self._hears_devices = False
                        await link.subscribe(
                            [topics.coordinator_status, topics.roster, topics.metrics]
                        )
                    case Down(why=why):
                        self.connected = False
                        self.problem = f"{self.url}: {why}; trying again"
                    case Received():
                        self.take(incoming)
                        await self._subscribe_to_pages(link)
                if self.connected and self._hears_devices is not self._is_left:
                    await self._listen_to_devices(link)
                self._on_change()

    async def _listen_to_devices(self, link: Link) -> None:
        """A coordinator at work knows more than the devices' statuses show, and those of a large fleet are many."""
        self._hears_devices = self._is_left
        if self._hears_devices:
            await link.subscribe([self.topics.every_status])
        else:
            await link.unsubscribe([self.topics.every_status])
            self._statuses.clear()

    async def _subscribe_to_pages(self, link: Link) -> None:
        """The roster of a large fleet has more than one page."""
        topics = self._pages.further_topics(self.topics)
        new = [topic for topic in topics if topic not in self._subscribed]
        if new:
            self._subscribed.update(new)
            await link.subscribe(new)

    def take(self, message: Received) -> None:
        """Keep what a message holds; one that cannot be read changes nothing."""
        topics = self.topics
        device = status_in(message, topics)
        if device is not None:
            self._statuses[device.agent] = device
            self.updated = time.time()
            return
        try:
            match message.topic:
                case topics.coordinator_status:
                    status = CoordinatorStatus.from_bytes(message.payload)
                    self.status = _with_names(status, self.status)
                case topics.metrics:
                    self._add(message.payload)
                case topic if self._pages.take(topics, topic, message.payload):
                    self.roster = self._pages.message
                    if self.roster is not None:
                        self._begin(self.roster.run)
        except (DecodeError, ValueError):
            return
        self.updated = time.time()

    def _begin(self, run: str) -> None:
        """Lines of an earlier run are dropped."""
        if self._run and run != self._run:
            self.lines = []
            self._newest_step = 0
        self._run = run

    def _add(self, payload: bytes) -> None:
        row = json_text.loads(payload)
        line = reduced(row) if isinstance(row, dict) else None
        if isinstance(line, PhaseLine) and line.step > self._newest_step:
            self._newest_step = line.step
            self.lines = [*self.lines, line]


def _with_names(status: CoordinatorStatus, before: CoordinatorStatus | None) -> CoordinatorStatus:
    """A last will holds the rounds as they were when the coordinator connected, if any: the newer ones are known."""
    if status.online or before is None or status.run not in ("", before.run):
        return status
    return before.model_copy(update={"online": False, "phase": ""})


POLL_S = 0.2  # between two looks at the folder

Json = dict[str, Any]


@dataclass(frozen=True)
class Update:
    """What a page does not know yet."""

    version: int  # the page knows everything up to this version now
    state: DashboardState
    agents: Json | None  # None if no agent has changed


class LiveState:
    """The present state of the run, and since when each agent has been as it is. Safe for several threads."""

    def __init__(self, reader: FolderReader | None, watcher: BrokerWatcher | None = None) -> None:
        self.reader = reader
        self.watcher = watcher
        self.sources = Sources(RunPlan())  # that the present state was made from
        self.version = 0  # grows with each change; 0: nothing was read yet
        self._state = dashboard_state(self.sources)
        self._agents: dict[str, Cells] = {}
        self._since: dict[str, int] = {}  # the version in which an agent changed last
        self._gone: dict[str, int] = {}  # the version in which an agent disappeared
        self._news = threading.Condition()
        self._dirty = threading.Event()  # the watcher has read something
        self._closed = False
        self._thread = threading.Thread(target=self._follow, name="dashboard", daemon=True)

    def __repr__(self) -> str:
        return f"<Hub: version {self.version}, {len(self._agents)} agents>"

    def __enter__(self) -> LiveState:
        if self.reader is not None:
            self.reader.poll()
        self.refresh()  # a page never gets an empty state
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._dirty.set()
        with self._news:
            self._news.notify_all()
        self._thread.join(2.0)

    @property
    def closed(self) -> bool:
        """Whether the dashboard has ended."""
        return self._closed

    def wake(self) -> None:
        """The watcher has news."""
        self._dirty.set()

    def _follow(self) -> None:
        while not self._closed:
            was_woken = self._dirty.wait(POLL_S if self.reader is not None else None)
            self._dirty.clear()
            has_news = self.reader.poll() if self.reader is not None else False
            if has_news or was_woken:
                self.refresh()

    def refresh(self) -> None:
        """Make the state from what was read; pages learn of it if it has changed."""
        if self.reader is not None:
            self.reader.read_agents()
        sources = joined(self.reader, self.watcher)
        state = dashboard_state(sources)
        agents = agent_cells(sources.roster)
        with self._news:
            if self.version and state == self._state and agents == self._agents:
                return
            self.version += 1
            self.sources = sources
            self._state = state
            self._note_agents(agents)
            self._news.notify_all()

    def _note_agents(self, agents: Mapping[str, Cells]) -> None:
        for agent in self._agents:
            if agent not in agents:
                self._since.pop(agent, None)
                self._gone[agent] = self.version
        for agent, cells in agents.items():
            if self._agents.get(agent) != cells:
                self._since[agent] = self.version
                self._gone.pop(agent, None)
        self._agents = dict(agents)

    def update_after(self, version: int, timeout_s: float) -> Update | None:
        """The news since a version (-1: everything); None if nothing is within the time."""
        with self._news:
            is_new = self._news.wait_for(lambda: self.version > version or self._closed, timeout_s)
            if not is_new or self._closed:
                return None
            return Update(self.version, self._state, self._agents_after(version))

    def _agents_after(self, version: int) -> Json | None:
        rows: dict[str, Cells] = {}
        for agent, since in self._since.items():
            if since > version:
                rows[agent] = self._agents[agent]
        is_whole = version < 0
        gone: list[str] = []
        if not is_whole:
            gone = [agent for agent, since in self._gone.items() if since > version]
        if not rows and not gone and not is_whole:
            return None
        return {"columns": COLUMNS, "rows": rows, "gone": gone, "whole": is_whole}


def joined(reader: FolderReader | None, watcher: BrokerWatcher | None) -> Sources:
    """Everything known: the record from the folder where there is one, the rest from the broker while it is connected."""
    if watcher is None:
        return Sources(RunPlan()) if reader is None else reader.sources
    seen = watcher.sources
    if reader is None:
        return seen
    found = replace(reader.sources, connected=seen.connected)
    if is_other_run(reader, watcher):
        return replace(found, problem="the broker shows another run than this folder")
    if seen.status is None or not seen.connected:
        return replace(found, problem=seen.problem)
    return replace(
        found,
        status=seen.status,
        roster=seen.roster or found.roster,
        odd=seen.odd or found.odd,
        is_left=seen.is_left,
        updated=max(found.updated, seen.updated),
    )


def is_other_run(reader: FolderReader | None, watcher: BrokerWatcher | None) -> bool:
    """Whether the folder and the broker show different runs."""
    if reader is None or watcher is None:
        return False
    if reader.roster is None or watcher.roster is None:
        return False
    return reader.roster.run != watcher.roster.run
