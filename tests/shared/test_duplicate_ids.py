"""Two programs with one id: which one stays, which one yields the id, and which messages prove nothing."""

from covey.shared.mqtt.duplicate_ids import PATIENCE_S, DuplicateIds, Reaction, session_id

OLD, NEW = session_id(1_000.0, "ff"), session_id(1_000.001, "00")


def test_of_two_sessions_the_older_sorts_first() -> None:
    assert OLD < NEW < session_id(1e10, "")


def test_the_older_one_speaks_whenever_it_hears_a_younger_one() -> None:
    older = DuplicateIds(OLD)
    assert [older.observe(NEW, now) for now in (0.0, 1.0, 100.0)] == [Reaction.ANNOUNCE] * 3
    assert older.announce_at is None


def test_the_older_one_answers_a_flood_once_a_second() -> None:
    """Of 7 000 statuses a second each was answered by one, which every listener got as well."""
    older = DuplicateIds(OLD)
    heard = [older.observe(NEW, now / 1000) for now in range(3000)]
    assert heard.count(Reaction.ANNOUNCE) == 3
    assert older.announce_at is not None  # the last ones of a flood are answered too


def test_the_younger_one_gives_way_to_an_older_one_that_is_still_there_after_a_while() -> None:
    younger = DuplicateIds(NEW)
    assert younger.observe(OLD, 10.0) is Reaction.WAIT
    assert younger.announce_at == 10.0 + PATIENCE_S
    assert younger.observe(OLD, 10.0 + PATIENCE_S / 2) is Reaction.WAIT
    assert younger.observe(OLD, 10.0 + PATIENCE_S) is Reaction.YIELD_ID


def test_the_last_words_of_an_earlier_life_are_waited_out() -> None:
    younger = DuplicateIds(NEW)
    assert {younger.observe(OLD, PATIENCE_S * share) for share in (0.0, 0.1, 0.9)} == {
        Reaction.WAIT
    }
