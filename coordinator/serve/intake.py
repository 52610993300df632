"""What agents send: statuses and parts of reports, taken in within the limits of each agent.

A status beyond an agent's limit waits, and the newest one replaces those before it. Statuses of unknown agents
are dropped in a flood, and brokers drop what they queue for a coordinator that is slower than a large fleet: while statuses
were dropped, or agents are missing, `roll_at` gives the time at which to call the roll again. Time is an argument, in seconds.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

from covey.coordinator.run.run import Run
from covey.coordinator.serve.placement import Placement
from covey.coordinator.serve.rate import Rates
from covey.coordinator.serve.roster import Roster
from covey.shared.errors import DecodeError
from covey.shared.programs.timers import earliest
from covey.shared.strategies.base import ClientId
from covey.shared.wire.documents import ASKED, AgentStatus
from covey.shared.wire.format import FORMAT, speaks_other
from covey.shared.wire.messages import Part
from covey.shared.wire.parts import Assembler, MemorySink, Sink

MAX_AGENTS = 100_000
MAX_REPORTS = 2  # whole reports of one agent that wait to be accepted
# first and longest wait before agents are asked again that are missing, or whose statuses were dropped
ROLL_AGAIN_S = (5.0, 60.0)
FRAME_BYTES = 4096  # of a message with a part, at most, without the part's data
MOST_HELD_BYTES = 64 << 20  # of reports that wait in memory, all agents together
MIN_AGE_S = 60.0  # a report that is still arriving is kept at least this long


@dataclass(frozen=True)
class Arrived:
    """All parts of a report are here."""

    client: str
    sink: Sink
    digest: bytes  # of the content
    size: int  # of the content in bytes


@dataclass(frozen=True)
class StatusQueued:
    """Statuses of an agent wait; a newer one takes the place of one that waits."""

    agent: str


WaitingStatus = tuple[AgentStatus, bool, int]  # with its retain flag and its shard
WaitingStatuses = dict[bool, WaitingStatus]  # of one agent, by online or not
LateStatus = tuple[bytes, bool, int]  # payload, not read yet, with its retain flag and its shard


class Intake:
    """Reads statuses and puts reports together. What it drops it counts in the roster."""

    def __init__(self, run: Run, roster: Roster, placement: Placement) -> None:
        self._run = run
        self._roster = roster
        self._placement = placement
        # statuses that wait, by agent
        self._statuses: dict[ClientId, WaitingStatuses] = {}
        # the newest status of each agent that sends too many
        self._late: dict[ClientId, LateStatus] = {}
        self._reports: Counter[ClientId] = Counter()  # waiting to be accepted, by agent
        self._refused: dict[
            ClientId, bytes
        ] = {}  # digest of the newest refused report of each agent
        scenario = run.scenario
        part_bytes = scenario.wire.part_bytes
        self._rates = Rates(part_bytes)
        self._largest_payload = part_bytes + FRAME_BYTES
        deadline_s = scenario.rounds.longest_s
        self._held_bytes = 0  # of reports that wait in memory
        self._parts = Assembler(
            self._new_sink,
            largest_bytes=run.largest_report,
            per_sender=2,
            total_bytes=1 << 50,  # on disk: bounded by contents per agent and their size
            max_age_s=max(deadline_s, MIN_AGE_S),
        )
        # when to call the roll again; None: no need
        self.roll_at: float | None = None
        self.asked_again = 0  # calls since agents are missing
        self._roll_wait_s = ROLL_AGAIN_S[0]

    def __repr__(self) -> str:
        waiting = len(self._statuses)
        late = len(self._late)
        return f"<Intake: statuses of {waiting} agents wait, {late} late, {self._parts!r}>"

    @property
    def wake_at(self) -> float | None:
        """The next time at which something here is due; None: nothing is."""
        return earliest(self.roll_at, *map(self._rates.status_at, self._late))

    # -- statuses ----------------------------------------------------------------------------------

    def status(
        self, agent: str, payload: bytes, retained: bool, now: float, shard: int = 0
    ) -> StatusQueued | None:
        """A status within the limits is read; beyond them the newest one waits, and those before it are dropped."""
        size = len(payload)
        largest = AgentStatus.max_bytes
        if size > largest:
            raise DecodeError("too long", f"{size} bytes of JSON, at most {largest}")
        rates = self._rates
        if self._is_unknown(agent):
            if rates.stranger(size, now):
                return self._read(agent, payload, retained, shard)
            self._ask_soon(now)
            raise DecodeError("rate", "too many statuses of unknown agents")
        late = self._late
        if rates.status(agent, now):
            late.pop(agent, None)
            return self._read(agent, payload, retained, shard)
        is_one_more = agent in late
        late[agent] = (payload, retained, shard)
        if is_one_more:
            raise DecodeError("rate", "too many statuses; only the newest is kept")
        return None

    def _is_unknown(self, agent: str) -> bool:
        """Neither the roster nor the run has this agent.

        After a restart the roster is empty, but the run knows its agents. All of them answer the roll call at once, and
        their retained statuses come as well. If they counted as unknown, many would be dropped.
        """
        members = self._run.members
        is_new = agent not in members.listed and agent not in members.known
        return is_new and agent not in self._statuses  # which it is judged by soon

    def _read(self, agent: str, payload: bytes, retained: bool, shard: int) -> StatusQueued | None:
        status = AgentStatus.from_bytes(payload)
        online = status.online
        if online and status.format != FORMAT:  # an honest agent that was not updated, or before us
            why = speaks_other(f"agent {agent}", status.format, status.version, "this coordinator")
            status = status.model_copy(update={"problem": why})
        is_question = status.problem == ASKED
        if is_question and not online:  # our own
            return None
        sender = status.agent
        if sender != agent:
            raise DecodeError("other sender", f"status of {sender} on the topic of {agent}")
        listed = self._run.members.listed
        if len(listed) >= MAX_AGENTS and agent not in listed:
            raise DecodeError("too many agents", f"{agent} would be one more than {MAX_AGENTS}")
        if not self._placement.admits(status, shard, retained=retained, wall=time.time()):
            if online and not retained:
                raise DecodeError("other broker", f"{agent} is online on another broker")
            return None
        waiting = self._statuses.setdefault(agent, {})
        is_new = not waiting
        if online and online in waiting and self._is_overtaken(status, retained, waiting[online]):
            return None
        # a last will of an older session must not hide the status after which it came
        waiting.pop(online, None)
        waiting[online] = (status, retained, shard)
        if not is_new:
            return None
        return StatusQueued(agent)

    @staticmethod
    def _is_overtaken(status: AgentStatus, retained: bool, by: WaitingStatus) -> bool:
        """Whether a status came after a newer one; of two sessions the broker's memory has the older one."""
        newest, newest_retained, _ = by
        if status.session == newest.session:
            return status.is_older(newest)
        return retained and not newest_retained

    def read_late(self, now: float) -> list[str]:
        """Read the statuses that had to wait because their agents had sent too many. Returns these agents."""
        rates = self._rates
        late = self._late
        ready = [agent for agent in late if rates.status_at(agent) <= now]
        seen: list[str] = []
        for agent in ready:
            payload, retained, shard = late.pop(agent)
            rates.status(agent, now)
            try:
                item = self._read(agent, payload, retained, shard)
            except DecodeError as error:
                self._roster.refuse(error.reason, agent)
                continue
            if item is not None:
                seen.append(agent)
        return seen

    def take_statuses(self, agent: str) -> list[WaitingStatus]:
        """The statuses of an agent that wait, in their order; they wait no longer."""
        return list(self._statuses.pop(agent, {}).values())

    def drop_statuses(self, agent: str) -> None:
        """The statuses of an agent that wait are not read any more."""
        self._statuses.pop(agent, None)
        self._late.pop(agent, None)

    def call_roll_again(self) -> None:
        """The roll is called now. If it has to be called again, the next call comes after twice the time."""
        _, longest_s = ROLL_AGAIN_S
        self.roll_at = None
        self.asked_again += 1
        doubled_s = 2 * self._roll_wait_s
        self._roll_wait_s = min(doubled_s, longest_s)

    def missing(self, agents: bool, now: float) -> None:
        """Whether the run waits for agents: their statuses may be lost, and nobody sends one again unasked."""
        if agents:
            self._ask_soon(now)
        elif self.asked_again:
            self.asked_again = 0
            self._roll_wait_s = ROLL_AGAIN_S[0]

    def _ask_soon(self, now: float) -> None:
        self.roll_at = self.roll_at or now + self._roll_wait_s

    # -- reports -----------------------------------------------------------------------------------

    def part(self, agent: str, payload: bytes, now: float, shard: int = 0) -> Arrived | None:
        """Take a part of a report. Returns the report once it is whole. Raises OSError where the disk is full."""
        size = len(payload)
        if size > self._largest_payload:
            raise DecodeError("too long", f"a part of {size} bytes")
        run = self._run
        parts = self._parts
        if agent not in run.engine.known:
            raise DecodeError("unknown sender", f"{agent} takes no part in this run")
        if not self._placement.lives(agent, shard):
            raise DecodeError("other broker", f"{agent} lives on another broker")
        largest = max(parts.largest_bytes, run.largest_report)
        parts.largest_bytes = largest
        is_within = self._rates.part(agent, size, largest, now)
        if not is_within:
            raise DecodeError("rate", "too many parts of reports")
        part = Part.from_bytes(payload)
        if self._may_come_again(agent, part):
            parts.forget(agent, part.digest)
        sink = parts.feed(agent, part, now)
        if sink is None:
            return None
        if self._reports[agent] >= MAX_REPORTS:
            sink.discard()
            raise DecodeError("rate", f"{MAX_REPORTS} reports of {agent} wait already")
        self._reports[agent] += 1
        if isinstance(sink, MemorySink):
            self._held_bytes += part.size
        return Arrived(agent, sink, part.digest, part.size)

    def _may_come_again(self, agent: str, part: Part) -> bool:
        """Whether this report was here before and counts only now.

        It came before its step was open, or the spool has lost it since.
        """
        return (
            self._parts.has_finished(agent, part.digest)
            and not self._reports[agent]
            and self._refused.get(agent) != part.digest
            and not self._run.engine.refusal(agent, part.about)
        )

    def _new_sink(self, sender: str, part: Part) -> Sink:
        """A report of one part waits in memory, as long as there are not too many of them; others wait on disk."""
        held_bytes = self._held_bytes + part.size
        if part.count == 1 and held_bytes <= MOST_HELD_BYTES:
            return MemorySink()
        return self._run.new_sink(part.size)

    def report_taken(self, report: Arrived, *, is_refused: bool) -> None:
        """This report waits no longer. A refused one is not read again."""
        if is_refused and report.client in self._run.members.listed:
            self._refused[report.client] = report.digest
        if self._reports[report.client] > 1:
            self._reports[report.client] -= 1
        else:  # the last one, or one of an agent that was forgotten meanwhile
            self._reports.pop(report.client, None)
        if isinstance(report.sink, MemorySink):
            self._held_bytes -= report.size

    # -- bounds ------------------------------------------------------------------------------------

    def tidy(self, now: float) -> None:
        """Forget reports that stopped arriving, and the limits of agents that left the roster."""
        self._parts.expire(now)
        rates = self._rates
        members = self._run.members
        if len(rates) > 2 * max(len(members.listed), len(members.known)):
            rates.keep(members.listed)
        self._placement.tidy(members.listed)

    def forget(self, agent: str) -> None:
        """Drop the statuses of this agent that wait, its reports and its limits."""
        self._parts.drop(agent)
        self._rates.forget(agent)
        self._reports.pop(agent, None)
        self.drop_statuses(agent)
        self._refused.pop(agent, None)
        self._placement.forget(agent)

    def floods(self, agent: str, size: int, now: float) -> bool:
        """Whether an agent floods us; its message of this many bytes was dropped."""
        return self._rates.floods(agent, size, now)
