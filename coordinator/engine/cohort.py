"""Which agents a round may invite, in which order, and how many reports a phase needs. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Set
from dataclasses import dataclass, replace

from covey.coordinator.engine.rules import RoundRules
from covey.shared.scenario.scenario import Scenario
from covey.shared.seeds import generator
from covey.shared.strategies.base import ClientId, Phase

ROUNDING = 1e-9  # of a number of agents: a float this near to a whole number means that number
Listed = tuple[tuple[ClientId, ...], ...]  # the participants of each round


def cohort_size(known: int, participation: float, agents: int | None) -> int:
    """m = max(floor(C * N), 1) (McMahan et al. 2017), or the fixed number of agents."""
    if agents is not None:
        return agents
    return max(math.floor((participation * known) + ROUNDING), 1)


def invitation_order(
    known: Collection[ClientId], seed: int, round_: int, attempt: int, purpose: str
) -> tuple[ClientId, ...]:
    """All known agents in the order in which this attempt at this round would invite them."""
    ids = sorted(known)
    rng = generator(seed, "cohort", purpose, round_, attempt)
    return tuple(ids[i] for i in rng.permutation(len(ids)))


def expected_share(scenario: Scenario, listed: Listed | None) -> float:
    """C, the share of all agents that a round invites on average; 1 only where every round invites all.

    `listed` are the participants of each round where the scenario lists them.
    """
    rounds = scenario.rounds
    fleet = scenario.fleet
    if fleet is not None and listed:
        federated = fleet.agents - fleet.newcomers
        share = _mean_length(listed) / federated
        return min(share, 1.0)
    if rounds.agents is None:
        return rounds.participation
    if fleet is not None:
        federated = fleet.agents - fleet.newcomers
        share = rounds.agents / federated
        return min(share, 1.0)
    # more agents than these may come at any time, so that a share of 1 is out of reach
    share = rounds.agents / max(rounds.start_agents or 0, rounds.agents)
    just_below_1 = math.nextafter(1.0, 0.0)
    return min(share, just_below_1)


def _mean_length(listed: Listed) -> float:
    """Participants of a round on average."""
    total = 0
    for clients in listed:
        total += len(clients)
    return total / len(listed)


@dataclass(frozen=True)
class Cohort:
    """Who is invited to a phase, and who could take their places."""

    invited: list[ClientId]  # some of those present
    spare: list[ClientId]  # present too; invited in place of another, in this order
    target: int  # reports that the phase needs
    quorum: int = 0  # with fewer reports the phase is void


@dataclass(frozen=True)
class CohortPool:
    """The agents from which one attempt at a phase draws its cohort."""

    rules: RoundRules
    round: int  # rounds folded before
    attempt: int  # void attempts before: each draws another cohort
    known: Set[ClientId]
    present: Set[ClientId]  # some of the known
    quarantined: Set[ClientId]
    resting: Set[ClientId] = frozenset()  # left out, except by a phase that names them (`members`)

    def trusted(self, clients: Set[ClientId]) -> set[ClientId]:
        """Those of them who are not in quarantine."""
        return set(clients - self.quarantined)

    def admitted(self, clients: Set[ClientId]) -> set[ClientId]:
        """Those of them who may be invited yet: newcomers of the rules come after the last round."""
        trusted = self.trusted(clients)
        if self.round < self.rules.rounds:
            return trusted - self.rules.newcomers
        return trusted

    @property
    def awake(self) -> Set[ClientId]:
        """Those present who do not rest."""
        return self.present - self.resting if self.resting else self.present

    def draw(self, phase: Phase, over_select: float = 1.0) -> Cohort | None:
        """The cohort of a phase among those present; None where too few of it are there.

        Args:
            phase: what is to be done.
            over_select: invited agents for each report that a drawn phase needs.
        """
        if phase.cohort == "sample" and self.rules.participants is None:
            drawn = self._sample(phase, over_select)
        else:
            drawn = self._whole(phase)
        there = len(drawn.invited)
        quorum = self._quorum(phase, drawn.target, there)
        if there < quorum and self.resting:
            return replace(self, resting=frozenset()).draw(phase, over_select)
        if there < quorum:
            return None
        return replace(drawn, quorum=quorum)

    def _whole(self, phase: Phase) -> Cohort:
        """All whom the phase names and who are there."""
        needed = self._needed(phase)
        present = needed & (self.awake if phase.cohort == "all" else self.present)
        return Cohort(invited=sorted(present), spare=[], target=len(needed))

    def _sample(self, phase: Phase, over_select: float) -> Cohort:
        """A share of all known agents, from those of them who are there."""
        rules = self.rules
        known = self.admitted(self.known)
        purpose = phase.draw or phase.name
        order = invitation_order(known, rules.seed, self.round, self.attempt, purpose)
        awake = self.awake
        there = [client for client in order if client in awake]
        number_known = len(known)
        target = cohort_size(number_known, rules.participation, rules.agents)
        number = math.ceil((target * over_select) - ROUNDING)
        return Cohort(invited=there[:number], spare=there[number:], target=target)

    def _needed(self, phase: Phase) -> set[ClientId]:
        """The agents that a phase names instead of drawing some, whether they are online or not."""
        if phase.cohort == "all":
            return self.admitted(self.known)
        if phase.cohort == "sample":
            participants = self.rules.participants
            assert participants is not None  # noqa: S101 - the caller has seen to it
            of_round = set(participants[self.round])
            return self.admitted(of_round)
        return self.trusted(set(phase.cohort))

    def _quorum(self, phase: Phase, target: int, invited: int) -> int:
        """The run's quorum binds what is drawn for a round or ends it, as far as `target` reports can meet it."""
        if phase.may_be_empty:
            return 0
        of_run = 1
        if phase.ends_round or phase.cohort == "sample":
            of_run = min(self.rules.quorum, target)
        asks_all = phase.cohort == "all" and not phase.ends_round
        share = self.rules.first_quorum if asks_all else phase.quorum
        of_phase = math.ceil((share * invited) - ROUNDING)
        return max(of_phase, of_run, 1)
