"""The judge of a device, as the core sees it: an extra that decides, after the last round, what the device answers with.

An order of the last evaluation asks for it by a number, and further orders bring the fleet's weights. Its report has numbers of its
own (`candidate_names`), and the keys of a client's memory that begin with `MEMORY` are its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from covey.shared.candidate_names import CANDIDATES, JUDGE, MEMORY, REFITS
from covey.shared.strategies.base import Expected, Strategy
from covey.shared.strategies.client_half import ClientState, Job, Local, Report
from covey.shared.strategies.phase_names import EVALUATE
from covey.shared.wire.messages import Work

# further numbers of an order
FLEET = "fleet"  # the fleet's weights, in the order of `CANDIDATES`
GAINS = "gains"  # whether mixtures are better than served models in the fleet
ASKED = {
    JUDGE: Expected(most=REFITS, whole=True, required=False),
    FLEET: Expected(len(CANDIDATES), most=1, required=False),
    GAINS: Expected(most=1, whole=True, required=False),
}


class Judge(Protocol):
    """The judge, with what it needs besides the order."""

    def evaluated(
        self,
        strategy: Strategy[Any],
        job: Job,
        local: Local,
        client_state: ClientState,
        *,
        work: Work,
        prior: Any,
        clock: Callable[[], float],
    ) -> tuple[Report, ClientState]:
        """The report of the last evaluation, and the client state after it; `prior`: of the labels, as `with_prior` takes it."""


def has_judge(work: Work) -> bool:
    """Whether the agent decides what it answers with after this work."""
    return work.phase == EVALUATE and JUDGE in work.numbers and "deliver" in work.evaluation


def is_last(work: Work) -> bool:
    """Whether no further order brings the fleet's weights."""
    return work.numbers.get(JUDGE) == REFITS


def forgotten(memory: ClientState) -> ClientState:
    """A client's memory without what the judge has kept: the same object if there is nothing of it."""
    left = [key for key in memory if not key.startswith(MEMORY)]
    return memory if len(left) == len(memory) else {key: memory[key] for key in left}
