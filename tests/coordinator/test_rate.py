"""What an agent may send: ample for one that follows the protocol, little for one that floods."""

from __future__ import annotations

import math

from covey.coordinator.serve.rate import MAX_PART_BYTES, STATUSES, UNKNOWN_STATUSES, Rates
from covey.shared.mqtt.throttle import Bucket


def admitted(
    rates: Rates, seconds: float, per_s: float, size: int = 100, largest: int = 2 << 20
) -> int:
    return sum(rates.part("a", size, largest, now=i / per_s) for i in range(int(seconds * per_s)))


def test_a_bucket_gives_its_burst_at_once_and_its_rate_in_the_long_run() -> None:
    bucket = Bucket(per_s=2, burst=5, at=0.0)
    assert [bucket.take(1, 0.0) for _ in range(6)] == [True] * 5 + [False]
    assert bucket.ready_at(1) == 0.5
    assert not bucket.take(1, 0.4)
    assert bucket.take(1, 0.5)
    assert sum(bucket.take(1, 1000.0) for _ in range(10)) == 5


def test_a_clock_that_goes_back_gives_nothing_and_breaks_nothing() -> None:
    bucket = Bucket(per_s=1, burst=1, at=10.0)
    assert bucket.take(1, 10.0)
    assert not bucket.take(1, 5.0)
    assert bucket.take(1, 6.0)


def test_an_honest_agents_largest_report_passes_twice_at_once_in_parts_of_every_size() -> None:
    for part_bytes in (1024, 64 << 10, 512 << 10, 8 << 20):
        for report in (1000, 2 << 20, 300 << 20):
            rates = Rates(part_bytes)
            parts = math.ceil(report / part_bytes)
            size = min(report, part_bytes) + 64  # with what frames a part
            assert all(
                rates.part("a", size, max(report, 2 << 20), now=0.0) for _ in range(2 * parts)
            )


def test_a_report_that_was_stopped_by_the_limit_gets_through_when_it_is_sent_again() -> None:
    rates, largest = Rates(1024), 2 << 20
    parts = largest // 1024
    while rates.part("a", 1100, largest, now=0.0):  # a flood has emptied the buckets
        pass
    now, have = 0.0, set[int]()
    for retry_s in (2.0, 4.0, 8.0):
        now += retry_s
        have |= {part for part in range(parts) if rates.part("a", 1100, largest, now)}
    assert len(have) == parts


def test_a_flood_of_tiny_parts_is_cut_to_a_few_hundred_a_second() -> None:
    seconds, rates = 10.0, Rates(512 << 10)
    assert admitted(rates, seconds, per_s=4000) < 64 + 64 / 4 * seconds + 2


def test_a_flood_of_large_parts_is_cut_to_a_few_reports_a_second() -> None:
    largest, seconds = 2 << 20, 10.0
    passed = admitted(Rates(8 << 20), seconds, per_s=1000, size=8 << 20, largest=largest) * (
        8 << 20
    )
    budget = 3 * largest + 2 * MAX_PART_BYTES
    assert passed <= budget + budget / 4 * seconds + (8 << 20)


def test_one_agents_flood_costs_the_others_nothing() -> None:
    rates = Rates(512 << 10)
    while rates.status("rogue", 0.0):
        pass
    while rates.part("rogue", 100, 2 << 20, 0.0):
        pass
    assert rates.status("honest", 0.0)
    assert rates.part("honest", 100, 2 << 20, 0.0)


def test_statuses_of_an_agent_are_cut_to_a_rate_and_it_is_known_when_the_next_may_come() -> None:
    rates, per_s, burst = Rates(512 << 10), *STATUSES
    assert sum(rates.status("a", i / 4000) for i in range(40_000)) <= burst + per_s * 10 + 1
    due = rates.status_at("a")
    assert 9.99 < due < 10.0 + 1.1 / per_s
    assert rates.status("a", due + 1e-9)


def test_names_that_cost_nothing_share_one_allowance_in_messages_and_in_bytes() -> None:
    messages = Rates(512 << 10)
    assert (
        sum(messages.stranger(100, i / 4000) for i in range(40_000))
        <= UNKNOWN_STATUSES[1] + UNKNOWN_STATUSES[0] * 10 + 1
    )
    content = Rates(512 << 10)
    assert (
        sum(32_768 * content.stranger(32_768, i / 4000) for i in range(40_000))
        <= (16 + 2 * 10 + 1) << 20
    )
    assert len(messages) == 0


def test_agents_that_are_gone_leave_no_buckets() -> None:
    rates = Rates(512 << 10)
    for i in range(1000):
        rates.status(f"agent-{i}", 0.0)
        rates.part(f"agent-{i}", 100, 2 << 20, 0.0)
    assert len(rates) == 1000
    rates.keep({"agent-7"})
    assert len(rates) == 1
