"""The fold of a step: reports that are added up as they arrive give the bytes of a fold that reads them all at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from covey.coordinator.disk.spool import Circumstances, Spool
from covey.coordinator.engine.events import Forget
from covey.coordinator.fold import limits
from covey.coordinator.fold.folding import Folding, Missing, Sound
from covey.coordinator.record.notices import ReportSetAside
from covey.coordinator.run.effects import Announce
from covey.shared.scenario.aggregation import Aggregation, MaxSamples
from covey.shared.strategies.base import MODEL, ClientId, Order, Phase
from covey.shared.strategies.bases.single import Single
from covey.shared.strategies.client_half import Report
from covey.shared.strategies.fedavg import FedAvg
from covey.shared.strategies.reading import folded
from covey.shared.strategies.registry import BUILT_IN
from covey.shared.strategies.sums import Term, Terms
from covey.shared.wire.codec import Codec, encode
from covey.shared.wire.messages import ReportContent
from tests.coordinator.test_recovery import half_reported, report_of
from tests.kit.small_run import fingerprint, in_process, scenario, setup
from tests.methods import of_each_kind
from tests.night import examples

SIZE = 5
STATE = Single(np.zeros(SIZE, np.float32))
TRAIN = Phase(sizes={MODEL: SIZE})
ALL = {"participation": 1.0}
PLAIN = Aggregation(refuse_beyond=None)
CAPPED = Aggregation(max_samples=MaxSamples(times_median=2.0), refuse_beyond=None)

METHODS = tuple(name for name, kind in BUILT_IN.items() if not kind.facts.individual)

values = st.floats(-100, 100, width=32)
vectors = st.lists(values, min_size=SIZE, max_size=SIZE)
reports = st.builds(
    lambda row, n: Report({MODEL: np.array(row, np.float32)}, n), vectors, st.integers(0, 400)
)


def agents(count: int) -> list[ClientId]:
    return [f"agent-{i}" for i in range(count)]


def new_spool(folder: Path) -> Spool:
    spool = Spool(folder)
    spool.durable = False
    spool.drop(10)
    return spool


def new_folding(spool: Spool, aggregation: Aggregation = PLAIN) -> Folding:
    return Folding(scenario("fedavg", aggregation=aggregation.model_dump()), spool, 1, TRAIN)


def accept(folding: Folding, spool: Spool, client: ClientId, report: Report) -> None:
    spool.keep(1, client, report, Circumstances(0.0))
    folding.add(client, report, STATE)


def closed(folding: Folding, reporters: Sequence[ClientId]) -> bytes:
    """The bytes of the model after the fold."""
    verdict = folding.close(reporters, TRAIN, STATE)
    assert isinstance(verdict, Sound), verdict
    return verdict.outcome.state.model.tobytes()  # type: ignore[no-any-return]


def in_one_batch(
    spool: Spool, reporters: Sequence[ClientId], aggregation: Aggregation = PLAIN
) -> bytes:
    fair = limits.capped(spool.reports(1, reporters), aggregation)
    return folded(FedAvg(), STATE, TRAIN, reports=fair, average=aggregation.average).model.tobytes()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[ClientId]:
    """Whose reports a close reads from the spool."""
    clients: list[ClientId] = []
    readable = Spool.readable

    def watched(self: Spool, step: int, wanted: Sequence[ClientId]) -> Any:
        clients.extend(wanted)
        return readable(self, step, wanted)

    monkeypatch.setattr(Spool, "readable", watched)
    return clients


@settings(
    max_examples=examples(13),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(sent=st.lists(reports, min_size=1, max_size=7), data=st.data())
def test_any_order_of_accepting_excluding_repeating_and_restarting_gives_the_bytes_of_the_batch(
    tmp_path: Path, sent: list[Report], data: st.DataObject
) -> None:
    """Weights change too: claims of more than twice the median number of samples are capped."""
    spool = new_spool(tmp_path / "spool")
    folding = new_folding(spool, CAPPED)
    by_client = dict(zip(agents(len(sent)), sent, strict=True))
    order = data.draw(st.permutations(sorted(by_client)))
    taken_out = set(data.draw(st.lists(st.sampled_from(order), unique=True)))
    uncounted = set(data.draw(st.lists(st.sampled_from(order), unique=True)))
    restart_after = data.draw(st.integers(0, 2 * len(order)))
    for place, client in enumerate(order):
        if place == restart_after:
            folding = new_folding(spool, CAPPED)
        accept(folding, spool, client, by_client[client])
        if client in taken_out:  # set aside, or forgotten
            folding.remove(client)
            spool.discard(1, client)
    # those who are excluded after their report are in the spool, but the round does not count them
    reporters = [c for c in sorted(by_client) if c not in taken_out | uncounted]
    if not reporters:
        return
    assert closed(folding, reporters) == in_one_batch(spool, reporters, CAPPED)
    assert closed(folding, reporters[:1]) == in_one_batch(spool, reporters[:1], CAPPED), (
        "a step that is closed again with fewer reports"
    )


@pytest.mark.parametrize("method", of_each_kind("arrivals", METHODS))
def test_a_run_that_adds_up_arrivals_has_the_bytes_of_one_that_reads_the_spool(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: list[ClientId]
) -> None:
    scene = scenario(method, rounds={**ALL, "count": 2})
    arrived = fingerprint(in_process(tmp_path / "arrived", scene))
    few = len(read)
    monkeypatch.setattr(Folding, "add", lambda folding, *_: folding.give_up())
    assert fingerprint(in_process(tmp_path / "spooled", scene)) == arrived
    assert few < len(read) / 2


def test_a_close_reads_no_report_that_was_added_as_it_came(
    tmp_path: Path, read: list[ClientId]
) -> None:
    spool = new_spool(tmp_path)
    folding = new_folding(spool)
    for client in agents(3):
        accept(folding, spool, client, Report({MODEL: np.ones(SIZE, np.float32)}, 1))
    closed(folding, agents(3))
    assert not read


def test_a_close_after_a_restart_reads_the_reports_of_the_earlier_process_alone(
    tmp_path: Path, read: list[ClientId]
) -> None:
    spool = new_spool(tmp_path)
    for value, client in enumerate(agents(3)):
        report = Report({MODEL: np.full(SIZE, value, np.float32)}, 1)
        if client == "agent-0":
            spool.keep(1, client, report, Circumstances(0.0))
            folding = new_folding(spool)
        else:
            accept(folding, spool, client, report)
    assert closed(folding, agents(3)) == in_one_batch(spool, agents(3))
    assert read == ["agent-0"]


def test_a_report_that_is_accepted_a_second_time_is_folded_from_the_spool(
    tmp_path: Path, read: list[ClientId]
) -> None:
    spool = new_spool(tmp_path)
    folding = new_folding(spool)
    for value in (1.0, 2.0):
        report = Report({MODEL: np.full(SIZE, value, np.float32)}, 1)
        accept(folding, spool, "agent-0", report)
    assert closed(folding, ["agent-0"]) == np.full(SIZE, 2.0, np.float32).tobytes()
    assert read == ["agent-0"]


def weighs(monkeypatch: pytest.MonkeyPatch, weight: Callable[[Phase, ClientId], float]) -> None:
    """Let reports weigh something else than their examples."""

    def terms(_: Any, state: Any, phase: Phase, client: ClientId, report: Report) -> Terms:
        return (Term("0", weight(phase, client)),)

    monkeypatch.setattr(FedAvg, "terms", terms)


def test_terms_are_asked_for_again_once_the_method_has_forgotten_an_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool, weights = new_spool(tmp_path), {"agent-1": 1.0}
    weighs(monkeypatch, lambda phase, client: weights.get(client, 2.0))
    folding = new_folding(spool)
    for value, client in enumerate(agents(3)):
        report = Report({MODEL: np.full(SIZE, value, np.float32)}, 1)
        accept(folding, spool, client, report)
    folding.forget("agent-0")
    spool.discard(1, "agent-0")
    weights["agent-1"] = 6.0
    assert closed(folding, agents(3)[1:]) == in_one_batch(spool, agents(3)[1:])


def test_terms_follow_a_cohort_that_is_not_the_one_which_their_phase_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned, invited = (replace(TRAIN, cohort=tuple(agents(count))) for count in (3, 2))
    weighs(monkeypatch, lambda phase, client: len(phase.cohort) + float(client == "agent-0"))
    spool = new_spool(tmp_path)
    folding = Folding(scenario("fedavg", aggregation=PLAIN.model_dump()), spool, 1, planned)
    reports = [
        (client, Report({MODEL: np.full(SIZE, value, np.float32)}, 1))
        for value, client in enumerate(agents(2))
    ]
    for client, report in reports:
        accept(folding, spool, client, report)
    verdict = folding.close(agents(2), invited, STATE)
    assert isinstance(verdict, Sound)
    expected = folded(FedAvg(), STATE, invited, reports=reports)
    assert verdict.outcome.state.model.tobytes() == expected.model.tobytes()


def test_a_report_that_is_gone_when_it_should_be_taken_out_leaves_the_step_to_the_spool(
    tmp_path: Path, read: list[ClientId]
) -> None:
    spool = new_spool(tmp_path)
    folding = new_folding(spool)
    for client in agents(2):
        accept(folding, spool, client, Report({MODEL: np.ones(SIZE, np.float32)}, 1))
    spool.discard(1, "agent-0")
    folding.remove("agent-0")
    closed(folding, ["agent-1"])
    assert read == ["agent-1"]


def test_a_report_whose_vectors_are_lost_and_in_the_sums_comes_again_and_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its order was whole, and it has terms too: it cannot be taken out of the sums."""
    order = FedAvg.order

    def whole_for_one(self: FedAvg, state: Any, phase: Phase, client: ClientId) -> Order:
        return replace(order(self, state, phase, client), whole=client == "agent-0")

    monkeypatch.setattr(FedAvg, "order", whole_for_one)
    spool = new_spool(tmp_path)
    folding = new_folding(spool)
    report = Report({MODEL: np.ones(SIZE, np.float32)}, 1)
    for client in agents(2):
        accept(folding, spool, client, report)
    spool.discard(1, "agent-0")
    verdict = folding.close(agents(2), TRAIN, STATE)
    assert isinstance(verdict, Missing)
    assert verdict.reasons.keys() == {"agent-0"}
    accept(folding, spool, "agent-0", Report({MODEL: np.full(SIZE, 3, np.float32)}, 1))
    assert closed(folding, agents(2)) == in_one_batch(spool, agents(2))


def test_vectors_are_not_kept_but_read_from_the_spool(tmp_path: Path) -> None:
    spool = new_spool(tmp_path)
    folding = new_folding(spool)
    report = Report({MODEL: np.ones(SIZE, np.float32)}, 3)
    accept(folding, spool, "agent-0", report)
    verdict = folding.close(["agent-0"], TRAIN, STATE)
    assert isinstance(verdict, Sound)
    [(_, light)] = verdict.reports
    assert light.vectors[MODEL].tobytes() == report.vectors[MODEL].tobytes()
    spool.discard(1, "agent-0")
    assert list(light.vectors) == [MODEL]
    with pytest.raises(OSError, match="agent-0"):
        light.vectors[MODEL]


@pytest.mark.parametrize(
    "aggregation",
    [Aggregation(rule="median"), Aggregation.model_validate({"clip": {"times_median": 2.0}})],
    ids=["rule", "clip"],
)
def test_a_robust_rule_and_clipping_fold_from_the_spool(
    tmp_path: Path, aggregation: Aggregation, read: list[ClientId]
) -> None:
    spool = new_spool(tmp_path)
    folding = new_folding(spool, aggregation)
    accept(folding, spool, "agent-0", Report({MODEL: np.ones(SIZE, np.float32)}, 1))
    closed(folding, ["agent-0"])
    assert read == ["agent-0"]


def test_a_report_that_is_set_aside_at_the_close_is_not_in_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Absurd values are found when all have reported: by then they are in the sum."""
    models = []
    for name in ("added up", "spool"):
        run, orders = half_reported(tmp_path / name)
        effects = []
        for client in sorted(orders)[4:]:
            content = report_of(run, client, orders[client])
            if client == "agent-5":
                content = with_values(content, 1e6)
            effects = run.accept(client, content, 0.0)
        notices = [effect.notice for effect in effects if isinstance(effect, Announce)]
        aside = [notice.agent for notice in notices if isinstance(notice, ReportSetAside)]
        assert aside == ["agent-5"]
        assert run.engine.round == 1
        models.append(run.state.model.tobytes())
        monkeypatch.setattr(Folding, "add", lambda folding, *_: folding.give_up())
    assert models[0] == models[1]


def test_a_report_of_an_agent_that_is_forgotten_leaves_the_sums(
    tmp_path: Path, read: list[ClientId]
) -> None:
    """The step is not folded from the spool for that."""
    run, orders = half_reported(tmp_path)
    first, *others = sorted(orders)
    run.handle(Forget(first), 0.0)
    for client in others[3:]:
        run.accept(client, report_of(run, client, orders[client]), 0.0)
    assert run.engine.round == 1
    assert not read


def with_values(content: bytes, value: float) -> bytes:
    """The report with a model that has this value everywhere."""
    report = ReportContent.from_bytes(content, verified=True)
    model = np.full(setup(scenario("fedavg")).layout.size, value, np.float32)
    draw = np.random.default_rng(0)
    encoded, _ = encode(model, Codec(), base=None, base_digest=b"", error=None, rng=draw)
    return report.model_copy(update={"vectors": {MODEL: encoded}}).to_bytes()
