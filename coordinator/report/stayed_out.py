"""Who took no part in a run, and why: the last words of `coordinator run`, when the lines of its start are long gone."""

from __future__ import annotations

from collections.abc import Collection

from covey.coordinator.record.notices import (
    AgentExcluded,
    AgentQuarantined,
    Notice,
    Observer,
    ReportRefused,
)
from covey.shared.sentences import some
from covey.shared.strategies.base import ClientId


class StayedOut:
    """An observer that keeps the newest reason of each agent, and hands every notice on."""

    def __init__(self, shown: Observer) -> None:
        self._shown = shown
        self._why: dict[ClientId, str] = {}

    def __call__(self, notice: Notice) -> None:
        match notice:
            case AgentExcluded(agent=agent, why=why):
                self._why[agent] = f"excluded: {why}"
            case AgentQuarantined(agent=agent, why=why):
                self._why[agent] = f"in quarantine: {why}"
            case ReportRefused(agent=agent, why=why) if agent not in self._why:
                self._why[agent] = f"its reports were refused: {why}"
        self._shown(notice)

    def sentence(self, took_part: Collection[ClientId]) -> str:
        """Who took no part, with the reasons; empty if none is known of.

        Args:
            took_part: agents that trained, whatever was wrong with them at another time.
        """
        reasons = [
            f"{agent} ({why})" for agent, why in sorted(self._why.items()) if agent not in took_part
        ]
        return f"took no part: {some(reasons)}" if reasons else ""
