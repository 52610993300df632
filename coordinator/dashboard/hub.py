"""Joins what a run's folder and its broker show, and wakes all that show it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from covey.coordinator.dashboard.broker_watcher import BrokerWatcher
from covey.coordinator.dashboard.folder_reader import FolderReader
from covey.coordinator.view.state import (
    COLUMNS,
    Cells,
    DashboardState,
    RunPlan,
    Sources,
    agent_cells,
    dashboard_state,
)

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
