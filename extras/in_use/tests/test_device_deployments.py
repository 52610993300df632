"""Which of the published models a device fetches."""

from __future__ import annotations

from typing import Any

import pytest

from covey.agent.device.events import (
    Adopt,
    DeploymentRefused,
    KeepDeployed,
    Notify,
    Subscribe,
    Unsubscribe,
)
from covey.agent.device.fetching import STALL_S
from covey.agent.device.session import Session
from covey.agent.policy import DEFAULT_RULES, OwnersRules, Policy
from covey.extras.in_use.deployments import AGAIN_S, SHARE_WAIT_S, Deployments
from covey.shared.errors import DecodeError
from covey.shared.mqtt.link import Up
from covey.shared.mqtt.subscriptions import TopicsRefused
from covey.shared.wire.deployments import Deployment, DeploymentShare
from covey.shared.wire.messages import digest
from covey.shared.wire.topics import Topics, deployed_key
from tests.agent.orders import CONTENTS, TASK, deployment, ref

TOPICS = Topics("default")
WALL = 1_800_000_000.0
DAY_MS = 86_400_000


def machine(settled: int = 0, rules: OwnersRules = DEFAULT_RULES) -> Deployments:
    return Deployments("pi", TOPICS, settled=settled, models=[], rules=rules)


def parts(*clusters: int) -> tuple[str, ...]:
    return tuple(f"{TOPICS.model(deployed_key(k))}/0" for k in clusters)


def names(*clusters: int) -> frozenset[bytes]:
    return frozenset(digest(CONTENTS[k]) for k in clusters)


def test_a_device_fetches_the_model_of_its_cluster_and_no_other() -> None:
    it = machine()
    assert it.seen(deployment(), 0.0, WALL) == []
    assert it.share_seen(DeploymentShare(serial=5, cluster=1), 0.5) == [
        KeepDeployed(names(1)),
        Subscribe(parts(1)),
    ]
    assert it.parts.subscribed == parts(1)
    assert it.judging == ""
    assert it.model_ready(digest(CONTENTS[1])) == [Unsubscribe(parts(1)), Adopt(deployment(), (1,))]
    assert it.judging == "run-1@3"
    assert it.wake_at is None
    assert it.settled(5) == [KeepDeployed(frozenset())], "the model file has what is needed"
    assert it.judging == ""
    assert it.seen(deployment(), 9.0, WALL) == [], "a settled one is never fetched again"
    assert machine(settled=5).seen(deployment(), 0.0, WALL) == [], "also not after a restart"


def test_a_device_in_no_cluster_fetches_all_models_after_a_while() -> None:
    it = machine()
    it.share_seen(DeploymentShare(serial=4, cluster=1), 0.0)  # of an earlier deployment
    assert it.seen(deployment(), 1.0, WALL) == []
    assert it.wake_at == 1.0 + SHARE_WAIT_S
    assert it.tick(1.0 + SHARE_WAIT_S)[1:] == [Subscribe(parts(0, 1))]
    assert it.model_ready(digest(CONTENTS[0])) == []
    assert it.model_ready(digest(CONTENTS[1]))[-1] == Adopt(deployment(), (0, 1))
    late = it.share_seen(DeploymentShare(serial=5, cluster=0), 9.0)
    assert late[-1] == Adopt(deployment(), (0,)), "its own document overrules the choice"


def test_a_single_model_is_for_all_agents_and_the_newest_counts() -> None:
    it = machine()
    assert Subscribe(parts(0)) in it.seen(deployment(5, 1), 0.0, WALL)
    assert it.seen(deployment(4, 1), 0.0, WALL) == []
    newer = it.seen(deployment(6, 1), 1.0, WALL)
    assert newer == [Unsubscribe(parts(0)), KeepDeployed(names(0)), Subscribe(parts(0))]
    it.settled(5)
    assert it.model_ready(digest(CONTENTS[0]))[-1] == Adopt(deployment(6, 1), (0,))


def test_a_candidate_counts_for_the_devices_that_it_names_and_the_greatest_serial_wins() -> None:
    it = machine()
    assert it.seen(deployment(6, 1, devices=["pi-2", "pi-3"]), 0.0, WALL) == []
    assert Subscribe(parts(0)) in it.seen(deployment(5, 1), 0.0, WALL)
    assert it.seen(deployment(7, 1, devices=["pi"]), 1.0, WALL) != []
    assert it.seen(deployment(5, 1), 2.0, WALL) == []
    assert it.seen(deployment(8, 1), 3.0, WALL) != [], "the next one for all ends it"
    assert TOPICS.candidate in it.own_topics


def test_models_that_a_device_has_already_are_not_fetched() -> None:
    """The next publication to all ends a trial on a few devices, and the others keep what they have."""
    it = Deployments("pi", TOPICS, settled=0, models=[], rules=DEFAULT_RULES, has=lambda _: True)
    assert it.seen(deployment(), 0.0, WALL) == [Adopt(deployment(), ())]
    assert it.judging == "", "there is nothing to judge"
    assert it.settled(5) == [KeepDeployed(frozenset())]
    assert it.share_seen(DeploymentShare(serial=5, cluster=1), 1.0) == []
    refused = Deployments(
        "pi", TOPICS, settled=0, models=[], rules=OwnersRules(Policy()), has=lambda _: True
    )
    code = deployment(task={**TASK.for_agents(), "model": {"name": "os:system"}})
    assert DeploymentRefused(code) in refused.seen(code, 0.0, WALL)


def test_parts_that_do_not_arrive_are_subscribed_again_and_damage_is_fetched_again() -> None:
    it = machine()
    it.seen(deployment(5, 1), 0.0, WALL)
    assert it.tick(STALL_S) == [Subscribe(parts(0))]
    assert it.wake_at == STALL_S + 2 * STALL_S
    it.part_arrived(parts(0)[0], digest(CONTENTS[0]), 4.0)
    assert it.wake_at == 4.0 + STALL_S
    it.model_ready(digest(CONTENTS[0]))
    assert Subscribe(parts(0)) in it.model_damaged(digest(CONTENTS[0]), 5.0)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"task": {**TASK.for_agents(), "model": {"name": "os:system"}}}, "os:system"),
        ({"layout": {"trainable": 1, "tensors": [["w", [10**9]]]}}, "max_model_values"),
    ],
)
def test_a_deployment_that_breaks_the_rules_of_the_device_is_refused(
    changes: dict[str, Any], why: str
) -> None:
    it = machine(rules=OwnersRules(Policy()))
    notice, shown = it.seen(deployment(**changes), 0.0, WALL)
    assert shown == DeploymentRefused(deployment(**changes))
    assert isinstance(notice, Notify)
    assert why in notice.text
    assert it.wake_at is None
    assert it.seen(deployment(**changes), 1.0, WALL) == [shown], "it is said once"
    assert it.seen(deployment(4, 1), 2.0, WALL) != [], (
        "and settles nothing: an earlier serial may follow"
    )


@pytest.mark.parametrize("settled", [0, 2**53 - 1])
def test_a_serial_of_the_future_freezes_no_device(settled: int) -> None:
    """Before: one publication with the serial 2^53 - 1 made a device deaf to promote and rollback for good."""
    it, now_ms = machine(settled=settled), int(WALL * 1000)
    [notice] = it.seen(deployment(2**53 - 1, 1), 0.0, WALL)
    assert isinstance(notice, Notify)
    assert "check the clock" in notice.text
    assert it.seen(deployment(now_ms + DAY_MS + 1, 1), 0.0, WALL) != []
    assert Subscribe(parts(0)) in it.seen(deployment(now_ms, 1), 1.0, WALL)


def test_a_device_whose_clock_is_set_later_takes_what_it_refused_before() -> None:
    it, now_ms = machine(), int(WALL * 1000)
    assert len(it.seen(deployment(now_ms, 1), 0.0, 0.0)) == 1
    assert it.tick(AGAIN_S) == [Subscribe(it.own_topics)]
    assert Subscribe(parts(0)) in it.seen(deployment(now_ms, 1), AGAIN_S, WALL)
    assert it.tick(2 * AGAIN_S) != [Subscribe(it.own_topics)]


def test_a_deployment_names_models_for_use_only() -> None:
    broken = deployment().model_copy(update={"models": [ref("0", CONTENTS[0])]})
    with pytest.raises(DecodeError, match="deployed-"):
        Deployment.from_bytes(broken.to_bytes())


def test_a_broker_that_withholds_deployments_does_not_keep_the_agent_out() -> None:
    it = machine()
    session = Session("pi", TOPICS, session="s1", deployments=it)
    session.handle(Up(), 0.0)
    actions = session.handle(TopicsRefused(it.own_topics), 1.0)
    assert [type(action) for action in actions] == [Notify]
    assert session.status.problem is None
    both = (TOPICS.order("pi"), *it.own_topics)
    session.handle(TopicsRefused(both), 2.0)
    assert session.status.problem is not None
    session.handle(TopicsRefused(it.own_topics), 3.0)
    assert session.status.problem is None
