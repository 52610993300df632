"""A running program reports why it cannot come back, and that its broker drops what it acknowledges: the decisions."""

from __future__ import annotations

import pytest

from covey.shared.mqtt.acknowledgements import SUSPECT, Losses
from covey.shared.mqtt.backoff import EVERY_S, Reasons
from covey.shared.mqtt.profiles import HEAD_BYTES, UNLIMITED
from covey.shared.mqtt.read_back import BUSY_BYTES, LOOKS, ReadBack

STATUS = "covey/f/agents/a/status"


def reported(*attempts: tuple[float, str, bool]) -> list[str]:
    """The reasons that are reported, of attempts with their times and whether the broker gave the reason."""
    reasons = Reasons()
    return [why for now, why, given in attempts if reasons.reports(why, now, given=given)]


def test_the_first_reason_is_reported_at_once_and_again_only_if_it_changes() -> None:
    assert reported(*[(float(now), "lost", False) for now in range(300)]) == ["lost"]


def test_a_reason_that_the_broker_gives_is_reported_at_once_after_the_loss() -> None:
    assert reported((0, "lost", False), (0.1, "expired", True)) == ["lost", "expired"]


def test_a_better_reason_that_lasts_is_reported_within_a_minute_and_one_that_does_not_is_not() -> (
    None
):
    unresolved = [(float(now), "no such name", False) for now in range(1, 200)]
    assert reported((0, "lost", False), *unresolved) == ["lost", "no such name"]
    assert reported((0, "lost", False), (1, "refused", False), (2, "lost", False)) == ["lost"]


def test_reasons_that_alternate_are_reported_once_a_minute_at_most() -> None:
    attempts = [(float(now), "ab"[now % 2], now % 2 == 0) for now in range(600)]
    assert len(reported(*attempts)) <= 2 + 600 / EVERY_S


def heard(back: ReadBack, payload: bytes = b"1") -> ReadBack:
    """With one message that was published and acknowledged."""
    back.subscribed({STATUS})
    back.published(STATUS, payload)
    back.acknowledged(STATUS, payload)
    return back


def looks(back: ReadBack, count: int = LOOKS) -> list[bool]:
    return [back.look() for _ in range(count)]


def test_a_message_that_is_acknowledged_and_does_not_come_back_is_reported_once() -> None:
    back = heard(ReadBack())
    assert looks(back) == [False] * (LOOKS - 1) + [True]
    assert back.missing == STATUS
    assert not any(looks(back, 100))


def test_a_status_that_comes_back_does_not_excuse_a_model_that_does_not() -> None:
    model = "covey/f/clusters/0/model/0"
    back = ReadBack()
    back.subscribed({STATUS, model})
    for topic, payload in ((model, bytes(900)), (STATUS, b"1")):
        back.published(topic, payload)
        back.acknowledged(topic, payload)
    assert not back.arrived(STATUS, b"1")
    assert any(looks(back))
    assert back.missing == model
    assert back.arrived(model, bytes(900))


def test_a_message_that_comes_back_even_before_its_acknowledgement_is_no_news() -> None:
    back = ReadBack()
    back.subscribed({STATUS})
    back.published(STATUS, b"1")
    assert not back.arrived(STATUS, b"1")
    back.acknowledged(STATUS, b"1")
    assert not back.waits
    assert not any(looks(back, 100))


def test_a_message_retained_from_an_earlier_connection_proves_nothing() -> None:
    back = heard(ReadBack(), b"new")
    assert not back.arrived(STATUS, b"old")
    assert any(looks(back))


def test_a_broker_that_delivers_again_is_reported_once() -> None:
    back = heard(ReadBack())
    looks(back)
    back.published(STATUS, b"2")
    assert back.arrived(STATUS, b"2")
    assert not back.missing
    assert not back.arrived(STATUS, b"2")


def test_a_topic_that_may_not_be_read_and_one_that_is_not_acknowledged_are_not_waited_for() -> None:
    back = ReadBack()
    back.published(STATUS, b"1")  # the broker refused the subscription
    back.acknowledged(STATUS, b"1")
    back.subscribed({"late"})
    back.published("late", b"1")  # 20 kB/s: other messages leave first
    assert not any(looks(back, 100))


def test_a_slow_link_on_which_much_arrives_is_no_silence() -> None:
    back = heard(ReadBack())
    for _ in range(100):
        back.arrived("covey/f/clusters/0/model/0", bytes(BUSY_BYTES))
        assert not back.look()
    assert any(looks(back))


def test_small_messages_of_others_do_not_hide_that_ours_are_dropped() -> None:
    back, is_reported = heard(ReadBack()), False
    for _ in range(LOOKS):
        back.arrived("covey/f/agents/b/status", bytes(500))
        is_reported = back.look()
    assert is_reported


def test_a_program_that_was_frozen_has_looked_once() -> None:
    back = heard(ReadBack())
    assert not back.look()  # after 70 s: what waits in the socket is read before the next look
    assert not back.arrived(STATUS, b"1")
    assert not any(looks(back, 100))


def test_the_messages_that_are_awaited_are_bounded() -> None:
    back = ReadBack()
    back.subscribed({STATUS})
    for number in range(1000):
        back.published(STATUS, b"%d" % number)
    assert "8 awaited" in repr(back)
    back.unsubscribed({STATUS})
    assert not back.waits


def lost_over(*topics: str, size: int = 9000) -> Losses:
    """Connections that ended with a message to one of these topics under way; "": with none."""
    losses = Losses()
    for topic in topics:
        if topic:
            losses.leaves(topic, size)
        losses.ended()
        if topic:
            losses.left(topic, size, taken=False)
    return losses


@pytest.mark.parametrize(
    ("topics", "is_suspect"),
    [
        (["m"] * SUSPECT, True),
        (["m"] * (SUSPECT - 1), False),
        (["m", "n"], False),
        (["m", "", "m"], False),
        (["", ""], False),
    ],
)
def test_a_message_is_suspected_when_connections_end_over_it_in_a_row(
    topics: list[str], is_suspect: bool
) -> None:
    assert lost_over(*topics).is_suspect == is_suspect


def test_a_message_that_was_taken_is_not_suspected() -> None:
    losses = lost_over("m")
    losses.leaves("m", 9000)
    losses.left("m", 9000, taken=True)
    losses.leaves("m", 9000)
    losses.ended()
    assert not losses.is_suspect


def test_the_sentence_names_the_limit_only_where_the_message_exceeds_it() -> None:
    losses = lost_over("m", "m")
    assert "9000 bytes to m" in losses.why(UNLIMITED)
    assert "broker doctor" in losses.why(UNLIMITED)
    assert f"at most {2000 + HEAD_BYTES} bytes" in losses.why(2000)
    assert "max_packet_size" in losses.why(2000)
    assert "not the reason" in losses.why(9000)
