"""Who may use which topic, as data: rendered for Mosquitto, and asked by the embedded broker.

A user has a role in a federation. Where nothing is known but names (a password file of your own, client certificates),
`coordinator` is the coordinator and every other user is the agent of that name, in any federation. An open broker,
without users, has no rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from covey.broker.topic_filters import is_filter, matches
from covey.shared.mqtt.credentials import COORDINATOR
from covey.shared.wire.topics import is_name

Action = Literal["read", "write"]
Role = Literal["agent", "coordinator", "observer", "fleet"]
ROLES: tuple[Role, ...] = get_args(Role)
ANY = "+"  # any federation

MAX_TOPIC_LENGTH = 512  # bytes: no topic of Covey's is longer, and a longer one is nobody's to use


@dataclass(frozen=True)
class Member:
    """What a user is, and where: `federation` is a name, or `ANY`."""

    role: Role = "agent"
    federation: str = ANY


Members = Mapping[str, Member]


@dataclass(frozen=True)
class Rule:
    """One allowance. `%u` stands for the user's name, `%f` for its federation; `+` and `#` are wildcards."""

    action: Action
    pattern: str

    def of(self, user: str, federation: str) -> str:
        """The topic filter for this user. A name is put in as it is: ask `is_name` before."""
        return self.pattern.replace("%f", federation).replace("%u", user)


# An agent may write two topics, both exact: retained messages of more of them would fill the broker, and Mosquitto
# knows no limit for that. All parts of a report travel on the one topic `report/0`.
AGENT_RULES = (
    Rule("write", "covey/%f/agents/%u/status"),
    Rule("write", "covey/%f/agents/%u/report/0"),
    Rule("read", "covey/%f/agents/%u/status"),
    Rule("read", "covey/%f/agents/%u/order"),
    Rule("read", "covey/%f/agents/%u/model/+"),
    Rule("read", "covey/%f/clusters/+/model/+"),
    Rule("read", "covey/%f/coordinator/status"),
)
RULES: Mapping[Role, tuple[Rule, ...]] = MappingProxyType(
    {
        "coordinator": (Rule("read", "covey/%f/#"), Rule("write", "covey/%f/#")),
        "agent": AGENT_RULES,
        "observer": (
            Rule("read", "covey/%f/coordinator/status"),
            Rule("read", "covey/%f/agents/+/status"),
            Rule("read", "covey/%f/run/metrics"),
            Rule("read", "covey/%f/run/roster"),
        ),
        # many agents in one program, for a simulation: an agent's rules for every agent of the federation
        "fleet": tuple(Rule(rule.action, rule.pattern.replace("%u", "+")) for rule in AGENT_RULES),
    }
)
COORDINATOR_MEMBER = Member("coordinator")
AGENT_MEMBER = Member("agent")


def member_of(user: str, members: Members | None) -> Member | None:
    """What the user is; None for one that is unknown, or has a name that would stretch its own rules."""
    if not is_name(user):
        return None
    if members is not None:
        return members.get(user)
    return COORDINATOR_MEMBER if user == COORDINATOR else AGENT_MEMBER


def allows(user: str, action: Action, topic: str, members: Members | None = None) -> bool:
    """May the user write to the topic, or be sent a message of it?"""
    member = member_of(user, members)
    if member is None or len(topic) > MAX_TOPIC_LENGTH:
        return False
    patterns = _patterns(user, member, action)
    return any(matches(pattern, topic) for pattern in patterns)


def allows_subscription(user: str, wanted: str, members: Members | None = None) -> bool:
    """Does one rule cover every topic that the filter `wanted` can match?"""
    member = member_of(user, members)
    if member is None or len(wanted) > MAX_TOPIC_LENGTH or not is_filter(wanted):
        return False
    return any(_covers(pattern, wanted) for pattern in _patterns(user, member, "read"))


def render(members: Members | None = None) -> str:
    """The rules as Mosquitto's ACL file: by name alone, or by what is known of the users.

    Mosquitto reads lines of single users in quadratic time: 10 000 users would keep it from starting. So the agents of the
    largest federation share patterns, and what these would give to the other users is denied to them one by one.
    """
    if members is None:
        return "\n".join([_user_lines(COORDINATOR, COORDINATOR_MEMBER), _pattern_lines(ANY)])
    largest = _largest_federation(members)
    if largest is None:
        return "\n".join(_user_lines(user, member) for user, member in sorted(members.items()))
    sharing = Member("agent", largest)
    others = {user: member for user, member in sorted(members.items()) if member != sharing}
    lines = [
        _user_lines(user, member, _denied(user, member, largest)) for user, member in others.items()
    ]
    return "\n".join([*lines, _pattern_lines(largest)])


def _largest_federation(members: Members) -> str | None:
    counts = Counter(member.federation for member in members.values() if member.role == "agent")
    del counts[ANY]
    return max(sorted(counts), key=counts.__getitem__, default=None)


def _denied(user: str, member: Member, federation: str) -> list[str]:
    """What the agents' patterns of the federation would allow this user beyond its own rules."""
    found = []
    for rule in AGENT_RULES:
        pattern = rule.of(user, federation)
        if not any(_covers(own, pattern) for own in _patterns(user, member, rule.action)):
            found.append(pattern)
    return list(dict.fromkeys(found))


def _pattern_lines(federation: str) -> str:
    lines = [f"pattern {rule.action} {rule.of('%u', federation)}" for rule in AGENT_RULES]
    return "\n".join([*lines, ""])


def _user_lines(user: str, member: Member, denied: Sequence[str] = ()) -> str:
    lines = [f"user {user}", *(f"topic deny {pattern}" for pattern in denied)]
    lines += [
        f"topic {rule.action} {rule.of(user, member.federation)}" for rule in RULES[member.role]
    ]
    return "\n".join([*lines, ""])


def _patterns(user: str, member: Member, action: Action) -> list[str]:
    rules = RULES[member.role]
    return [rule.of(user, member.federation) for rule in rules if rule.action == action]


def _covers(pattern: str, wanted: str) -> bool:
    """Does the filter `pattern` match all that the filter `wanted` matches?"""
    allowed, asked = pattern.split("/"), wanted.split("/")
    for position, level in enumerate(allowed):
        if level == "#":
            return True
        if position >= len(asked) or asked[position] == "#":
            return False
        if level not in ("+", asked[position]):
            return False
    return len(allowed) == len(asked)
