"""Who may use which topic, as data: rendered as a file for Mosquitto, evaluated by the embedded broker.

A user has a role in a federation. An agent's user has the name of its id; where two federations have agents of one id,
the second one's is `id@federation`. If only names are known (a password file of your own, client certificates), the user
`coordinator` is the coordinator and every other user is the agent of that name, in any federation. An open broker has
neither users nor rules.
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
Role = Literal["agent", "coordinator", "observer", "fleet", "aggregator"]
ROLES: tuple[Role, ...] = get_args(Role)
ANY = "+"  # any federation

MAX_TOPIC_LENGTH = 512  # Covey's topics are shorter, and no longer one is allowed


@dataclass(frozen=True)
class AclUser:
    """What the rules know of a user."""

    role: Role = "agent"
    federation: str = ANY  # a name, or `ANY`


Members = Mapping[str, AclUser]  # by user


@dataclass(frozen=True)
class Rule:
    """Permission for one action on the topics that a pattern matches."""

    action: Action
    pattern: str  # a topic filter: `%u` stands for the user's id, `%f` for its federation

    def filter_for(self, user: str, federation: str) -> str:
        """The topic filter for this user. Names are inserted as they are: check them with `is_name` first."""
        of_federation = self.pattern.replace("%f", federation)
        return of_federation.replace("%u", id_of(user))


def id_of(user: str) -> str:
    """The id of a user, as it is in topics."""
    return user.partition("@")[0]


def is_user(text: str) -> bool:
    """Whether this is the name of a user: an id, or an id with its federation."""
    return all(map(is_name, text.split("@", 1)))


# An agent may write to two topics, both exact: with more it could fill the broker with retained messages, which Mosquitto
# cannot limit. All parts of a report therefore travel on the one topic `report/0`.
AGENT_RULES = (
    Rule("write", "covey/%f/agents/%u/status"),
    Rule("write", "covey/%f/agents/%u/report/0"),
    Rule("read", "covey/%f/agents/%u/status"),
    Rule("read", "covey/%f/agents/%u/order"),
    Rule("read", "covey/%f/agents/%u/model/+"),
    Rule("read", "covey/%f/clusters/+/model/+"),
    Rule("read", "covey/%f/coordinator/status"),
    Rule("read", "covey/%f/deployment"),
    Rule("read", "covey/%f/deployment/candidate"),
    Rule("read", "covey/%f/agents/%u/deployment"),
)
# many agents in one program, for a simulation: the agents' rules, for any agent of the federation
FLEET_RULES = tuple(Rule(rule.action, rule.pattern.replace("%u", "+")) for rule in AGENT_RULES)
OBSERVER_RULES = (
    Rule("read", "covey/%f/coordinator/status"),
    Rule("read", "covey/%f/agents/+/status"),
    Rule("read", "covey/%f/run/metrics"),
    Rule("read", "covey/%f/run/roster"),
    Rule("read", "covey/%f/run/roster/+"),
    Rule("read", "covey/%f/deployment"),
    Rule("read", "covey/%f/deployment/candidate"),
)
# it reads every report, as the coordinator does, and speaks for itself alone
AGGREGATOR_RULES = (
    Rule("write", "covey/%f/aggregator/status"),
    Rule("write", "covey/%f/aggregator/sum/0"),
    Rule("read", "covey/%f/aggregator/status"),
    Rule("read", "covey/%f/aggregator/order"),
    Rule("read", "covey/%f/aggregator/task/+"),
    Rule("read", "covey/%f/agents/+/report/+"),
    Rule("read", "covey/%f/coordinator/status"),
)
COORDINATOR_RULES = (Rule("read", "covey/%f/#"), Rule("write", "covey/%f/#"))
RULES: Mapping[Role, tuple[Rule, ...]] = MappingProxyType(
    {
        "coordinator": COORDINATOR_RULES,
        "agent": AGENT_RULES,
        "observer": OBSERVER_RULES,
        "fleet": FLEET_RULES,
        "aggregator": AGGREGATOR_RULES,
    }
)
COORDINATOR_MEMBER = AclUser("coordinator")
AGENT_MEMBER = AclUser("agent")


def member_of(user: str, members: Members | None) -> AclUser | None:
    """The role and federation of a user.

    None for an unknown user, and for a name that is no valid id: put into a pattern, it could widen the user's rules.
    """
    if not is_user(user):
        return None
    if members is not None:
        return members.get(user)
    return COORDINATOR_MEMBER if user == COORDINATOR else AGENT_MEMBER


def allows(user: str, action: Action, topic: str, members: Members | None = None) -> bool:
    """Whether the user may write to the topic, or receive a message of it."""
    if len(topic) > MAX_TOPIC_LENGTH:
        return False
    member = member_of(user, members)
    if member is None:
        return False
    return any(matches(pattern, topic) for pattern in _patterns(user, member, action))


def allows_subscription(user: str, requested: str, members: Members | None = None) -> bool:
    """Whether a single rule covers every topic that the requested filter can match."""
    if len(requested) > MAX_TOPIC_LENGTH or not is_filter(requested):
        return False
    member = member_of(user, members)
    if member is None:
        return False
    return any(_covers(pattern, requested) for pattern in _patterns(user, member, "read"))


def render(members: Members | None = None) -> str:
    """The rules as Mosquitto's ACL file.

    Mosquitto reads the lines of single users in quadratic time: with 10 000 users it would not start. Therefore the agents
    of the largest federation share `pattern` lines, and each other user is denied, one by one, what those would give it.

    Args:
        members: the users with their roles; None assigns roles by name.
    """
    if members is None:
        return "\n".join([_user_lines(COORDINATOR, COORDINATOR_MEMBER), _pattern_lines(ANY)])
    largest = _largest_federation(members)
    sharing = None if largest is None else AclUser("agent", largest)
    sections = []
    for user, member in sorted(members.items()):
        if member == sharing and "@" not in user:
            continue
        denied = [] if largest is None else _denied(user, member, largest)
        sections.append(_user_lines(user, member, denied))
    if largest is not None:
        sections.append(_pattern_lines(largest))
    return "\n".join(sections)


def _largest_federation(members: Members) -> str | None:
    """The federation with the most agents, the first by name among equals; None without any."""
    agents: Counter[str] = Counter()
    for member in members.values():
        if member.role == "agent" and member.federation != ANY:
            agents[member.federation] += 1
    return max(sorted(agents), key=agents.__getitem__, default=None)


def _denied(user: str, member: AclUser, federation: str) -> list[str]:
    """The filters that the shared patterns of a federation would allow this user beyond its own rules."""
    found: list[str] = []
    for rule in AGENT_RULES:
        pattern = rule.filter_for("%u", federation).replace("%u", user)  # as Mosquitto does
        if any(_covers(own, pattern) for own in _patterns(user, member, rule.action)):
            continue
        if pattern not in found:
            found.append(pattern)
    return found


def _pattern_lines(federation: str) -> str:
    lines = []
    for rule in AGENT_RULES:
        pattern = rule.filter_for("%u", federation)
        lines.append(f"pattern {rule.action} {pattern}\n")
    return "".join(lines)


def _user_lines(user: str, member: AclUser, denied: Sequence[str] = ()) -> str:
    lines = [f"user {user}\n"]
    for pattern in denied:
        lines.append(f"topic deny {pattern}\n")
    for rule in RULES[member.role]:
        pattern = rule.filter_for(user, member.federation)
        lines.append(f"topic {rule.action} {pattern}\n")
    return "".join(lines)


def _patterns(user: str, member: AclUser, action: Action) -> list[str]:
    rules = [rule for rule in RULES[member.role] if rule.action == action]
    return [rule.filter_for(user, member.federation) for rule in rules]


def _covers(pattern: str, requested: str) -> bool:
    """Whether the filter `pattern` matches all topics that the filter `requested` matches."""
    allowed_levels = pattern.split("/")
    requested_levels = requested.split("/")
    for position, allowed in enumerate(allowed_levels):
        if allowed == "#":
            return True
        if position >= len(requested_levels):
            return False
        level = requested_levels[position]
        if level == "#" or allowed not in ("+", level):
            return False
    return len(allowed_levels) == len(requested_levels)
