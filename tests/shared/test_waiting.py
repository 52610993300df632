"""When a run shows what it waits for."""

from __future__ import annotations

from covey.shared.programs.timers import Waiting


def shown(waiting: Waiting, reasons: dict[int, str], seconds: int) -> list[tuple[int, str, float]]:
    """The reasons that are shown in these seconds; `reasons` begin at their second."""
    why = ""
    found = []
    for now in range(seconds):
        why = reasons.get(now, why)
        one = waiting.reason(why, float(now))
        if one is not None:
            found.append((now, *one))
    return found


def test_a_reason_that_lasts_is_shown_again_with_its_time() -> None:
    assert shown(Waiting(), {0: "2 of 3"}, 300) == [
        (5, "2 of 3", 5.0),
        (65, "2 of 3", 65.0),
        (185, "2 of 3", 185.0),
    ]


def test_a_new_reason_is_shown_soon_and_a_short_one_never() -> None:
    reasons = {0: "1 of 3", 3: "2 of 3", 20: "3 are away", 22: "", 30: "2 of 3"}
    assert shown(Waiting(), reasons, 40) == [(5, "2 of 3", 5.0), (35, "2 of 3", 5.0)]


def test_patience_ends_after_a_wait_without_a_break_whatever_its_reasons_are() -> None:
    waiting = Waiting(limit_s=60.0)
    assert waiting.gives_up_at is None
    waiting.reason("0 of 3", 10.0)
    waiting.reason("1 of 3", 50.0)
    assert waiting.gives_up_at == 70.0
    waiting.reason("", 60.0)
    assert waiting.gives_up_at is None
    waiting.reason("2 of 3", 65.0)
    assert waiting.gives_up_at == 125.0
