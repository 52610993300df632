"""Phases are a closed set: the name of a phase makes no second order of the same work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from covey.shared.errors import PublicError
from covey.shared.strategies.fedavg import FedAvg
from covey.shared.strategies.phase_names import AHEAD, BOX, EVALUATE, EXCHANGES, JOIN
from covey.shared.strategies.registry import BUILT_IN
from covey.shared.wire.messages import Work
from covey.shared.work.order_settings import check_order, settings_of
from tests.agent.orders import ref, work
from tests.kit.small_run import in_process, scenario
from tests.methods import of_each_kind

PRIVACY = {"signatures": None, "local": None, "secure": {"clip": 1.0}, "rounds": 3}
EVERY = sorted(set().union(*(method.facts.planned for method in BUILT_IN.values())))
SEALED = [name for name, method in BUILT_IN.items() if method.facts.sealed is not None]
every = pytest.mark.parametrize("method", sorted(BUILT_IN))
of_each = pytest.mark.parametrize("method", of_each_kind("phases", BUILT_IN))


def order(method: str, phase: str, **changes: object) -> Work:
    options = {"groups": {"all": ["*"]}} if method == "given" else {}
    strategy = BUILT_IN[method](**{"name": method, **options}).model_dump(mode="json")
    return work(ref("0"), phase=phase, strategy=strategy, privacy=PRIVACY, **changes)  # type: ignore[arg-type]


def refusal(asked: Work) -> str:
    try:
        check_order(settings_of(asked)[0], asked)
    except PublicError as error:
        return str(error)
    return ""


def strange_to(method: str) -> Iterator[str]:
    """Names that no run of a method plans: made up, a number behind a name of its own, and those of other methods."""
    own = BUILT_IN[method].facts.planned
    yield from ("x", "Train", "train1", "train01", "layer01", "layer257", "restart3")
    yield from (name for name in EVERY if name not in own)


@of_each
def test_an_order_in_a_phase_that_the_method_does_not_plan_is_refused_by_name(method: str) -> None:
    for phase in strange_to(method):
        expected = f"phase {phase}: the method {method} plans no such phase"
        assert refusal(order(method, phase)).startswith(expected)


@of_each
def test_orders_that_announce_such_a_phase_are_refused_too(method: str) -> None:
    for exchange in (BOX, JOIN):
        for phase in (*strange_to(method), *EXCHANGES):
            expected = f"numbers.ahead {phase}: the method {method} plans no such phase with a sum"
            assert refusal(order(method, exchange, numbers={AHEAD: phase})).startswith(expected)


@every
def test_the_phases_of_a_method_pass_and_those_with_a_sum_may_be_announced(method: str) -> None:
    facts = BUILT_IN[method].facts
    assert not any(refusal(order(method, phase)) for phase in facts.planned)
    announced = {*facts.summed, EVALUATE}
    assert not any(refusal(order(method, BOX, numbers={AHEAD: phase})) for phase in announced)


@pytest.mark.parametrize("method", SEALED)
def test_what_a_device_shows_in_the_clear_is_announced_in_no_phase_of_a_sum(method: str) -> None:
    sealed = BUILT_IN[method].facts.sealed
    assert sealed is not None
    for phase in sealed.clear:
        assert "plans no such phase with a sum" in refusal(
            order(method, JOIN, numbers={AHEAD: phase})
        )


@pytest.mark.parametrize("method", SEALED)
def test_only_what_is_declared_as_other_work_may_follow_a_sum_from_the_same_model(
    method: str,
) -> None:
    facts = BUILT_IN[method].facts
    assert facts.sealed is not None
    assert facts.sealed.apart == {"feddane": ("gradient",), "feddbe": ("consensus",)}.get(
        method, ()
    )


def test_phases_of_sums_belong_to_orders_with_secure_sums() -> None:
    plain = order("fedavg", BOX).model_copy(update={"privacy": None})
    assert refusal(plain).startswith(f"phase {BOX}: the method fedavg plans no such phase")


def test_a_plan_that_names_no_phase_of_its_facts_ends_with_what_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = FedAvg.plan
    monkeypatch.setattr(FedAvg, "plan", lambda self, *of: replace(plan(self, *of), name="mine"))
    with pytest.raises(PublicError, match=r"plans the phase 'mine'.*phases=\('mine',\)"):
        in_process(tmp_path, scenario("fedavg"))
