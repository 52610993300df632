"""Processes of a history: whose call it is, and that a killed process has no effects any more."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass, field

from tests.kit.memory_broker import MemoryLink


class DeadError(BaseException):
    """Raised where a killed process would touch the world. No program catches it."""


@dataclass(eq=False)
class Life:
    """A process from its start to its end."""

    name: str  # of the program: "coordinator", "agent-1", "aggregator-0"
    session: str  # of this life
    links: list[MemoryLink] = field(default_factory=list)
    task: asyncio.Task[None] | None = None
    killed: bool = False

    def die(self) -> None:
        """A kill, as other processes see it: at once, and without a goodbye."""
        self.killed = True
        for link in self.links:
            link._close(will=True)

    async def kill(self) -> None:
        self.die()
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait({self.task})


OWNER: ContextVar[Life | None] = ContextVar("OWNER", default=None)  # whose call it is


def is_dead() -> bool:
    """Whether this is a call of a killed process."""
    life = OWNER.get()
    return life is not None and life.killed


def must_live() -> None:
    """Raise DeadError in a killed process."""
    if is_dead():
        raise DeadError
