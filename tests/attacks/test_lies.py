"""No lie that a report tells ends a run, spoils a model, or is blamed on somebody else.

The short form of `python -m tests.attacks.lies`, which tries every method with every lie (22 x 80 runs).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from covey.coordinator.engine.events import Joined, Release
from covey.coordinator.record.notices import RoundVoid
from covey.coordinator.run.effects import Announce, Effect, SendOrder
from covey.coordinator.run.result import write_all
from covey.coordinator.run.run import Run
from covey.shared.numerics.averages import Rule
from covey.shared.seeds import generator
from covey.shared.strategies.base import ClientId
from covey.shared.wire.messages import Encoded, ReportContent
from tests.attacks.lies import LIES, Lying, outcome
from tests.kit import spooled
from tests.kit.local_clients import report_on
from tests.kit.small_fleet import Numpy
from tests.kit.small_run import begun, clients, local_for, received, rules, scenario, setup
from tests.methods import METHODS, of_each_kind

CAUGHT = sorted(name for name, lie in LIES.items() if lie.caught)
TAMED = sorted(name for name, lie in LIES.items() if not lie.caught)
GOOD = {"n": 4, "correct": 3, "accuracy": 0.75, "f1": 0.7, "loss": 0.6}


def dealt(names: list[str], hands: int) -> list[list[str]]:
    """The names in hands of four at most."""
    return [names[place : place + hands] for place in range(0, len(names), hands)]


def listener(names: list[str]) -> str:
    """The method that a group of lies is told."""
    return str(generator(1, "methods", *names).choice(sorted(METHODS)))


GROUPS = [*dealt(CAUGHT, 4), *dealt(TAMED, 2)]
EVERY_LIE = [(listener(names), names) for names in GROUPS]


@pytest.mark.parametrize(
    ("method", "names"), EVERY_LIE, ids=[f"{m}-{'-'.join(names)}" for m, names in EVERY_LIE]
)
def test_no_lie_ends_a_run_or_falls_back_on_somebody_else(
    tmp_path: Path, method: str, names: list[str]
) -> None:
    verdict = outcome(method, names, tmp_path, scenario)
    assert verdict.wrong == ""
    # a report of `local` has no vector to lie about
    assert verdict.told >= (0 if method == "local" else len(names))


def test_a_campaign_whose_liars_are_never_asked_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lying, "perform", Numpy.perform)
    assert (
        "the attack did not take place" in outcome("fedavg", ["loss_nan"], tmp_path, scenario).wrong
    )


@pytest.mark.parametrize("method", of_each_kind("lies"))
def test_a_method_of_each_kind_ends_well_among_liars(tmp_path: Path, method: str) -> None:
    names = generator(2, "lies", method).choice(CAUGHT, 3, replace=False).tolist()
    verdict = outcome(method, names, tmp_path, scenario)
    assert verdict.wrong == ""


def test_there_are_lies_about_everything() -> None:
    assert len(LIES) >= 30
    assert len({name for _, names in EVERY_LIE for name in names}) == len(LIES)


# -- reports that already lie accepted in the spool ----------------------------------------------------------------


def joined(folder: Path, scene: Any) -> tuple[Run, dict[ClientId, Any]]:
    """A run with everybody there, and who they are."""
    people = clients(scene=scene)
    run = begun(folder, scene, name="r")
    run.members.note_samples(dict.fromkeys(people, (24, 24)))
    for client in people:
        run.handle(Joined(client), 0.0)
    return run, people


def asked(run: Run) -> list[SendOrder]:
    """Orders that ask for work now."""
    return [
        one for one in run.desired() if isinstance(one, SendOrder) and one.order.work is not None
    ]


def honest(run: Run, people: dict[ClientId, Any], order: SendOrder) -> ReportContent:
    assert order.order.work is not None
    local = local_for(people)(order.client, order.order)
    return report_on(run, order.client, order.order, local)[0]


def announced(effects: list[Effect], event: str) -> list[str]:
    rows = [one.notice.to_json() for one in effects if isinstance(one, Announce)]
    return [row["agent"] for row in rows if row["event"] == event]


def test_a_bad_report_that_lies_accepted_ends_no_resume_and_names_its_sender(
    tmp_path: Path,
) -> None:
    """Before: TypeError in means_of at the fold, and again at every --resume."""
    scene = scenario(
        "fedavg", rounds={"count": 1, "participation": 1.0}, evaluation={"track": True}
    )
    run, people = joined(tmp_path, scene)
    orders = asked(run)
    for order in orders[:-1]:
        received(run, order.client, honest(run, people, order).to_bytes(), 0.0)
    step, liar = run.engine.number, orders[0].client
    # as an older coordinator would have accepted it
    spooled.rewrite(
        spooled.file_of(tmp_path, step), liar, {"numbers": {"track": {"n": 3, "accuracy": "boom"}}}
    )
    run, effects = Run.resume(tmp_path, scene, setup(scene), rules=rules(scene), now=0.0)
    run.members.note_samples(dict.fromkeys(people, (24, 24)))
    last = next(order for order in asked(run) if order.client == orders[-1].client)
    effects += received(run, last.client, honest(run, people, last).to_bytes(), 0.0)
    assert announced(effects, "set_aside") == [liar]
    assert run.engine.round == 1
    assert run.members.refused == {liar: (1, step)}
    rows = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [row["agent"] for row in rows if row["event"] == "set_aside"] == [liar]
    assert liar not in next(row for row in rows if row["event"] == "phase")["reported"]
    Run.resume(tmp_path, scene, setup(scene), rules=rules(scene), now=0.0)


def test_a_fold_that_fails_for_all_is_a_void_attempt_with_a_reason(
    tmp_path: Path, monkeypatch: Any
) -> None:
    scene = scenario("fedavg", rounds={"count": 1, "participation": 1.0})
    run, people = joined(tmp_path, scene)

    def broken(*_: Any) -> Any:
        raise ArithmeticError("nothing goes")

    monkeypatch.setattr(type(run.strategy), "fold", broken)
    effects: list[Effect] = []
    for order in asked(run):
        effects += received(run, order.client, honest(run, people, order).to_bytes(), 0.0)
    notices = [one.notice for one in effects if isinstance(one, Announce)]
    voids = [notice.to_json() for notice in notices if isinstance(notice, RoundVoid)]
    assert run.engine.round == 0
    assert [row["why"] for row in voids] == ["the fold failed: ArithmeticError: nothing goes"]
    assert run.members.refused == {}


def test_a_model_that_is_not_finite_is_no_model(tmp_path: Path, monkeypatch: Any) -> None:
    """A sound fold of sound reports whose sum overflows: without its largest report it is a model again."""
    scene = scenario(
        "fedavg", rounds={"count": 1, "participation": 1.0}, aggregation={"refuse_beyond": None}
    )
    run, people = joined(tmp_path, scene)
    monkeypatch.setattr("covey.coordinator.checks.check_peaks", lambda name, found: None)
    effects: list[Effect] = []
    for order in asked(run):
        report = honest(run, people, order)
        if order.client == "agent-3":
            vector = np.full(run.setup.layout.size, 3e38, "<f4")
            encoded = Encoded(codec="float32", length=vector.size, data=vector.tobytes())
            report = report.model_copy(update={"vectors": {"model": encoded}})
        effects += received(run, order.client, report.to_bytes(), 0.0)
    assert announced(effects, "set_aside") == ["agent-3"]
    assert run.engine.round == 1
    assert float(np.abs(run.state.model).max()) < 100


# -- nobody owns the mean ------------------------------------------------------------------------------------------


def pushed(report: ReportContent, claim: int, by: float) -> ReportContent:
    """The report with this claim of samples, and every value of its vectors moved."""
    vectors = {}
    for name, one in report.vectors.items():
        values = np.frombuffer(one.data, "<f4") + np.float32(by)
        vectors[name] = one.model_copy(update={"data": values.astype("<f4").tobytes()})
    numbers = dict(report.numbers)
    if "counts" in numbers:  # the samples of each cluster
        counts = numbers["counts"]
        numbers["counts"] = [count / max(sum(counts), 1) * claim for count in counts]
    return report.model_copy(update={"vectors": vectors, "numbers": numbers, "examples": claim})


def final(
    folder: Path,
    aggregation: dict[str, Any],
    claim: int = 10**12,
    by: float = 10.0,
    method: str = "fedavg",
) -> float:
    """The largest mean value of a model after one round in which agent-3 claims these samples and moves every value."""
    scene = scenario(
        method,
        rounds={"count": 1, "participation": 1.0},
        aggregation={"refuse_beyond": None, **aggregation},
    )
    run, people = joined(folder, scene)
    run.members.of("agent-3").samples = (10**15, 24)
    states: dict[ClientId, Any] = {}
    while run.engine.round == 0:
        for order in asked(run):
            assert order.order.work is not None
            client = order.client
            local = local_for(people)(client, order.order)
            report, states[client] = report_on(run, client, order.order, local, states.get(client))
            if client == "agent-3":
                is_training = order.order.work.phase == "train"
                report = pushed(report, claim, by if is_training else 0.0)
            received(run, client, report.to_bytes(), 0.0)
    return max((float(model.mean()) for model in run.strategy.clusters(run.state)), default=0.0)


NO_LIMIT: dict[str, Any] = {"max_samples": {"times_median": None, "share": None}}
BY_SAMPLES = {
    "cfl",
    "ditto",
    "fedala",
    "clove",
    "fedavg",
    "fedbabu",
    "fedbn",
    "fedclust",
    "feddane",
    "feddbe",
    "fedem",
    "fedgwc",
    "fednova",
    "fedprox",
    "fedrep",
    "fedrep-fedper",
    "fedsoft",
    "feroma",
} | {*("fuzzy", "given", "ifca", "kin", "lg", "pacfl", "perfedavg", "scaffold")}


@pytest.mark.parametrize("method", of_each_kind("samples"))
def test_a_report_of_1e12_samples_has_at_most_twice_an_equal_share_of_its_cluster(
    tmp_path: Path, method: str
) -> None:
    """Before: 92 to 97 % of it, by the limit of a hundred times the median. Clusters here have four agents or more."""
    honest_end = final(tmp_path / "honest", {}, 24, 0.0, method)
    end = final(tmp_path / "lie", {}, method=method)
    assert end - honest_end <= 10 * 2 / 4 + 0.1
    owned = final(tmp_path / "owned", NO_LIMIT, method=method)
    assert (owned > 9.5) == (method in BY_SAMPLES)


def test_a_limit_on_steps_holds_only_with_one_on_shares(tmp_path: Path) -> None:
    """Before: the clip alone left 93 % of the mean to one liar of eight."""
    clipped = {"clip": {"times_median": 1}}
    honest_end = final(tmp_path / "honest", clipped, 24, 0.0)
    alone = final(tmp_path / "alone", {**NO_LIMIT, **clipped})
    both = final(tmp_path / "both", clipped)
    plain = final(tmp_path / "plain", clipped, 24)
    assert alone - honest_end > 6 * (plain - honest_end)
    assert both - honest_end < 2.1 * (plain - honest_end)


@pytest.mark.parametrize("rule", sorted({*get_args(Rule)} - {"mean"}))
def test_a_rule_keeps_one_liar_of_eight_out_of_the_model(tmp_path: Path, rule: Rule) -> None:
    """The short form of `benchmarks.poisoning`. The mean with the same liar: more than 2."""
    honest_end = final(tmp_path / "honest", {"rule": rule}, 24, 0.0)
    assert final(tmp_path / "lie", {"rule": rule}, by=20.0) < honest_end + 0.2
    assert final(tmp_path / "mean", {"rule": "mean"}, by=20.0) > honest_end + 2


# -- quarantine ----------------------------------------------------------------------------------------------------


def test_an_agent_refused_in_three_steps_is_quarantined_over_a_resume_until_it_is_released(
    tmp_path: Path,
) -> None:
    scene = scenario("fedavg", rounds={"count": 5, "participation": 1.0})
    run, people = joined(tmp_path, scene)
    effects: list[Effect] = []
    for _ in range(3):
        for order in asked(run):
            report = honest(run, people, order)
            if order.client == "agent-3":
                report = report.model_copy(update={"loss": 1.7e308})
            effects += received(run, order.client, report.to_bytes(), 0.0)
    assert announced(effects, "quarantined") == ["agent-3"]
    assert "agent-3" not in {order.client for order in asked(run)}
    run, _ = Run.resume(tmp_path, scene, setup(scene), rules=rules(scene), now=0.0)
    assert "1.7e+308" in run.members.quarantined["agent-3"]
    assert "agent-3" not in {order.client for order in asked(run)}
    assert announced(run.handle(Release("agent-3"), 0.0), "released") == ["agent-3"]
    for order in asked(run):
        received(run, order.client, honest(run, people, order).to_bytes(), 0.0)
    assert "agent-3" in {order.client for order in asked(run)}
    assert run.members.refused == {}
    write_all(run, None)
