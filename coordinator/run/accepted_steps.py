"""The newest accepted step of each agent. Orders repeat it, so that agents know which report they need to keep."""

from __future__ import annotations

from covey.shared.strategies.base import ClientId

Steps = dict[ClientId, int]


class AcceptedSteps:
    """What the run has accepted. Until a step is over, it can be taken back.

    Args:
        steps: by agent, as the run's state has them; changed in place.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        # of those who reported the open step: the newest step accepted before it
        self._before: Steps = {}

    def __repr__(self) -> str:
        reported = sorted(self._before)
        return f"<AcceptedSteps: in the open step of {reported}>"

    def note(self, client: ClientId, step: int) -> None:
        """The report lies in the spool. The checkpoint learns of it with the fold: until then the spool knows."""
        self._before.setdefault(client, self._steps.get(client, 0))
        self._steps[client] = step

    def take_back(self, client: ClientId) -> None:
        """The report of the open step is gone, and must come again."""
        newest = self._before.pop(client, 0)
        self._steps[client] = newest

    def settle(self, client: ClientId) -> None:
        """Take back nothing of this agent any more."""
        self._before.pop(client, None)

    def settle_all(self) -> None:
        """The step is over."""
        self._before.clear()

    def of_closed_steps(self) -> Steps:
        """For a checkpoint: of the open step the spool knows who has reported, also after a kill."""
        return self._steps | self._before
