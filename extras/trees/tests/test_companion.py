"""The phases of a companion around a method, what devices send for it, what they keep, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from covey.agent.policy import Policy
from covey.extras.in_use.answering import Answering
from covey.extras.judge.mixture import Judged
from covey.extras.trees.companion import MESSAGE, TREES, Accompanied, Growing, OfFleet
from covey.extras.trees.ensemble import Ensemble
from covey.shared.candidate_names import COMPANION, NONE
from covey.shared.disclosures import Promise, cleared
from covey.shared.errors import PublicError, UserError
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.privacy.settings import SecureSettings
from covey.shared.scenario.load import from_mapping
from covey.shared.strategies.base import Order, Phase, Setup, Training, View
from covey.shared.strategies.cfl import Cfl
from covey.shared.strategies.client_half import Fold, Job, Local, Report
from covey.shared.strategies.fedavg import FedAvg
from covey.shared.strategies.phase_names import EVALUATE
from covey.shared.strategies.sums import SumsAtHand
from covey.shared.wire.codec import Codec, decode_model, encode_model
from covey.shared.wire.messages import ReportContent
from tests.kit.small_run import scenario as small
from tests.kit.small_run import setup

ROUNDS = 3
DEVICES = ("a", "b", "c", "d")
DELIVER = {"deliver": {"companion": "trees"}}
TASK = {"columns": ["x0", "x1", "x2"], "features": [3], "target": "y", "model": "mlp"}
TASK |= {"standardise": "federated", "target_scale": "federated"}


def scenario(**sections: Any) -> Any:
    content = {"name": "companion", "task": TASK, "strategy": {"name": "fedavg"}}
    return from_mapping({**content, "evaluation": DELIVER, **sections})


@dataclass
class Table:
    """The rows of a device: what a companion asks of a `Local`."""

    x: npt.NDArray[np.float32]
    y: npt.NDArray[np.float32]

    @property
    def examples(self) -> int:
        return len(self.y)

    def scaled(self, split: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        return self.x, self.y

    def unscaled(self, outputs: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return 10 * outputs + 3

    def folds(self) -> Iterator[Fold]:
        for place in range(3):
            part = Table(self.x[place::3], self.y[place::3])
            yield Fold(cast(Local, part), np.arange(part.examples))


def table(seed: int, rows: int = 60) -> Table:
    x = np.random.default_rng(seed).normal(size=(rows, 3)).astype(np.float32)
    return Table(x, (x[:, 0] + np.abs(x[:, 1])).astype(np.float32))


class TwoGroups(FedAvg):
    """FedAvg that puts a and b into another cluster than c and d."""

    def assignment(self, state: Any) -> dict[str, int]:
        return {"a": 0, "b": 0, "c": 1, "d": 1}


def growing(method: Any = None, trees: int = 4) -> Growing:
    found = replace(TREES, trees=trees).around(method or FedAvg(), scenario().task)
    return cast(Growing, found)


def begun(method: Growing) -> Accompanied:
    layout = _layout()
    start = np.zeros(layout.size, np.float32)
    return method.init(Setup((start,), layout, 1, ROUNDS, 1.0, Training()))


def _layout() -> Layout:
    return setup(small("fedavg")).layout


def job_of(method: Growing, state: Accompanied, order: Order, phase: str, local: Table) -> Job:
    return Job(
        phase=phase,
        round=0,
        client="a",
        seed=1,
        models=tuple(method.model(state, key) for key in order.models),
        numbers=order.numbers,
        cluster=order.cluster,
        layout=_layout(),
        training=Training(),
        folds=local.folds(),
    )


def played(
    method: Growing, state: Accompanied, tables: dict[str, Table], present: Any = None
) -> Accompanied:
    """The state after the next phase, with reports of those who are present."""
    phase = method.plan(state, View(state.round, ROUNDS, 0, DEVICES))
    sums, reports = SumsAtHand(), []
    for client in present if present is not None else sorted(tables):
        if phase.name == COMPANION:
            order = method.order(state, phase, client)
            job = job_of(method, state, order, phase.name, tables[client])
            report, _ = method.work(job, cast(Local, tables[client]), {})
        else:
            report = Report({"model": state.inner.model}, examples=1)
        sums.add(method.terms(state, phase, client, report), report.vectors)
        reports.append((client, report))
    return method.fold(state, phase, sums, reports)


def whole(method: Growing, tables: dict[str, Table], **knobs: Any) -> Accompanied:
    state = begun(method)
    while state.round < ROUNDS:
        state = played(method, state, tables, **knobs)
    return state


TABLES = {name: table(seed) for seed, name in enumerate(DEVICES)}


def test_the_phases_of_a_companion_come_before_the_last_round() -> None:
    method, names = growing(), []
    state = begun(method)
    while state.round < ROUNDS:
        names.append(method.plan(state, View(0, ROUNDS, 0, ())).name)
        state = played(method, state, TABLES)
    assert names == ["train", "train", *[COMPANION] * 5, "train"]
    assert state.losses["0"][-1] < state.losses["0"][0]
    assert method.shown(state).notes[COMPANION]["0"][1] < 0.5


def test_an_order_brings_all_that_a_device_needs() -> None:
    method = growing()
    state = begun(method)
    for _ in range(4):
        state = played(method, state, TABLES)
    phase = method.plan(state, View(0, ROUNDS, 0, ()))
    nobody = played(method, state, TABLES, present=[])
    assert nobody.message == state.message + 1
    np.testing.assert_array_equal(nobody.vectors["0"], state.vectors["0"])
    order = method.order(state, phase, "newcomer")
    assert order.numbers == {MESSAGE: 2}
    report, memory = method.work(
        job_of(method, state, order, COMPANION, TABLES["a"]), cast(Local, TABLES["a"]), {}
    )
    assert memory == {}
    assert report.vectors[COMPANION].size == phase.sizes[COMPANION]


def test_each_cluster_has_a_companion_of_its_own() -> None:
    tables = {
        name: replace(own, y=own.y if name in "ab" else -own.y) for name, own in TABLES.items()
    }
    method = growing(TwoGroups())
    state = whole(method, tables)
    first, second = (Ensemble.of_vector(method.form, 1, state.vectors[key]) for key in "01")
    np.testing.assert_allclose(first.line[:, 1, 0], 1.0, atol=0.2)
    np.testing.assert_allclose(second.line[:, 1, 0], -1.0, atol=0.2)
    assert method.serve(state, "d").models[-1] == "companion-1"


def test_a_third_of_the_devices_that_drop_out_of_each_message_cost_little() -> None:
    tables = {f"{place:02}": table(place) for place in range(12)}
    tests = table(99, 400)
    errors = []
    for share in (1.0, 0.7):
        method = growing(trees=12)
        state, draws = begun(method), np.random.default_rng(0)
        while state.round < ROUNDS:
            state = played(
                method, state, tables, [one for one in sorted(tables) if draws.random() < share]
            )
        ensemble = Ensemble.of_vector(method.form, 1, state.vectors["0"])
        found = (OfFleet(ensemble, None).answers(cast(Local, tests), "test")[:, 0] - 3) / 10
        errors.append(100 * float(np.sqrt(np.mean((found - tests.y) ** 2)) / tests.y.std()))
    assert errors[1] < errors[0] + 1.0


def test_who_is_there_does_not_end_the_trees() -> None:
    """Before: a message without the device whose rows nobody can answer looked better than all that came after it."""
    chance = np.random.default_rng(9).normal(scale=3, size=60).astype(np.float32)
    tables, method = {**TABLES, "e": replace(table(9), y=chance)}, growing(trees=8)
    state = begun(method)
    while state.round < ROUNDS:
        state = played(method, state, tables, present="abcd" if state.message < 2 else None)
    assert not state.whole


def test_a_method_that_compares_single_reports_can_have_one_in_the_open() -> None:
    method = growing(Cfl())
    state = replace(begun(method), round=ROUNDS - 1)
    for _ in range(method.messages):
        state = played(method, state, TABLES)
    assert state.losses["0"][-1] < state.losses["0"][0]
    assert method.refuses(SecureSettings(clip=1.0))


def test_the_method_is_served_as_without_a_companion() -> None:
    method = growing()
    state = begun(method)
    job = job_of(method, state, method.serve(state, "a"), EVALUATE, TABLES["a"])
    [(weight, model)] = method.personal(job, cast(Local, TABLES["a"]), {})
    assert weight == 1.0
    np.testing.assert_array_equal(model, state.inner.model)


def candidate(method: Growing, state: Accompanied, name: str, own: Table) -> Any:
    return TREES.maker(
        job_of(method, state, method.serve(state, name), EVALUATE, own), scenario().task
    )


def test_a_candidate_answers_rows_of_a_fold_by_the_ensemble_that_has_not_seen_them() -> None:
    method = growing()
    state = whole(method, TABLES)
    make = candidate(method, state, "a", TABLES["a"])
    answers = [make(fold).answers(cast(Local, TABLES["a"]), "test") for fold in (0, 1, 2, None)]
    np.testing.assert_allclose(np.mean(answers[:3], axis=0), answers[3], rtol=1e-5)
    assert not np.allclose(answers[0], answers[1])


def test_targets_by_chance_make_no_candidate_that_is_better_than_the_mean() -> None:
    draws = np.random.default_rng(5)
    tables = {name: replace(own, y=draws.permutation(own.y)) for name, own in TABLES.items()}
    method = growing()
    state = whole(method, tables)
    found, truth = [], []
    for name, own in tables.items():
        make = candidate(method, state, name, own)
        for place, fold in enumerate(own.folds()):
            found.append(make(place).answers(fold.local, "test"))
            truth.append(fold.local.unscaled(fold.local.y))  # type: ignore[attr-defined]
    rows = np.concatenate(truth)
    answers = {COMPANION: np.concatenate(found), NONE: np.full((len(rows), 1), rows.mean())}
    gain, error = Judged.of(answers, rows, np.arange(len(rows))).gain({COMPANION: 1.0})
    assert gain < error


def test_a_kept_companion_answers_as_it_was_judged() -> None:
    method = growing()
    ensemble = Ensemble.of_vector(method.form, 1, whole(method, TABLES).vectors["0"])
    before = OfFleet(ensemble, None)
    served = ((1.0, np.zeros(4, np.float32)),)
    answering = Answering.of(served, {COMPANION: 1.0}, {COMPANION: before})
    [(_, after)] = answering.candidates(1)
    local = cast(Local, TABLES["b"])
    np.testing.assert_array_equal(before.answers(local, "test"), after.answers(local, "test"))


@pytest.mark.parametrize("vector", [np.zeros(5, np.float32), np.full(3 * 4, np.nan, np.float32)])
def test_an_order_with_another_companion_is_refused_by_name(vector: Vector) -> None:
    method = growing()
    state = begun(method)
    job = job_of(method, state, method.serve(state, "a"), COMPANION, TABLES["a"])
    job = replace(job, models=(cast(Vector, vector.view(np.uint32)),), numbers={MESSAGE: 0})
    with pytest.raises(PublicError, match="companion"):
        method.work(job, cast(Local, TABLES["a"]), {})


def test_a_line_begins_at_zero_in_every_run_so_that_locks_know_it_again() -> None:
    """Its first sums depend on no model: with another start an agent would not see that it adds its table to a second sum."""
    method = growing()
    order = method.order(begun(method), Phase(COMPANION, "all", {}), "a")
    starts = [method.model(replace(begun(method), seed=seed), order.models[0]) for seed in (1, 2)]
    assert not np.any(starts)
    job = job_of(method, begun(method), order, COMPANION, TABLES["a"])
    local = cast(Local, TABLES["a"])
    method.work(job, local, {})
    moved = (starts[0].view(np.float32) + np.float32(1e-3)).view(np.uint32)
    with pytest.raises(PublicError, match="begins at zero"):
        method.work(replace(job, models=(cast(Vector, moved),)), local, {})


def test_nothing_grows_without_a_line() -> None:
    method, state = growing(), begun(growing())
    phases = []
    for _ in range(2 * ROUNDS):
        phases.append(method.plan(state, View(state.round, ROUNDS, 0, DEVICES)).name)
        state = played(method, state, TABLES, present=() if phases[-1] == COMPANION else None)
    assert phases.count(COMPANION) == 1


def report(name: str) -> ReportContent:
    unread = dict.fromkeys(ReportContent.model_fields, 0)
    return ReportContent.model_construct(**unread | {"numbers": {}, "vectors": {name: None}})  # type: ignore[arg-type]


def test_sums_of_a_device_leave_it_under_masks_or_with_its_owners_consent() -> None:
    with pytest.raises(PublicError, match="companion: summed"):
        cleared(report(COMPANION), COMPANION, Policy().promises)
    cleared(report("masked"), COMPANION, {*Policy().promises, Promise.SUMMED})
    cleared(report(COMPANION), COMPANION, Policy(companion="open").promises)
    hidden = Policy(companion="open", samples="hidden").promises
    with pytest.raises(PublicError, match="samples"):
        cleared(report(COMPANION), COMPANION, hidden)


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"rounds": {"mode": "buffered", "buffer": 2}}, "buffered"),
        (
            {"rounds": {"stop": {"patience": 2}}, "evaluation": {"every": 1, **DELIVER}},
            "rounds.stop",
        ),
        ({"wire": {"codec": "int8"}}, "wire.codec"),
        ({"aggregation": {"rule": "median"}}, "aggregation"),
        ({"privacy": {"local": {"noise_multiplier": 1.0, "max_grad_norm": 1.0}}}, "noise"),
        ({"task": {**TASK, "standardise": "none"}}, "which secure sums need"),
        ({"evaluation": {"deliver": {"companion": "forest"}}}, "there are: linear, trees"),
    ],
)
def test_a_run_that_a_companion_cannot_take_part_in_is_refused_by_name(
    sections: Any, why: str
) -> None:
    with pytest.raises(UserError, match=why):
        scenario(**sections)


def test_a_companion_travels_whole_whatever_the_codec_of_models() -> None:
    method = growing()
    state = whole(method, TABLES)
    words = method.model(state, "companion-0")
    layout = _layout()
    content = encode_model(words, layout.digest, Codec("int8"), np.random.default_rng(0))
    again = np.ascontiguousarray(decode_model(content, layout)).view(np.float32)
    np.testing.assert_array_equal(again, state.vectors["0"])
