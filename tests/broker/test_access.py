"""Who may use which topic: the rules as data, and the same rules in both brokers."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.broker.access import acl, passwords
from covey.shared.errors import UserError

BASE = "covey/f"


@pytest.mark.parametrize(
    ("user", "action", "topic", "wanted"),
    [
        ("coordinator", "write", f"{BASE}/agents/pi/order", True),
        ("coordinator", "read", f"{BASE}/agents/pi/report/0", True),
        ("coordinator", "write", "elsewhere", False),
        ("pi", "write", f"{BASE}/agents/pi/status", True),
        ("pi", "write", f"{BASE}/agents/pi/report/0", True),
        ("pi", "write", f"{BASE}/agents/pi/report/3", False),
        ("pi", "write", f"{BASE}/agents/pi/report/0/more", False),
        ("pi", "write", f"{BASE}/agents/pi/order", False),
        ("pi", "write", f"{BASE}/agents/other/status", False),
        ("pi", "write", f"{BASE}/coordinator/status", False),
        ("pi", "write", f"{BASE}/clusters/0/model/0", False),
        ("pi", "write", f"{BASE}/control", False),
        ("pi", "read", f"{BASE}/agents/pi/order", True),
        ("pi", "read", f"{BASE}/agents/other/model/0", False),
        ("pi", "read", f"{BASE}/clusters/0/model/0", True),
        ("pi", "read", f"{BASE}/coordinator/status", True),
        ("+", "read", f"{BASE}/agents/pi/order", False),
        ("", "read", f"{BASE}/clusters/0/model/0", False),
    ],
)
def test_the_rules(user: str, action: acl.Action, topic: str, wanted: bool) -> None:
    assert acl.allows(user, action, topic) is wanted


def test_a_password_file_with_a_strange_line_is_refused_with_its_number(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text(f"a:{passwords.hash_password('x')}\nplain:text\n")
    with pytest.raises(UserError, match="line 2"):
        passwords.read(file)


def test_the_rules_of_ten_thousand_agents_are_few_lines() -> None:
    """Mosquitto reads lines of single users in quadratic time: it did not start with those of 10 000."""
    members = {f"pi-{number}": acl.AclUser("agent", "default") for number in range(10_000)}
    members |= {
        "watch": acl.AclUser("observer", "default"),
        "far": acl.AclUser("agent", "elsewhere"),
    }
    rendered = acl.render(members)
    assert len(rendered.splitlines()) < 50
    assert "topic deny covey/default/agents/far/status" in rendered
    assert "topic deny covey/default/clusters/+/model/+" in rendered
    assert "pattern write covey/default/agents/%u/report/0" in rendered


@pytest.mark.parametrize(
    ("user", "wanted", "allowed"),
    [
        ("pi", "covey/f/agents/pi/order", True),
        ("pi", "covey/f/agents/pi/model/+", True),
        ("pi", "covey/f/agents/pi/#", False),
        ("pi", "covey/f/agents/+/order", False),
        ("pi", "#", False),
        ("pi", "+/+/+/+/+", False),
        ("coordinator", "covey/f/agents/+/report/+", True),
        ("coordinator", "#", False),
        ("pi", f"covey/f/clusters/{'x' * 600}/model/0", False),
    ],
)
def test_a_filter_is_granted_where_one_rule_covers_all_of_it(
    user: str, wanted: str, allowed: bool
) -> None:
    assert acl.allows_subscription(user, wanted) is allowed
