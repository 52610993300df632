import pytest

from covey.broker.topic_filters import Retained, Subscriptions, is_filter, is_topic, matches


@pytest.mark.parametrize(
    ("pattern", "topic", "wanted"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/b/c", False),
        ("a/+", "a/b", True),
        ("a/+", "a/", True),
        ("a/+", "a/b/c", False),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("+/+", "/a", True),
        ("#", "a/b", True),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("$SYS/#", "$SYS/x", True),
    ],
)
def test_filters_match_as_the_standard_requires(pattern: str, topic: str, wanted: bool) -> None:
    assert matches(pattern, topic) is wanted


@pytest.mark.parametrize("wrong", ["", "a#", "a/#/b", "a+/b", "a/b+", "\0"])
def test_malformed_filters_are_refused(wrong: str) -> None:
    assert not is_filter(wrong)


@pytest.mark.parametrize("wrong", ["", "a/+", "#", "a\0", "a" * 65536])
def test_malformed_topics_are_refused(wrong: str) -> None:
    assert not is_topic(wrong)


def test_overlapping_filters_deliver_once_at_the_highest_qos() -> None:
    held: Subscriptions[str] = Subscriptions()
    held.add("a/+", "x", 0)
    held.add("a/#", "x", 1)
    held.add("a/b", "y", 0)
    assert held.holders_of("a/b") == {"x": 1, "y": 0}
    held.remove("a/#", "x")
    assert held.holders_of("a/b") == {"x": 0, "y": 0}


def test_an_empty_payload_clears_a_retained_topic() -> None:
    kept = Retained()
    kept.keep("a/b", b"1")
    kept.keep("a/c", b"2")
    assert dict(kept.matching("a/+")) == {"a/b": b"1", "a/c": b"2"}
    kept.keep("a/b", b"")
    assert dict(kept.matching("a/+")) == {"a/c": b"2"}
    assert dict(kept.matching("a/b")) == {}
