"""The agents of a run, from retained statuses, roll calls and last wills.

A retained "online" proves nothing by itself: the broker may have been restored, and the agent may be long gone.
It counts only if it answers the present roll call. A live status always counts.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from covey.coordinator.engine.events import Joined, Left
from covey.coordinator.engine.members import Members, RosterEntry, Trouble
from covey.shared.candidate_names import DELIVERED
from covey.shared.numerics.measures import shown_measure
from covey.shared.sentences import some
from covey.shared.strategies.base import ClientId
from covey.shared.wire.documents import EXPELLED, AgentStatus

PAGE_AGENTS = 500  # rows of a page: some 150 kB
ROW_BYTES = 400  # of an agent


def page_agents(part_bytes: int) -> int:
    """How many agents a page holds so that it is not larger than a part of a model."""
    return max(min(PAGE_AGENTS, part_bytes // ROW_BYTES), 1)


class RosterPages:
    """The pages of a roster.

    Args:
        page_agents: how many agents a page holds.
    """

    def __init__(self, page_agents: int = PAGE_AGENTS) -> None:
        self.page_agents = page_agents
        self._members: list[set[ClientId]] = [set()]  # by page; the first one is always there
        self._page_of: dict[ClientId, int] = {}
        self._roomy: list[int] = [0]  # a heap of the pages that have room
        self._changed: set[ClientId] = set()  # since `take_changes`
        self._stale: dict[int, None] = {}  # pages to publish, in the order of their first change

    def __repr__(self) -> str:
        return f"<RosterPages: {len(self._page_of)} agents on {self.count} pages>"

    @property
    def count(self) -> int:
        """The number of pages, at least 1."""
        return len(self._members)

    @property
    def is_stale(self) -> bool:
        """Whether something has changed and was not published yet."""
        if self._stale:
            return True
        return len(self._changed) > 0

    def touch(self, agent: ClientId) -> None:
        """The row of this agent has changed, or is new."""
        page = self._page_of.get(agent)
        if page is None:
            page = self._place(agent)
        self._changed.add(agent)
        self._stale[page] = None

    def touch_all(self, agents: Iterable[ClientId]) -> None:
        """The rows of these agents have changed. Agents that have no row are left out."""
        for agent in agents:
            if agent in self._page_of:
                self.touch(agent)

    def touch_first(self) -> None:
        """Something has changed that is no agent's: it is on the first page."""
        self._stale[0] = None

    def drop(self, agent: ClientId) -> None:
        """This agent has no row any more. Its place is free."""
        page = self._page_of.pop(agent, None)
        if page is None:
            return
        members = self._members[page]
        if len(members) == self.page_agents:
            heapq.heappush(self._roomy, page)
        members.remove(agent)
        self._changed.add(agent)
        self._stale[page] = None

    def take_changes(self) -> list[ClientId]:
        """The agents whose rows have changed or gone since the last call, in ascending order."""
        changed = sorted(self._changed)
        self._changed.clear()
        return changed

    def take_page(self) -> tuple[int, Sequence[ClientId]] | None:
        """The page that waits longest to be published, and its agents in ascending order; None if none waits."""
        if not self._stale:
            return None
        page = next(iter(self._stale))
        del self._stale[page]
        return page, sorted(self._members[page])

    def _place(self, agent: ClientId) -> int:
        """Find room for an agent. A new page changes the first one, which has the number of pages."""
        if not self._roomy:
            new_page = len(self._members)
            self._roomy.append(new_page)
            self._members.append(set())
            self.touch_first()
        page = self._roomy[0]
        self._page_of[agent] = page
        members = self._members[page]
        members.add(agent)
        if len(members) == self.page_agents:
            heapq.heappop(self._roomy)
        return page


NO_LABELS: list[str] = []  # one for all agents: it never changes
NO_COUNTS: dict[str, int] = {}
NO_TROUBLE: Mapping[ClientId, Trouble] = {}
MAX_UNKNOWN = 1000  # kept of those that never fitted
MAX_PROBLEM_CHARS = 500  # characters of it that are kept
MAX_NAMED = 3  # excluded agents in a sentence


class Roster:
    """Statuses in, `Joined` and `Left` out.

    Args:
        task_digest: of the run's task.
        page_agents: how many agents a page of the published roster holds.
        members: the agents of the run, and of those that do not fit it; None: none yet.
    """

    def __init__(
        self, task_digest: str, page_agents: int = PAGE_AGENTS, members: Members | None = None
    ) -> None:
        self.task_digest = task_digest
        self.members = members or Members()
        self._unknown: OrderedDict[ClientId, None] = (
            OrderedDict()
        )  # those that never fitted, least recently seen first
        self.before: dict[ClientId, float | None] = {}  # when each was heard last, of a resumed run
        self.pages = RosterPages(page_agents)  # what has changed since it was published
        self.forgotten = 0  # agents that never fitted and made room for others
        self.refusals: Counter[str] = Counter()  # all refused messages, by reason

    def entry(self, agent: ClientId) -> RosterEntry | None:
        """What the statuses of an agent have shown; None before there was one."""
        member = self.members.get(agent)
        return None if member is None else member.entry

    @property
    def entries(self) -> dict[ClientId, RosterEntry]:
        """The same of all agents that have sent one."""
        return self.members.by_agent(lambda one: one.entry)

    def seen(
        self, status: AgentStatus, *, retained: bool, epoch: str, now: float
    ) -> list[Joined | Left]:
        """What a status changes. The last will of an older session changes nothing."""
        entry = self.entry(status.agent)
        if (
            entry is not None
            and not status.online
            and status.session != entry.status.session
            and entry.status.online
        ):
            return []
        if retained and status.online and status.epoch != epoch:
            return []
        if entry is not None and status.online and status.is_older(entry.status):
            return []
        labels = len(status.labels)
        was_will = not status.serial
        status = _slim(status)
        if entry is None:
            entry = RosterEntry(status, self.before.get(status.agent), labels)
            self.members.of(status.agent).entry = entry
            self.members.listed.add(status.agent)
        if not status.online:  # a last will has nothing else; the broker's `revoke` adds a reason
            gone = {
                "online": False,
                "busy": False,
                "problem": status.problem or entry.status.problem,
                "clock": status.clock or entry.status.clock,
            }
            status = entry.status.model_copy(update=gone)
            labels = entry.labels
        entry.lost = not status.online and was_will
        entry.status = status
        if status.online:  # a last will is the broker's word, and may come late
            entry.seen = now
            entry.behind = 0.0 if retained or status.clock is None else now - status.clock
        entry.labels = labels
        fits = status.online and status.problem is None and status.task == self.task_digest
        was_here = entry.here
        entry.here = fits
        self.pages.touch(status.agent)
        self._remember(status.agent, entry)
        expelled = self.members.expelled
        if self.is_expelled(status.agent):
            is_new = status.agent not in expelled and entry.member
            expelled.add(status.agent)
            return [Left(status.agent, at_once=True)] if is_new else []
        expelled.discard(status.agent)
        if fits:
            return [Joined(status.agent)]
        return [Left(status.agent)] if was_here else []

    def unreachable(self, agents: Iterable[ClientId]) -> list[Left]:
        """The broker of these agents is lost: they count as offline until they are seen again."""
        left: list[Left] = []
        for agent in agents:
            entry = self.entry(agent)
            if entry is None:
                continue
            entry.lost = entry.status.online
            entry.status = entry.status.model_copy(update={"online": False, "busy": False})
            self.pages.touch(agent)
            if entry.here:
                entry.here = False
                left.append(Left(agent))
        return left

    def is_expelled(self, agent: ClientId) -> bool:
        """Whether its credentials were revoked. Until it comes back under the same name, nothing is retained for it."""
        entry = self.entry(agent)
        if entry is None or entry.status.online:
            return False
        return entry.status.problem == EXPELLED

    def exclusions(self) -> str:
        """Which agents are online and do not count, because their data does not fit the task; empty if all count."""
        found: list[str] = []
        for agent, entry in self.entries.items():
            if entry.status.online and entry.status.problem:
                found.append(f"{agent} ({entry.status.problem})")
        if not found:
            return ""
        verb = "is" if len(found) == 1 else "are"
        return f"{some(found, MAX_NAMED)} {verb} excluded: put that right there, or start with fewer agents (rounds.start_agents)"

    def departures(self) -> str:
        """Who took part and when each was heard last, once all of them are gone; empty before."""
        gone = {agent: entry for agent, entry in self.entries.items() if entry.member}
        if not gone or any(entry.status.online for entry in self.entries.values()):
            return ""
        heard = [
            f"{agent} at {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(entry.seen))}"
            for agent, entry in sorted(gone.items())
            if entry.seen is not None
        ]
        return f"all agents have left; last heard: {some(heard, MAX_NAMED)}"

    def trouble(
        self, resting: Mapping[ClientId, Trouble]
    ) -> tuple[dict[ClientId, AgentStatus], dict[ClientId, dict[str, Any]]]:
        """The newest status of each agent, as a last will if it was lost, and of each what its reports had to suffer."""
        statuses: dict[ClientId, AgentStatus] = {}
        rows: dict[ClientId, dict[str, Any]] = {}
        for agent, entry in self.entries.items():
            status = entry.status
            quarantine = self.members[agent].quarantine
            statuses[agent] = status.model_copy(update={"serial": 0}) if entry.lost else status
            row = rows[agent] = {
                "seen": entry.seen,
                "failures": entry.failures,
                "behind": entry.behind,
            }
            if entry.failures:
                row["failed"] = entry.failure
            if entry.refusals:
                row["refusals"] = dict(entry.refusals)
            if quarantine is not None:
                row["quarantined"] = quarantine
            if agent in resting:
                row[resting[agent].kind] = resting[agent].words
        return statuses, rows

    def forget(self, agent: ClientId) -> None:
        """Drop an agent: its next status makes it a newcomer."""
        self.members.forget(agent)
        self.before.pop(agent, None)
        self._unknown.pop(agent, None)
        self.pages.drop(agent)

    def _remember(self, agent: ClientId, entry: RosterEntry) -> None:
        """Members stay. Of the others, whose names cost nothing to invent, only the most recently seen stay."""
        entry.member = entry.member or entry.here or agent in self.members.known
        self._unknown.pop(agent, None)
        if entry.member:
            return
        self._unknown[agent] = None
        if len(self._unknown) > MAX_UNKNOWN:
            oldest, _ = self._unknown.popitem(last=False)
            self.members.forget(oldest)
            self.pages.drop(oldest)
            self.forgotten += 1

    def refuse(self, reason: str, agent: ClientId | None = None) -> None:
        """Count a message that was dropped, also against its sender where it is known."""
        self.refusals[reason] += 1
        self.pages.touch_first()
        entry = None if agent is None else self.entry(agent)
        if agent is not None and entry is not None:
            entry.refusals = entry.refusals or Counter()
            entry.refusals[reason] += 1
            self.pages.touch(agent)

    def failed(self, agent: ClientId, why: str) -> None:
        """Keep why an agent did not do the work of an order: its device may refuse it."""
        entry = self.entry(agent)
        if entry is not None:
            entry.failure = why
            entry.failures += 1
            self.pages.touch(agent)

    def reported(self, agent: ClientId, now: float, *, worked: bool) -> None:
        """A whole report came, with work in it or with the reason why there is none."""
        entry = self.entry(agent)
        if entry is None:
            return
        entry.seen = now
        if worked:
            entry.failures = 0
        self.pages.touch(agent)

    def rows(
        self,
        clusters: Mapping[ClientId, int],
        resting: Mapping[ClientId, Trouble] = NO_TROUBLE,
        *,
        over: bool = False,
        agents: Sequence[ClientId] | None = None,
    ) -> dict[ClientId, dict[str, Any]]:
        """The roster for `coordinator status`, by agent.

        Args:
            clusters: the cluster of each agent that has one.
            resting: why some agents are not invited for some rounds.
            over: the run is over. No agent works for it, whatever the newest status of an agent was.
            agents: of whom to make rows, in this order; one that is not known gets an empty row. None: of all.
        """
        if agents is None:
            agents = sorted(self.members.listed)
        rows: dict[ClientId, dict[str, Any]] = {}
        for agent in agents:
            member = self.members.get(agent)
            if member is None or member.entry is None:
                rows[agent] = {}
                continue
            entry = member.entry
            status = entry.status
            row: dict[str, Any] = {
                "online": status.online,
                "left": not status.online and not entry.lost,
                "takes_part": entry.here and member.quarantine is None,
                "cluster": clusters.get(agent),
                "figure": _figure(member.evaluation),
                "seen": None if entry.seen is None else round(entry.seen, 3),
                "samples": status.samples,
                "test_samples": status.test_samples,
                "labels": entry.labels,
                "busy": status.busy and not over,
                "problem": status.problem,
                "quarantined": member.quarantine,
                "failed": entry.failure,
                "failures": entry.failures,
                "version": status.version,
                "refusals": dict(entry.refusals or {}),
            }
            if member.takes is not None:
                row |= {"takes": member.takes, "rounds": member.rounds, "last": member.last}
            if agent in resting:
                row[resting[agent].kind] = resting[agent].words
            if status.model is not None:  # that the device uses itself
                row["model"] = status.model.model_dump(mode="json")
            rows[agent] = row
        return rows


def _figure(modes: Mapping[str, Any] | None) -> float | None:
    """The accuracy on the agent's test data, or the RMSE, of what it uses; until it has decided this, of the served model."""
    if modes is None:
        return None
    figures = modes.get(DELIVERED) or modes.get("server")
    if not figures:
        return None
    measure = shown_measure(figures)
    if measure is None:  # no test data, or a model that diverged
        return None
    value: float = figures[measure.name]
    return round(value, 6)


def _slim(status: AgentStatus) -> AgentStatus:
    """What the roster keeps of a status: its sender decides how long the rest is."""
    problem = status.problem[:MAX_PROBLEM_CHARS] if status.problem is not None else None
    model = status.model
    if model is not None:
        model = model.model_copy(update={"note": model.note[:MAX_PROBLEM_CHARS]})
    kept = dict(status)
    kept |= {"labels": NO_LABELS, "dropped": NO_COUNTS, "problem": problem, "model": model}
    # checked already; the names of the fields that were given would take more memory than their values
    return AgentStatus.model_construct(set(), **kept)
