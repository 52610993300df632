"""Agents that spoil sums: they are found in few rounds, innocent ones are never named, and the others have sums."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import covey.extras.secure.on_device as on_device
from covey.coordinator.report.tables import none_evaluated
from covey.coordinator.run.result import result_of
from covey.coordinator.run.run import Run
from covey.extras.doctor.of_run import at_the_end
from covey.extras.secure.grouping import Grouping
from covey.extras.secure.integers import Integers, to_integers
from covey.extras.secure.parameters import Scale
from covey.extras.secure.progress import Progress
from covey.extras.secure.suspicion import Suspicion
from covey.extras.secure.tests.liars import fleet, play
from covey.extras.secure.tests.live import Devices, made, record, run_of, sums
from covey.shared.privacy.settings import ClientPrivacy, SecureSettings
from covey.shared.wire.messages import OrderMessage, ReportContent

SIZES = [8, 20, 100]


@pytest.mark.parametrize("count", SIZES)
def test_one_liar_is_named_within_a_few_rounds_more_than_the_logarithm(count: int) -> None:
    agents = fleet(count)
    for liar in agents:
        found = play(agents, [liar])
        assert found.named.keys() == {liar}
        assert found.rounds <= math.ceil(math.log2(count)) + 2
        assert not found.is_stuck


@given(
    st.sampled_from(SIZES),
    st.integers(0, 2),
    st.sampled_from([0.0, 0.1, 0.3]),
    st.integers(0, 10**6),
)
@example(8, 2, 0.0, 7)  # an agent that is with both in turn
def test_innocent_agents_are_never_named(count: int, liars: int, gone: float, seed: int) -> None:
    agents = fleet(count)
    lying = random.Random(seed).sample(agents, liars)  # noqa: S311
    found = play(agents, lying, gone=gone, seed=seed)
    assert found.named.keys() <= set(lying)


@given(st.sampled_from(SIZES), st.floats(0.1, 0.9), st.integers(0, 10**6))
def test_one_agent_that_lies_now_and_then_has_no_other_named(
    count: int, lies: float, seed: int
) -> None:
    agents = fleet(count)
    [liar] = random.Random(seed).sample(agents, 1)  # noqa: S311
    found = play(agents, [liar], gone=0.1, lies=lies, seed=seed)
    assert found.named.keys() <= {liar}


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("gone", [0.1, 0.3])
def test_one_liar_is_named_where_agents_drop_out(count: int, gone: float) -> None:
    agents = fleet(count)
    runs = [play(agents, [agents[seed % count]], gone=gone, seed=seed) for seed in range(40)]
    moved = [found for found in runs if not found.is_stuck]
    assert len(moved) >= (0.6 if count == 8 else 0.95) * len(runs)
    assert np.median([found.rounds for found in moved]) <= 3 * math.log2(count)


# -- with real devices -------------------------------------------------------------------------------------------------


EIGHT = tuple(f"a{number}" for number in range(1, 9))
ROUNDS = {"count": 8, "participation": 1.0, "start_agents": 8}


def lie(monkeypatch: pytest.MonkeyPatch, *liars: str, weight: bool = False) -> None:
    """These devices send random integers, or a weight that nobody may have."""
    who: list[str] = []
    work, honest = Devices.work, to_integers
    random_bits = np.random.default_rng(1)

    def worked(self: Devices, run: Run, client: str, order: OrderMessage) -> ReportContent:
        who[:] = [client]
        return work(self, run, client, order)

    def lied(update: np.ndarray, examples: int, scale: Scale) -> Integers:
        integers = honest(update, examples, scale)
        if who[0] in liars and weight:
            integers[-2] = 4_000_000_000
        elif who[0] in liars:
            integers = random_bits.integers(0, 1 << 32, integers.size, dtype=np.uint32)
        return integers

    monkeypatch.setattr(Devices, "work", worked)
    monkeypatch.setattr(on_device, "to_integers", lied)


@pytest.mark.parametrize("weight", [False, True])
def test_a_liar_is_in_quarantine_and_named_and_every_round_has_a_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weight: bool
) -> None:
    lie(monkeypatch, "a5", weight=weight)
    devices = Devices(tmp_path, "privacy={secure_least: 3}", agents=EIGHT)
    run = run_of(devices, "run", rounds=ROUNDS)
    assert run.members.quarantined.keys() == {"a5"}
    assert "sums with it were out of range" in run.members.quarantined["a5"]
    lines = record(tmp_path / "run")
    [named] = [line for line in lines if line.get("event") == "quarantined"]
    assert (named["agent"], named["round"] <= 4) == ("a5", True)
    [odd] = at_the_end(run, {})
    assert (odd.devices, "in quarantine" in odd.what) == (("a5",), True)
    by_round = [
        [one["end"] for one in line["notes"]["secure"]]
        for line in lines
        if line.get("phase") == "secure-unmask" and "evaluation" not in line
    ]
    assert len(by_round) == 8
    assert all("sum" in ends for ends in by_round)
    assert all(set(ends) == {"sum"} for ends in by_round[4:])
    assert devices.failures == []
    assert run.strategy.failure(run.state) == ""


def test_a_run_without_any_sum_has_come_to_nothing_with_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lie(monkeypatch, *EIGHT)
    devices = Devices(tmp_path, "privacy={secure_least: 3}", agents=EIGHT)
    run = run_of(devices, "run", rounds={**ROUNDS, "count": 2})
    why = none_evaluated(result_of(run, None).to_json())
    assert why.startswith("no sum of updates was opened in 2 rounds: the models are those of")
    assert "privacy.secure.group below 4" in why


def test_devices_that_demand_more_than_half_of_them_are_one_group(tmp_path: Path) -> None:
    devices = Devices(tmp_path, "privacy={secure_least: 5}", agents=EIGHT)
    [one] = sums(made(devices, "run", rounds={**ROUNDS, "count": 1}))
    assert (one["end"], len(one["reported"]), devices.failures) == ("sum", 8, [])


def test_ten_devices_that_demand_five_are_two_groups_of_five(tmp_path: Path) -> None:
    ten = tuple(f"a{number:02}" for number in range(10))
    devices = Devices(tmp_path, "privacy={secure_least: 5}", agents=ten)
    rounds = {**ROUNDS, "count": 1, "start_agents": 10}
    found = sums(made(devices, "run", rounds=rounds))
    assert [(one["end"], len(one["reported"])) for one in found] == [("sum", 5)] * 2
    assert devices.failures == []


def drawn(demands: Mapping[str, int], noise: ClientPrivacy | None = None) -> list[tuple[int, int]]:
    grouping = Grouping(SecureSettings(), noise, lambda _: 0, demands)
    return [(len(some), least) for some, least in grouping.drawn([*demands], "0", Progress())]


def test_who_demands_more_is_in_a_group_of_that_many_and_nobody_can_keep_all_in_one() -> None:
    asks = {**dict.fromkeys(fleet(8), 3), "agent-004": 5}
    assert drawn(asks) == [(5, 5), (3, 3)]
    assert drawn({**asks, "agent-004": 512}) == [(4, 3)] * 2  # no group of these could serve it


def test_under_noise_there_is_one_group_because_each_bears_all_of_it() -> None:
    assert drawn(dict.fromkeys(fleet(20), 3), ClientPrivacy()) == [(20, 3)]


def test_an_agent_that_is_forgotten_is_in_no_suspicion() -> None:
    known = Suspicion([["a1", "a2"], ["a3", "a4"]], ["a1", "a3"])
    assert known.without(["a1"]) == Suspicion([["a3", "a4"]], ["a3"])
