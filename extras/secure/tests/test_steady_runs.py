"""Runs whose agents answer no two sums that differ by few members."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from covey.agent.policy import OwnersRules, Policy, PrivacyDemand
from covey.coordinator.run.run import Run
from covey.coordinator.simulate.virtual_clock import Driver
from covey.extras.secure.tests.secure_run import Failing, ends, scene, sums
from covey.shared.errors import PublicError
from covey.shared.strategies.base import ClientId
from covey.shared.wire.messages import OrderMessage, ReportContent
from tests.kit import small_run
from tests.kit.local_clients import Client

STEADY = OwnersRules(Policy(privacy=PrivacyDemand(secure_steady=True)))


class Steady(Failing):
    def client(self, run: Run, client: ClientId, order: OrderMessage) -> Client:
        return replace(super().client(run, client, order), rules=STEADY)

    def work(self, run: Run, client: ClientId, order: OrderMessage) -> ReportContent:
        try:
            return super().work(run, client, order)
        except PublicError as refusal:
            return ReportContent.failed(order, client, str(refusal))


def steady_run(folder: Path, fail: dict[tuple[str, int], int], count: int) -> list[list[str]]:
    """Eight agents, of whom the first ones fail in a phase of a round: how its sums ended."""
    this = scene(rounds={"count": count})
    run = Run.start(
        folder, this, small_run.setup(this), rules=small_run.rules(this), run="in-process", now=0.0
    )
    Driver(run, Steady(fail)).complete(small_run.samples_of(small_run.clients()))
    return ends(folder)


def test_a_round_that_others_took_part_in_is_passed_over_and_the_next_one_counts(
    tmp_path: Path,
) -> None:
    found = steady_run(tmp_path, {("train", 1): 2}, 3)
    assert found == [["sum"], ["passed over: 0 members answered, 5 must"], ["sum"]]


@pytest.mark.parametrize("phase", ["secure-join", "secure-unmask"])
def test_who_is_late_in_another_phase_does_not_end_the_run(tmp_path: Path, phase: str) -> None:
    found = steady_run(tmp_path, {(phase, 1): 1}, 3)
    whole = phase == "secure-unmask"  # its report was there
    assert [end[0] == "sum" for end in found] == [True, whole, True]


def test_members_that_are_gone_for_good_cost_nothing(tmp_path: Path) -> None:
    found = steady_run(tmp_path, {("train", number): 2 for number in range(3)}, 3)
    assert found == [["sum"]] * 3
    assert len(sums(tmp_path)[0][0]["reported"]) == 6
