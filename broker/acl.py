"""Who may use which topic, as data: rendered for Mosquitto, and asked by the embedded broker.

Users are told apart by name: `coordinator` is the coordinator (and the operator's command line), every other
user is the agent of that name. Without users (an open broker) there are no rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from broker.matching import is_filter, matches
from shared.credentials import COORDINATOR

Action = Literal["read", "write"]


@dataclass(frozen=True)
class Rule:
    """One allowance. `%u` stands for the user's name, `+` and `#` are wildcards; the federation is any."""

    action: Action
    pattern: str

    def of(self, user: str) -> str:
        return self.pattern.replace("%u", user)


COORDINATOR_RULES = (Rule("read", "covey/+/#"), Rule("write", "covey/+/#"))
AGENT_RULES = (
    Rule("write", "covey/+/agents/%u/status"),
    Rule("write", "covey/+/agents/%u/report/#"),
    Rule("read", "covey/+/agents/%u/#"),
    Rule("read", "covey/+/clusters/#"),
    Rule("read", "covey/+/coordinator/status"),
)


def allows(user: str, action: Action, topic: str) -> bool:
    """May the user write to the topic, or be sent a message of it?"""
    rules = COORDINATOR_RULES if user == COORDINATOR else AGENT_RULES
    if not _is_plain(user):
        return False
    return any(rule.action == action and matches(rule.of(user), topic) for rule in rules)


def render() -> str:
    """The rules as Mosquitto's ACL file."""
    coordinator = [f"topic {rule.action} {rule.pattern}" for rule in COORDINATOR_RULES]
    agents = [f"pattern {rule.action} {rule.pattern}" for rule in AGENT_RULES]
    return "\n".join([f"user {COORDINATOR}", *coordinator, "", *agents, ""])


def _is_plain(user: str) -> bool:
    """A name with a wildcard or a slash would stretch its own rules."""
    return bool(user) and is_filter(user) and not set(user) & set("+#/")
