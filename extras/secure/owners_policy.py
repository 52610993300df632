"""The bounds that a device's owner sets for its sums."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from covey.extras.secure.messages import Terms


@dataclass(frozen=True)
class OwnersPolicy:
    """The bounds that a device's owner sets. The defaults allow whatever protects at all."""

    least: int = 3  # members of a sum, at least
    colluders: float = 0.0  # the share of members that the terms must withstand, at least
    clip: float | None = None  # the longest update that may be sent
    multiplier: float = 0.0  # of the noise, at least
    most_spent: float | None = (
        None  # rho of all reports of the device; None: any, also without noise
    )
    known: frozenset[str] = frozenset()  # agents that the owner knows
    known_least: int = 0  # this number of members must be known
    steady: bool = False  # no two sums that are answered differ by few members

    def refusal(self, terms: Terms, own: str) -> str | None:
        """Why the owner of the agent `own` does not allow these terms, or None."""
        if terms.least < self.least:
            return f"sums of {terms.least} members; the owner requires {self.least}"
        if terms.colluders < int(self.colluders * len(terms.members)):
            return f"{terms.colluders} colluders withstood; the owner requires a share of {self.colluders}"
        if self.clip is not None and terms.clip > self.clip:
            return f"clip {terms.clip}; the owner allows {self.clip}"
        if terms.multiplier < self.multiplier:
            return f"noise of {terms.multiplier}; the owner requires {self.multiplier}"
        if self.most_spent is not None and not terms.multiplier:
            return "sums without noise; the owner bounds epsilon"
        agents = [member.agent for member in terms.members]
        # strangers may all be one attacker's, and known ones need not demand what this owner does: this many of them
        # answer for any sum
        forced = max(0, terms.threshold - len(agents) + 1 + self._known(agents, own))
        if forced < self.known_least:
            return (
                f"strangers and {forced} known members reach the threshold of {terms.threshold}; the owner"
                f" requires {self.known_least} known ones (secure_known_least)"
            )
        return self.refusal_of_members(agents, own)

    def refusal_of_members(self, agents: Iterable[str], own: str) -> str | None:
        """Why the owner does not allow these members, of terms, of a list or of a sum, or None."""
        known = self._known(agents, own)
        if known < self.known_least:
            return (
                f"{known} members are known to the owner, who requires {self.known_least}"
                " (secure_known_least)"
            )
        return None

    def _known(self, agents: Iterable[str], own: str) -> int:
        """Others that the owner knows."""
        return sum(agent in self.known and agent != own for agent in agents)
