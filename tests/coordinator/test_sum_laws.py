"""Laws of sums: with each maker of sums, and in any order of reports, a fold has the same bytes.

Each phase of a small run of each averaging method is folded again: from sums of reports that were added as they came, or
by aggregators; and from the spool by a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.coordinator.disk.spool import Circumstances, Spool, SummedVectors
from covey.coordinator.fold import limits
from covey.coordinator.fold.folding import Folding, Sound
from covey.shared.numerics.accumulator import Accumulator
from covey.shared.numerics.averages import Average
from covey.shared.scenario.scenario import Scenario
from covey.shared.seeds import generator
from covey.shared.strategies.base import ClientId, Phase
from covey.shared.strategies.client_half import Report
from covey.shared.strategies.reading import folded, is_whole
from covey.shared.strategies.registry import BUILT_IN
from tests.drive import Run, fingerprint
from tests.kit.small_run import clients, scenario, setup
from tests.methods import METHODS, of_each_kind

Reports = Sequence[tuple[ClientId, Report]]
Make = Callable[[Folding, Spool, Any, Reports], None]
AVERAGING = [
    name
    for name, options in METHODS.items()
    if not BUILT_IN[options.get("name", name)].facts.individual
]
STEP = 1


@cache
def folds_of(method: str) -> list[tuple[Any, Phase, Reports]]:
    """State, phase and reports of each fold of a small run."""
    scene = scenario(method)
    return list(Run(scene.strategy, setup(scene), clients(scene=scene)).rounds(3).folds)


def on_arrival(folding: Folding, spool: Spool, state: Any, reports: Reports) -> None:
    """Each report is added as it comes; the first one was taken out and came again."""
    for client, one in [*reports[:1], *reports]:
        folding.remove(client)
        spool.keep(STEP, client, one, Circumstances(0.0))
        folding.add(client, one, state)


def merged(folding: Folding, spool: Spool, state: Any, reports: Reports) -> None:
    """Two of three reports come in sums of two aggregators."""
    strategy = folding.scenario.strategy
    phase = folding.phase
    shards: list[list[tuple[ClientId, Report]]] = [[], []]
    for place, (client, report) in enumerate(reports):
        if place % 3 == 0 or is_whole(strategy, strategy.order(state, phase, client)):
            spool.keep(STEP, client, report, Circumstances(0.0))
            folding.add(client, report, state)
        else:
            shards[place % 2].append((client, report))
    for shard in shards:
        sums = Accumulator()
        norms = {}
        for client, report in shard:
            order = strategy.order(state, phase, client)
            terms = strategy.terms(state, phase, client, report) if phase.sizes else ()
            for term in terms:
                sums.add(term.key, term.part(report.vectors), term.weight)
            steps = limits.Distances(strategy).of(
                state, phase, client, report=report, order=order, terms=terms
            )
            norms[client] = {step.name: step.norm for step in steps}
        bare = [(c, replace(r, vectors=SummedVectors(phase.sizes))) for c, r in shard]
        arrived = {c: folding.seen(c, r, state, norms[c]) for c, r in bare}
        folding.merge(arrived, Accumulator.from_bytes(sums.to_bytes()))
        spool.hold(STEP, [(c, r, Circumstances(0.0)) for c, r in bare])


def from_the_spool(folding: Folding, spool: Spool, state: Any, reports: Reports) -> None:
    folding.give_up()
    for client, report in reports:
        spool.keep(STEP, client, report, Circumstances(0.0))


def state_after(
    folder: Path,
    scene: Scenario,
    make: Make,
    state: Any,
    phase: Phase,
    reports: Reports,
    privacy: Any = None,
) -> list[Any]:
    spool = Spool(folder)
    spool.durable = False
    folding = Folding(scene, spool, STEP, phase, privacy=privacy)
    make(folding, spool, state, reports)
    verdict = folding.close(sorted(client for client, _ in reports), phase, state)
    assert isinstance(verdict, Sound), verdict
    return fingerprint(verdict.outcome.state)


def in_orders(reports: Reports) -> list[Reports]:
    """As they are, backwards, and drawn."""
    drawn = generator(4, "order of arrival").permutation(len(reports)).tolist()
    return [reports, reports[::-1], [reports[place] for place in drawn]]


@pytest.mark.parametrize("make", [on_arrival, merged, from_the_spool])
@pytest.mark.parametrize("method", of_each_kind("makers", AVERAGING))
def test_every_maker_gives_the_bytes_of_a_fold_of_all_reports_at_once(
    method: str, make: Make, tmp_path: Path
) -> None:
    scene = scenario(method)
    for number, (state, phase, reports) in enumerate(folds_of(method)):
        fair = limits.capped(reports, scene.aggregation)
        average = scene.aggregation.average
        expected = fingerprint(folded(scene.strategy, state, phase, reports=fair, average=average))
        for place, shuffled in enumerate(in_orders(reports)):
            folder = tmp_path / f"{number}-{place}"
            assert state_after(folder, scene, make, state, phase, shuffled) == expected, phase.name


@pytest.mark.parametrize("make", [on_arrival, from_the_spool])
@pytest.mark.parametrize("method", of_each_kind("whole orders", AVERAGING))
def test_a_fold_sees_the_vectors_of_whole_orders_alone(
    method: str, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = scenario(method)
    strategy = scene.strategy
    kind = type(strategy)
    fold = kind.fold
    seen: dict[ClientId, bool] = {}

    def spy(self: Any, state: Any, phase: Phase, sums: Any, reports: Reports) -> Any:
        seen.update({client: bool(report.vectors) for client, report in reports})
        return fold(self, state, phase, sums, reports)

    folds = folds_of(method)
    monkeypatch.setattr(kind, "fold", spy)
    for number, (state, phase, reports) in enumerate(folds):
        seen.clear()
        state_after(tmp_path / str(number), scene, make, state, phase, reports)
        whole = {
            c: is_whole(strategy, strategy.order(state, phase, c)) and bool(r.vectors)
            for c, r in reports
        }
        assert seen == whole, phase.name


def takes_rules(method: str) -> bool:
    return not scenario(method).strategy.refuses(Average("median"))


@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "geometric_median"])
@pytest.mark.parametrize("method", of_each_kind("rules", filter(takes_rules, AVERAGING)))
def test_a_rule_gives_the_same_bytes_in_any_order_of_arrival(
    method: str, rule: str, tmp_path: Path
) -> None:
    scene = scenario(method, aggregation={"rule": rule})
    for number, (state, phase, reports) in enumerate(folds_of(method)[:2]):
        found = [
            state_after(tmp_path / f"{number}-{place}", scene, on_arrival, state, phase, shuffled)
            for place, shuffled in enumerate(in_orders(reports))
        ]
        assert found[1:] == found[:-1], phase.name


def test_most_phases_are_summed_by_aggregators_and_not_read_again() -> None:
    """The laws would hold for nothing if every order were whole."""
    shares = []
    for method in AVERAGING:
        strategy = scenario(method).strategy
        for state, phase, reports in folds_of(method):
            if phase.sizes:
                shares.append(
                    np.mean(
                        [
                            not is_whole(strategy, strategy.order(state, phase, c))
                            for c, _ in reports
                        ]
                    )
                )
    assert np.mean(shares) > 0.8
