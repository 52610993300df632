"""Sums of aggregators: any tree gives the bytes of single reports, and one that does not fit is not counted."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.coordinator.engine.events import Joined
from covey.coordinator.record.notices import ReportRefused, ReportSetAside
from covey.coordinator.run.effects import Announce, Effect, SendOrder, SumTaken
from covey.coordinator.run.happenings import SumCame
from covey.coordinator.run.run import Run
from covey.extras.scale.partial_sums import AggregatorAgents, check_aggregators, check_sums
from covey.extras.scale.summing import HOLD_S, OpenStep, Summing
from covey.shared.errors import DecodeError, UserError
from covey.shared.numerics.accumulator import Accumulator
from covey.shared.strategies.base import MODEL, ClientId
from covey.shared.strategies.sums import Term
from covey.shared.wire.aggregates import AggregatorOrder, PartialSum
from covey.shared.wire.codec import Codec, encode
from covey.shared.wire.messages import OrderMessage, ReportContent, digest
from tests.coordinator.test_recovery import report_of
from tests.kit.small_run import begun, clients, fingerprint, received, rules, scenario, setup

ALL = {"participation": 1.0, "count": 1}
ANYBODY = AggregatorAgents(lambda client: True, lambda client: 24)
Orders = Mapping[ClientId, OrderMessage]


def opened(folder: Path, method: str = "fedavg", **sections: Any) -> tuple[Run, Orders]:
    """A run whose first step waits for eight reports."""
    scene = scenario(method, **{"rounds": ALL, **sections})
    run = begun(folder, scene)
    effects: list[Effect] = []
    for client in clients():
        run.members.of(client).samples = (24, 24)
        effects += run.handle(Joined(client), 0.0)
    return run, {
        effect.client: effect.order
        for effect in effects
        if isinstance(effect, SendOrder) and effect.order.step
    }


def reports_of(run: Run, orders: Orders) -> dict[ClientId, bytes]:
    return {client: report_of(run, client, order) for client, order in sorted(orders.items())}


def summing(run: Run, agents: Mapping[ClientId, int | None]) -> Summing:
    """An aggregator that adds up the reports of these agents for the open step."""
    step = run.engine.step
    assert step is not None
    this = Summing("s1")
    layout = run.setup.whole
    bases = run.orders.bases()
    number = step.number
    this.begin(OpenStep("r1", number, run.scenario, step.phase, run.state, layout, bases))
    this.follow(AggregatorOrder(run="r1", step=number, agents=dict(agents)))
    return this


def sum_of(run: Run, reports: Mapping[ClientId, bytes]) -> PartialSum:
    this = summing(run, dict.fromkeys(reports, 24))
    for client, content in reports.items():
        this.accept(client, content, 0.0)
    taken = this.take(0.0)
    assert taken is not None
    return PartialSum.from_bytes(taken)


def take(
    run: Run, partial: PartialSum, origin: AggregatorAgents = ANYBODY, content: bytes | None = None
) -> list[Effect] | None:
    """What follows from a sum that counts; None if it came too late. Raises the error of one that is refused."""
    effects = run.handle(SumCame(content or partial.to_bytes(), partial, origin), 0.0)
    taken = effects.pop()
    assert isinstance(taken, SumTaken)
    if taken.error is not None:
        raise taken.error
    return effects if taken.counts else None


def in_single_reports(folder: Path, method: str = "fedavg", **sections: Any) -> list[bytes]:
    run, orders = opened(folder, method, **sections)
    for client, content in reports_of(run, orders).items():
        received(run, client, content, 0.0)
    return fingerprint(run)


# -- the same bytes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("added", "is_refused"),
    [
        ([(3, 2.0), (3, 4.0)], False),
        ([(3, 6.0)], True),
        ([(3, 2.0), (3, 4.5)], True),
        ([(2, 2.0), (2, 4.0)], True),
    ],
    ids=["honest", "another count", "another weight", "another length"],
)
def test_a_sum_of_an_aggregator_has_the_count_the_weight_and_the_length_of_its_reports(
    added: list[tuple[int, float]], is_refused: bool
) -> None:
    terms = [(Term("0", weight),) for weight in (2.0, 4.0)]
    sent = Accumulator()
    for size, weight in added:
        sent.add("0", np.ones(size, np.float32), weight)
    with pytest.raises(DecodeError, match="the sum of 0") if is_refused else nullcontext():
        check_sums(terms, {MODEL: 3}, sent)


@pytest.mark.parametrize("method", ["fedavg", "fedsgd", "fedrep", "ifca"])
def test_any_division_in_any_order_gives_the_bytes_of_single_reports(
    method: str, tmp_path: Path
) -> None:
    """Some reports come alone, the others in sums, also with differences to the model on the wire."""
    expected = in_single_reports(tmp_path / "single", method, wire={"delta": True})
    for seed in range(2):
        rng = random.Random(seed)  # noqa: S311 - no secret
        run, orders = opened(tmp_path / str(seed), method, wire={"delta": True})
        reports = reports_of(run, orders)
        groups: list[dict[ClientId, bytes]] = [{} for _ in range(4)]
        for client in rng.sample(sorted(reports), len(reports)):
            rng.choice(groups)[client] = reports[client]
        for number, group in enumerate(groups):
            if number == 0:
                for client, content in group.items():
                    run.accept(client, content, 0.0)
            elif group:
                assert take(run, sum_of(run, group)) is not None
        assert run.engine.round == 1
        assert fingerprint(run) == expected


def test_a_killed_coordinator_continues_with_the_sums_that_it_accepted(tmp_path: Path) -> None:
    expected = in_single_reports(tmp_path / "single")
    run, orders = opened(tmp_path / "killed")
    reports = reports_of(run, orders)
    first = dict(list(reports.items())[:3])
    take(run, sum_of(run, first))
    scene = run.scenario
    again, effects = Run.resume(
        tmp_path / "killed", scene, setup(scene), rules=rules(scene), now=0.0
    )
    again.members.note_samples(dict.fromkeys(clients(), (24, 24)))
    for client in clients():
        effects += again.handle(Joined(client), 0.0)
    assert again.engine.step is not None
    assert again.engine.step.reported == set(first)
    for client, content in list(reports.items())[3:]:
        again.accept(client, content, 0.0)
    assert again.engine.round == 1
    assert fingerprint(again) == expected


def test_a_damaged_sum_on_disk_is_asked_for_again(tmp_path: Path) -> None:
    run, orders = opened(tmp_path)
    reports = reports_of(run, orders)
    take(run, sum_of(run, dict(list(reports.items())[:3])))
    [path] = (tmp_path / "spool" / "1").glob("*.sum")
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    scene = run.scenario
    again, _ = Run.resume(tmp_path, scene, setup(scene), rules=rules(scene), now=0.0)
    assert again.engine.step is not None
    assert again.engine.step.reported == set()
    assert not path.exists()


# -- single reports that matter -----------------------------------------------------------------------------------------


def with_values(content: bytes, value: float) -> bytes:
    report = ReportContent.from_bytes(content, verified=True)
    size = setup(scenario("fedavg")).layout.size
    vector, _ = encode(np.full(size, value, np.float32), Codec(), rng=np.random.default_rng(0))
    return report.model_copy(update={"vectors": {"model": vector}}).to_bytes()


def with_examples(content: bytes, examples: int) -> bytes:
    report = ReportContent.from_bytes(content, verified=True)
    return report.model_copy(update={"examples": examples}).to_bytes()


@pytest.mark.parametrize("lie", ["implausible values", "many samples", "most samples"])
def test_a_report_that_must_be_taken_out_or_weighed_again_is_asked_for_with_all_others(
    lie: str, tmp_path: Path
) -> None:
    """The sums are forgotten, and the step ends as if there had been none."""
    models = []
    anything = AggregatorAgents(lambda client: True, lambda client: None)
    for way in ("single", "summed"):
        cap = {"share": None} if lie == "many samples" else {"times_median": None}
        run, orders = opened(
            tmp_path / way, aggregation={"max_samples": {"times_median": 2.0, **cap}}
        )
        for member in run.members:
            member.samples = None
        reports = reports_of(run, orders)
        liar = "agent-5"
        if lie == "implausible values":
            reports[liar] = with_values(reports[liar], 1e6)
        else:
            reports[liar] = with_examples(reports[liar], 10_000)
        effects: list[Effect] = []
        if way == "summed":
            this = summing(run, dict.fromkeys(reports))
            for client, content in reports.items():
                this.accept(client, content, 0.0)
            message = this.take(0.0)
            assert message is not None
            took = take(run, PartialSum.from_bytes(message), anything, message)
            assert took is not None
            assert run.engine.round == 0
            assert run.engine.step is not None
            assert run.engine.step.reported == set()
            assert run.is_direct
            assert not list((run.folder / "spool" / "1").glob("*.sum"))
        for client, content in reports.items():
            effects += received(run, client, content, 0.0)
        assert run.engine.round == 1
        notices = [effect.notice for effect in effects if isinstance(effect, Announce)]
        aside = [notice.agent for notice in notices if isinstance(notice, ReportSetAside)]
        assert aside == ([liar] if lie == "implausible values" else [])
        models.append(fingerprint(run))
    assert models[0] == models[1]


# -- what an aggregator refuses ------------------------------------------------------------------------------------------


def test_refusals_are_those_of_the_coordinator_and_a_bad_report_is_not_folded(
    tmp_path: Path,
) -> None:
    run, orders = opened(tmp_path / "summed")
    reports = reports_of(run, orders)
    bad = {
        "agent-0": with_values(reports["agent-0"], 1e30),
        "agent-1": with_examples(reports["agent-1"], 25),  # its status has 24
        "agent-2": reports["agent-3"],
        "agent-4": b"rubbish",
    }
    single, _ = opened(tmp_path / "single")
    expected = []
    for client, content in bad.items():
        for effect in received(single, client, content, 0.0):
            if isinstance(effect, Announce) and isinstance(effect.notice, ReportRefused):
                expected.append(effect.notice)
    this = summing(run, dict.fromkeys(reports, 24))
    for client, content in {**bad, "agent-5": reports["agent-5"]}.items():
        this.accept(client, content, 0.0)
    message = this.take(HOLD_S)
    assert message is not None
    partial = PartialSum.from_bytes(message)
    assert [report.client for report in partial.reports] == ["agent-5"]
    effects = take(run, partial) or []
    notices = [effect.notice for effect in effects if isinstance(effect, Announce)]
    assert [one for one in notices if isinstance(one, ReportRefused)] == expected
    assert len(expected) == len(bad)
    assert run.members.refused.keys() == single.members.refused.keys()


def test_failures_and_unasked_reports_reach_the_engine(tmp_path: Path) -> None:
    run, orders = opened(tmp_path)
    failed = ReportContent.failed(orders["agent-0"], "agent-0", "no data")
    this = summing(run, {"agent-0": 24, "agent-1": 24})
    this.accept("agent-0", failed.to_bytes(), 0.0)
    assert not this.expects("stranger", 0.0)
    content = this.take(HOLD_S)
    assert content is not None
    partial = PartialSum.from_bytes(content)
    assert partial.ignored == ["stranger"]
    take(run, partial)
    assert run.engine.step is not None
    assert run.engine.step.failed.keys() == {"agent-0"}
    assert run.members.by_agent(lambda one: one.failures)["agent-0"]["why"] == "no data"


def test_a_sum_waits_for_others_and_is_offered_until_it_is_settled(tmp_path: Path) -> None:
    run, orders = opened(tmp_path)
    reports = reports_of(run, orders)
    this = summing(run, dict.fromkeys(reports, 24))
    this.accept("agent-0", reports["agent-0"], 10.0)
    this.accept("agent-0", reports["agent-0"], 11.0)  # the agent has no answer yet
    assert this.take(10.0 + HOLD_S / 2) is None
    content = this.take(10.0 + HOLD_S)
    assert content is not None
    assert this.unsettled == [content]
    partial = PartialSum.from_bytes(content)
    take(run, partial)
    number = partial.step
    assert run.folding is not None
    settled = run.folding.settled
    this.follow(AggregatorOrder(run="r1", step=number, agents={}, settled=settled))
    assert this.unsettled == []
    assert take(run, partial) is None, "a replay"
    assert run.engine.step is not None
    assert run.engine.step.reported == {"agent-0"}


def test_a_settled_sum_is_offered_again_once_the_coordinator_has_lost_it(tmp_path: Path) -> None:
    """The folder of the run was put back to what it was before the sum came."""
    run, orders = opened(tmp_path)
    reports = reports_of(run, orders)
    this = summing(run, dict.fromkeys(reports, 24))
    this.accept("agent-0", reports["agent-0"], 10.0)
    content = this.take(10.0 + HOLD_S)
    assert content is not None
    step = PartialSum.from_bytes(content).step
    this.follow(AggregatorOrder(run="r1", step=step, agents={}, settled=[digest(content)]))
    assert this.unsettled == []
    this.follow(AggregatorOrder(run="r1", step=step, agents={"agent-0": 24}, settled=[]))
    assert this.unsettled == [content]


# -- what the coordinator refuses ----------------------------------------------------------------------------------------


def heavier(partial: PartialSum) -> PartialSum:
    """One that counts a report twice as often as its agent has samples."""
    sums = Accumulator.from_bytes(partial.sums)
    sums.merge(Accumulator.from_bytes(partial.sums))
    return partial.model_copy(update={"sums": sums.to_bytes()})


def other_cluster(partial: PartialSum) -> PartialSum:
    sums = Accumulator()
    sums.add("1", np.ones(setup(scenario("fedavg")).layout.size, np.float32), 24.0)
    return partial.model_copy(update={"sums": sums.to_bytes()})


def absurd(partial: PartialSum) -> PartialSum:
    sums = Accumulator()
    for report in partial.reports:
        vector = np.full(setup(scenario("fedavg")).layout.size, 1e30, np.float32)
        sums.add("0", vector, float(report.examples))
    return partial.model_copy(update={"sums": sums.to_bytes()})


def first_report(partial: PartialSum, **changes: Any) -> PartialSum:
    first = partial.reports[0].model_copy(update=changes)
    return partial.model_copy(update={"reports": [first, *partial.reports[1:]]})


FORGERIES: dict[str, Callable[[PartialSum], PartialSum]] = {
    "other run": lambda p: p.model_copy(update={"run": "r2"}),
    "uninvited": lambda p: first_report(p, client="stranger"),
    "twice": lambda p: p.model_copy(update={"reports": [p.reports[0], p.reports[0]]}),
    "reported": lambda p: first_report(p, client="agent-7"),
    "other broker": lambda p: first_report(p, client="agent-6"),
    "examples": lambda p: first_report(p, examples=25),
    "norms": lambda p: first_report(p, norms={}),
    "weight": heavier,
    "cluster": other_cluster,
    "absurd": absurd,
    "damaged": lambda p: p.model_copy(update={"sums": p.sums[:-1]}),
    "missing": lambda p: p.model_copy(update={"reports": p.reports[1:]}),
}


@pytest.mark.parametrize("kind", FORGERIES)
def test_a_sum_that_does_not_fit_counts_nothing(kind: str, tmp_path: Path) -> None:
    run, orders = opened(tmp_path)
    reports = reports_of(run, orders)
    run.accept("agent-7", reports.pop("agent-7"), 0.0)
    of_two = {client: reports[client] for client in ("agent-0", "agent-1")}
    forged = FORGERIES[kind](sum_of(run, of_two))
    origin = AggregatorAgents(lambda client: client != "agent-6", lambda client: 24)
    with pytest.raises(DecodeError):
        take(run, forged, origin)
    assert run.engine.step is not None
    assert run.engine.step.reported == {"agent-7"}
    assert run.is_direct == (kind != "other run")
    for client, content in reports.items():
        run.accept(client, content, 0.0)
    assert fingerprint(run) == in_single_reports(tmp_path / "single")


def of_other_work(content: bytes) -> bytes:
    report = ReportContent.from_bytes(content, verified=True)
    return report.model_copy(update={"work": bytes(16)}).to_bytes()


def test_a_report_of_other_work_under_the_same_step_is_never_folded(tmp_path: Path) -> None:
    """After a fail-over two coordinators of one run ask for different work under one number."""
    run, orders = opened(tmp_path)
    foreign = of_other_work(reports_of(run, orders)["agent-0"])
    with pytest.raises(DecodeError, match="came from other work"):
        run.accept("agent-0", foreign, 0.0)
    assert run.engine.step is not None
    assert run.engine.step.reported == set()


def test_a_sum_with_a_report_of_other_work_counts_nothing(tmp_path: Path) -> None:
    run, orders = opened(tmp_path)
    reports = reports_of(run, orders)
    mixed = {**reports, "agent-0": of_other_work(reports["agent-0"])}
    with pytest.raises(DecodeError, match="came from other work"):
        take(run, sum_of(run, mixed))
    assert run.engine.step is not None
    assert run.engine.step.reported == set()
    for client, content in reports.items():
        run.accept(client, content, 0.0)
    assert fingerprint(run) == in_single_reports(tmp_path / "single")


def test_a_sum_of_another_step_is_dropped(tmp_path: Path) -> None:
    run, orders = opened(tmp_path)
    partial = sum_of(run, reports_of(run, orders))
    late = partial.model_copy(update={"step": partial.step + 1})
    assert take(run, late) is None
    assert run.engine.step is not None
    assert run.engine.step.reported == set()


def test_an_aggregator_speaks_only_of_agents_of_its_own_broker(tmp_path: Path) -> None:
    run, orders = opened(tmp_path)
    failed = ReportContent.failed(orders["agent-0"], "agent-0", "no data").to_bytes()
    this = summing(run, {"agent-0": 24})
    this.accept("agent-0", failed, 0.0)
    content = this.take(0.0)
    assert content is not None
    elsewhere = AggregatorAgents(lambda client: False, lambda client: 24)
    assert take(run, PartialSum.from_bytes(content), elsewhere, content) == []
    assert not run.members.by_agent(lambda one: one.failures)


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"rounds": {"mode": "buffered", "buffer": 2}}, "rounds.mode buffered"),
        ({"aggregation": {"rule": "median"}}, "aggregation.rule median"),
        ({"aggregation": {"clip": {"times_median": 1.0}}}, "aggregation.clip"),
        ({"records": {"sketch": 8}}, "records.sketch"),
        ({"privacy": {"local": {"max_grad_norm": 1.0, "noise_multiplier": 1.0}}}, "privacy"),
        ({"strategy": {"name": "fesem"}}, "fesem"),
    ],
)
def test_a_scenario_that_needs_single_reports_is_refused_with_the_setting(
    sections: dict[str, Any], named: str
) -> None:
    with pytest.raises(UserError, match=named):
        check_aggregators(scenario("fedavg", **sections))


def test_a_scenario_of_means_may_have_aggregators() -> None:
    check_aggregators(scenario("fedclust"))
    check_aggregators(scenario("fedavg", privacy={"secure": {"clip": 1.0}}))
