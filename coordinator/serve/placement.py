"""Where the agents live when a federation has several brokers (shards). Pure: time is an argument, in seconds.

An agent lives on one shard: the one that its newest status came from. A coordinator with one broker needs none of this.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from covey.shared.mqtt.duplicate_ids import began
from covey.shared.mqtt.link import Link
from covey.shared.mqtt.shards import shard_of
from covey.shared.programs.timers import earliest
from covey.shared.strategies.base import ClientId
from covey.shared.wire.documents import AgentStatus

PATIENCE_S = 5.0  # a shard that is back within this time has lost no agent
SPARE_HOMES = 1000  # of agents that are in no roster; beyond this they are dropped


@dataclass
class _Home:
    """Where an agent was seen last."""

    shard: int
    session: str  # of the agent
    serial: int  # of its newest status in that session
    online: bool  # by a live status


class Placement:
    """The shard of each agent.

    - The first status of an agent places it, even an old one.
    - A live status from another shard moves the agent there: it has turned to another of its addresses.
    - While an agent is online on a shard that is up, another session of it on another shard is refused, unless that shard
      is the one of `shard_of`, where agents are enrolled: no broker can speak for the agents of another one. Of two
      devices with one id on two other shards, the one that started last takes part.
    - Last wills and retained statuses from another shard are left aside: the agent has moved since.
    """

    def __init__(self, shards: int) -> None:
        self.shards = shards
        self._homes: dict[ClientId, _Home] = {}
        # agents that have come to a shard and did not get their order there yet, with the shard before
        self._moved: dict[ClientId, int | None] = {}
        self.up: set[int] = set()  # shards that are connected, where there are several
        self._rivals: set[ClientId] = set()  # agents that a device on another shard claims to be

    def __repr__(self) -> str:
        return f"<Placement: {len(self._homes)} agents on {self.shards} shards, {self.up} up>"

    def connected(self, shard: int) -> None:
        """The link to a shard is up."""
        self.up.add(shard)

    def disconnected(self, shard: int) -> None:
        """The link to a shard is lost."""
        self.up.discard(shard)

    def where(self, agent: ClientId) -> int | None:
        """The shard of an agent; None: it was not seen yet, and there is more than one shard."""
        if self.shards == 1:
            return 0
        home = self._homes.get(agent)
        if home is None:
            return None
        return home.shard

    def reaches(self, agent: ClientId) -> bool:
        """Whether the agent's shard is known and connected. Always so where there is one."""
        if self.shards == 1:
            return True
        return self.where(agent) in self.up

    def lives(self, agent: ClientId, shard: int) -> bool:
        """Whether messages of an agent may come from this shard. So it is until the agent was seen on another one."""
        home = self.where(agent)
        return home is None or home == shard

    def admits(self, status: AgentStatus, shard: int, *, retained: bool, wall: float) -> bool:
        """Place the sender of a status. False: the status comes from a shard where the agent does not live.

        Args:
            status: of an agent.
            shard: that it comes from.
            retained: whether the broker kept it.
            wall: seconds since 1970.
        """
        if self.shards == 1:
            return True
        agent = status.agent
        is_live = status.online and not retained
        home = self._homes.get(agent)
        if home is not None and home.shard != shard:
            if not is_live:
                return False
            if self._stays(home, status, shard, wall):
                self._rivals.add(agent)
                return False
        before = self.where(agent)
        if before != shard:
            self._moved[agent] = before
        if home is not None and not status.online:
            is_earlier = status.session != home.session
            if is_earlier:
                return True  # the last will of an earlier session proves nothing about this one
        self._homes[agent] = _Home(
            shard=shard, session=status.session, serial=status.serial, online=is_live
        )
        return True

    def _stays(self, home: _Home, status: AgentStatus, shard: int, wall: float) -> bool:
        """Whether an agent stays where it is, although a live status comes from another shard."""
        if status.session == home.session:
            # the same one comes twice if the brokers are bridged
            return status.serial <= home.serial
        if home.shard not in self.up or not home.online:
            return False
        own = shard_of(status.agent, self.shards)
        if own in (home.shard, shard):
            return own == home.shard
        here, there = began(home.session, wall), began(status.session, wall)
        return (there, status.session) < (here, home.session)

    def take_moved(self, agent: ClientId) -> tuple[bool, int | None]:
        """Whether the agent has come to a shard since this was asked last, and the shard that it came from."""
        if agent not in self._moved:
            return False, None
        return True, self._moved.pop(agent)

    def take_rival(self, agent: ClientId) -> bool:
        """Whether a live status of this agent was refused since the last call. Once it is offline, the roll is due."""
        if agent not in self._rivals:
            return False
        self._rivals.discard(agent)
        return True

    def online_on(self, shard: int) -> list[ClientId]:
        """The agents that are online on a shard."""
        return [agent for agent, home in self._homes.items() if home.online and home.shard == shard]

    def gone(self, agents: Iterable[ClientId]) -> None:
        """These agents are not online any more."""
        for agent in agents:
            home = self._homes.get(agent)
            if home is not None:
                home.online = False

    def forget(self, agent: ClientId) -> None:
        """The agent's next status places it again."""
        self._homes.pop(agent, None)
        self._moved.pop(agent, None)
        self._rivals.discard(agent)

    def tidy(self, known: Collection[ClientId]) -> None:
        """Drop the homes of agents that are not known, once there are many of them: names cost nothing to invent."""
        most = 2 * len(known) + SPARE_HOMES
        if len(self._homes) <= most:
            return
        unknown = [agent for agent in self._homes if agent not in known]
        for agent in unknown:
            self.forget(agent)


class SilentShards:
    """Agents of shards that were lost: who is not heard in time counts as offline.

    A shard has `PATIENCE_S` to come back. Then its agents have the time of a roll call to answer. While all shards are
    lost, no agent counts as offline.
    """

    def __init__(self, rollcall_s: float) -> None:
        self._rollcall_s = rollcall_s
        self._silent: dict[int, set[ClientId]] = {}  # by shard: agents not heard since the loss
        self._due: dict[int, float] = {}  # by shard: when they count as offline

    def __repr__(self) -> str:
        return f"<SilentShards: {sorted(self._silent)}>"

    @property
    def wake_at(self) -> float | None:
        """When agents count as offline next; None: none do."""
        return earliest(*[at for at in self._due.values() if at < math.inf])

    def lost(self, shard: int, agents: Iterable[ClientId], now: float) -> None:
        """The link to a shard is lost; these agents were online there."""
        self._silent.setdefault(shard, set()).update(agents)
        self._due.setdefault(shard, now + PATIENCE_S)

    def back(self, shard: int, now: float) -> None:
        """The link to a shard is up again, and its agents are asked who is there."""
        if shard in self._due:
            self._due[shard] = now + self._rollcall_s

    def all_lost(self) -> None:
        """The last shard is lost as well: time stands still."""
        self._due = dict.fromkeys(self._due, math.inf)

    def first_back(self, now: float) -> None:
        """The first shard is up again; the others have the time of a roll call to follow."""
        self._due = dict.fromkeys(self._due, now + self._rollcall_s)

    def heard(self, agent: ClientId) -> None:
        """A live status of this agent came, from whichever shard."""
        for agents in self._silent.values():
            agents.discard(agent)

    def take_overdue(self, now: float) -> list[ClientId]:
        """The agents that count as offline now, in order."""
        overdue: set[ClientId] = set()
        for shard in list(self._due):
            if now < self._due[shard]:
                continue
            del self._due[shard]
            overdue |= self._silent.pop(shard)
        return sorted(overdue)


@runtime_checkable
class Sharded(Protocol):
    """A link to several brokers. Its class, `ShardedLink`, is an extra's."""

    links: tuple[Link, ...]
    placement: Placement

    async def all_up(self) -> None:
        """Wait until every shard is connected."""


def shards_of(link: Link) -> Sequence[Link]:
    """The links to the single brokers, in the order of their numbers."""
    return link.links if isinstance(link, Sharded) else (link,)
