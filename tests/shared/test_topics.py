from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.shared.errors import DecodeError
from covey.shared.wire.topics import AgentTopic, ClusterTopic, PlainTopic, Topics, is_name

TREE = Topics("home")
ALPHABET = "AZaz09._-"
NAMES = st.builds("{}{}".format, st.sampled_from("AZaz09"), st.text(ALPHABET, max_size=63))
PARTS = st.integers(0, 1 << 20)


def refused(topic: str) -> bool:
    with pytest.raises(DecodeError) as refusal:
        TREE.parse(topic)
    return refusal.value.reason == "topic"


@given(federation=NAMES, agent=NAMES, part=PARTS)
def test_every_topic_that_is_built_is_parsed_back(federation: str, agent: str, part: int) -> None:
    tree = Topics(federation)
    assert tree.parse(tree.status(agent)) == AgentTopic(agent, "status")
    assert tree.parse(tree.order(agent)) == AgentTopic(agent, "order")
    assert tree.parse(tree.report(agent, part)) == AgentTopic(agent, "report", part)
    assert tree.parse(f"{tree.model('@' + agent)}/{part}") == AgentTopic(agent, "model", part)
    assert tree.parse(f"{tree.model(agent)}/{part}") == ClusterTopic(agent, part)
    assert tree.parse(tree.coordinator_status) == PlainTopic("coordinator/status")
    assert tree.parse(tree.metrics) == PlainTopic("run/metrics")
    assert tree.parse(tree.control) == PlainTopic("control")
    assert tree.parse(tree.candidate) == PlainTopic("deployment/candidate")


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "covey",
        "covey/home",
        "covey/home/",
        "covey/other/control",
        "covey/home/agents/a",
        "covey/home/agents//status",
        "covey/home/agents/a/status/",
        "covey/home/agents/+/status",
        "covey/home/agents/a/report/01",
        "covey/home/agents/a/report/-1",
        "covey/home/agents/a/report/٣",
        "covey/home/agents/a/report/12345678",
        "covey/home/clusters/@a/model/0",
        "covey/home/clusters/../model/0",
        "covey/home/agents/a\x00/status",
    ],
)
def test_a_topic_outside_the_tree_is_refused(topic: str) -> None:
    assert refused(topic)


def test_a_topic_of_another_federation_is_not_taken_for_ours() -> None:
    assert refused("coordinator/status")
    assert refused("control")
    assert refused("agents/a/status")


@given(text=st.text(max_size=40))
def test_any_text_is_a_topic_or_refused(text: str) -> None:
    for topic in (text, f"{TREE.base}/{text}", f"{TREE.base}/agents/{text}"):
        with contextlib.suppress(DecodeError):
            assert TREE.parse(topic)


@pytest.mark.parametrize(
    "text", ["", ".a", "-a", "_a", "a/b", "a+", "#", "a b", "é", "a\n", "x" * 65]
)
def test_a_name_that_would_bend_the_tree_is_no_name(text: str) -> None:
    assert not is_name(text)


def test_wildcards_cover_just_what_is_meant() -> None:
    assert (TREE.every_status, TREE.every_report) == (
        "covey/home/agents/+/status",
        "covey/home/agents/+/report/+",
    )
