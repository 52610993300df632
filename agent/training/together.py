"""Lets the orders of several simulated agents be done as one, up to and after their trainings.

The work of each agent runs in a thread of its own, but only one of them at a time. It stands still where it asks for a
training, until no other agent can continue; then all that was asked for is computed at once. So the work of a method stays what
it is for a single agent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from threading import Semaphore, Thread, current_thread
from typing import Any, Generic, TypeVar

Done = TypeVar("Done")
Answers = Callable[[Sequence[Any]], Sequence[Any]]  # to requests, in their order


class _Agent(Thread, Generic[Done]):
    """The work of one agent, in a context of its own."""

    request: Any = None  # what the agent waits for
    answer: Any = None  # to its request; an exception is raised in its thread

    def __init__(self, work: Callable[[], Done]) -> None:
        super().__init__(daemon=True)
        self.done: Future[Done] = Future()
        self._work = work
        self._context = copy_context()
        self._turn = Semaphore(0)
        self._paused = Semaphore(0)
        self.start()

    def run(self) -> None:
        self._turn.acquire()
        try:
            self.done.set_result(self._context.run(self._work))
        except Exception as error:
            self.done.set_exception(error)
        self._paused.release()

    def resume(self) -> None:
        """Let it work until it asks for something, or is done."""
        self._turn.release()
        self._paused.acquire()

    def ask(self, request: Any) -> Any:
        """In the thread of the agent itself: wait for the answer."""
        self.request = request
        self._paused.release()
        self._turn.acquire()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def is_together() -> bool:
    """Whether the work at hand is that of several agents."""
    return isinstance(current_thread(), _Agent)


def ask(request: Any) -> Any:
    """The answer to a request, once all other agents have come as far."""
    agent = current_thread()
    assert isinstance(agent, _Agent)  # noqa: S101 - the caller has looked
    return agent.ask(request)


def together(works: Sequence[Callable[[], Done]], answers: Answers) -> list[Done]:
    """What several agents' works return. Raises what the first of them has raised.

    Args:
        works: of the agents, which may ask for something.
        answers: to requests of different agents, one each. An exception among them, or raised, is raised where it was asked for.
    """
    agents = [_Agent(work) for work in works]
    for agent in agents:
        agent.resume()
    while waiting := [agent for agent in agents if agent.request is not None]:
        requests = [agent.request for agent in waiting]
        try:
            found = answers(requests)
        except Exception as error:
            found = [error] * len(requests)
        for agent, answer in zip(waiting, found, strict=True):
            agent.request = None
            agent.answer = answer
            agent.resume()
    return [agent.done.result() for agent in agents]
