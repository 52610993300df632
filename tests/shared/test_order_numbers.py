"""Orders say nothing without a meaning: numbers are declared with their form and read, settings are those that agents use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from covey.shared.errors import PublicError
from covey.shared.strategies.base import CAP, HOLD_BACK, PRIOR, Expected
from covey.shared.strategies.client_half import Job
from covey.shared.strategies.registry import BUILT_IN
from covey.shared.wire.messages import Work
from covey.shared.work import at_hand
from covey.shared.work.order_settings import SECTIONS, check_order, settings_of
from tests.agent.orders import ref, work
from tests.kit.small_run import clients, in_process, scenario
from tests.methods import METHODS

# numbers that others read: the worker, before the method's work, and a vote under secure sums
READ_ELSEWHERE = {HOLD_BACK, PRIOR, CAP}
# of votes, which the base declares and this method refuses
NOT_OFFERED = {"robust": {"share", "home"}}


class Looked(dict[str, Any]):
    """Numbers of an order that note which of them are looked for."""

    def __init__(self, numbers: Any, found: set[str]) -> None:
        super().__init__(numbers)
        self.found = found

    def __contains__(self, name: object) -> bool:
        self.found.add(str(name))
        return super().__contains__(name)

    def __getitem__(self, name: str) -> Any:
        self.found.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.found.add(name)
        return super().get(name, default)


def declared_by(method: str) -> set[str]:
    return {name for numbers in BUILT_IN[method].facts.numbers.values() for name in numbers}


@pytest.mark.whole  # some numbers are those of cards
@pytest.mark.parametrize("method", METHODS)
def test_orders_of_a_run_pass_and_every_declared_number_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    found: set[str] = set()
    monkeypatch.setattr(
        at_hand, "Job", lambda **of: Job(**{**of, "numbers": Looked(of["numbers"], found)})
    )
    known = scenario(method).strategy
    fields = type(known).model_fields
    asks: dict[str, Any] = {}
    if "vote" in fields and not known.facts.individual:
        asks["vote"] = "auto"
    if "n_clusters" in fields and type(None) in get_args(fields["n_clusters"].annotation):
        asks["n_clusters"] = None  # found out from cards
    if known.name == "cfl":
        asks |= {"trigger": "silhouette", "warmup": 0}
    for name, options in {"given": {}, **({"asked": asks} if asks else {})}.items():
        scene = scenario(method, strategy=options, rounds={"count": 2})
        people = clients(scene=scene)
        in_process(
            tmp_path / name, scene, people, held_back=lambda client, _, own=people: own[client]
        )
    assert declared_by(known.name) - found <= READ_ELSEWHERE | NOT_OFFERED.get(method, set())


@pytest.mark.parametrize("method", sorted(BUILT_IN))
def test_a_declared_number_has_a_form_that_refuses_something(method: str) -> None:
    for phase, numbers in BUILT_IN[method].facts.numbers.items():
        for name, form in numbers.items():
            assert isinstance(form, Expected), (phase, name)
            assert form.fault("x"), (phase, name)
            assert form.fault(-1), (phase, name)
            assert form.fault(1e300), (phase, name)


def refused(order: Work) -> str:
    strategy, _ = settings_of(order)
    with pytest.raises(PublicError) as refusal:
        check_order(strategy, order)
    return str(refusal.value)


PRIVACY = {"signatures": None, "local": None, "secure": {"clip": 1.0}, "rounds": 3}
ORDER = work(ref("0"), privacy=PRIVACY, scaling={"mean": [0.0], "std": [1.0]})


def test_an_order_with_all_sections_passes() -> None:
    check_order(settings_of(ORDER)[0], ORDER)


@pytest.mark.parametrize("section", SECTIONS)
def test_an_unknown_setting_is_refused_in_every_section(section: str) -> None:
    told = {**getattr(ORDER, section), "nonce": 2}
    with pytest.raises(Exception, match="nonce"):
        check_order(settings_of(ORDER)[0], ORDER.model_copy(update={section: told}))


def spellings() -> Iterator[tuple[str, dict[str, Any]]]:
    """The same training, written in another way."""
    yield "training.epochs", {"training": {**ORDER.training, "epochs": 1.0}}
    yield "training.lr", {"training": {**ORDER.training, "lr": "0.01"}}
    yield "evaluation.tune_epochs", {"evaluation": {"tune_epochs": True}}
    yield "evaluation.every", {"evaluation": {"every": 2}}
    yield "privacy.secure.clip", {"privacy": {**PRIVACY, "secure": {"clip": 1}}}
    yield "privacy.rounds", {"privacy": {**PRIVACY, "rounds": 3.0}}
    yield "task.init", {"task": {**ORDER.task, "init": "other.npz"}}


@pytest.mark.parametrize(("where", "told"), spellings())
def test_a_setting_that_is_written_in_another_way_is_refused_by_name(
    where: str, told: dict[str, Any]
) -> None:
    assert where in refused(ORDER.model_copy(update=told))


@pytest.mark.whole
@pytest.mark.parametrize("value", [2, 0, True, 1.0, "1", [1]])
def test_a_request_has_one_value(value: Any) -> None:
    order = work(ref("0"), strategy={"name": "kin"}, numbers={"watch": value})
    assert "numbers.watch" in refused(order)
