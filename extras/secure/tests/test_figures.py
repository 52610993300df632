"""Evaluations under secure sums: exact averages over the members, and nothing about one of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.coordinator.fold.means import averages
from covey.coordinator.run.result import result_of
from covey.extras.judge.mixture import FleetWeights
from covey.extras.secure.figures import BITS, FigureSlots
from covey.extras.secure.integers import OutOfRangeError
from covey.extras.secure.secured import Secured
from covey.extras.secure.tests.live import AGENTS, Devices, made, record, run_of, sums
from covey.shared.candidate_names import CANDIDATES, DELIVERED, SERVED
from covey.shared.candidate_names import REFITS as REFITS
from covey.shared.numerics.measures import derived
from covey.shared.strategies.base import Order
from covey.shared.strategies.fedavg import FedAvg

VICTIM = "a3"
REGRESSION: dict[str, Any] = {"features": [3], "classes": None}
CLASSES: dict[str, Any] = {"features": [3], "classes": ["a", "b"]}
RNG = np.random.default_rng(0)


def of_values(n: int) -> dict[str, Any]:
    mean, variance, mse, mae = RNG.normal(-3, 1), *RNG.exponential(5.0, 3)
    return {"n": n, "mse": mse, "mae": mae, "loss": mse, "mean": mean, "variance": variance}


def of_classes(n: int) -> dict[str, Any]:
    shares = dict(zip(("accuracy", "f1", "recall"), RNG.uniform(size=3), strict=True))
    return {"n": n, **shares, "loss": float(RNG.exponential())}


@pytest.mark.parametrize("weight", ["test", "total"])
@pytest.mark.parametrize(("task", "figures"), [(REGRESSION, of_values), (CLASSES, of_classes)])
def test_sums_have_the_averages_of_the_figures_of_single_agents(
    weight: str, task: Any, figures: Any
) -> None:
    slots = FigureSlots.of({"tune_epochs": 1, "weight": weight}, task)
    agents = {str(i): {mode: figures(i + 3) for mode in slots.modes} for i in range(6)}
    train = {name: 10 * int(name) for name in agents}
    vectors = [slots.vector(modes, train[name]) for name, modes in agents.items()]
    found = slots.averages(np.sum(vectors, axis=0).astype(np.int64), len(agents))
    if task is REGRESSION:
        agents = {
            name: {mode: {**one, **derived(one)} for mode, one in modes.items()}
            for name, modes in agents.items()
        }
    plain = averages(agents, train, weight)
    for mode, row in plain.items():
        row.get("r2", {}).pop("macro", None)
        assert found[mode].keys() == row.keys()
        for name, means in row.items():
            assert found[mode][name] == pytest.approx(means, abs=1e-8)


def test_a_model_without_finite_outputs_is_in_no_average() -> None:
    slots = FigureSlots.of({}, CLASSES)
    rows: list[Any] = [{"n": 4, "diverged": True}, {**of_classes(4), "loss": float("inf")}]
    for row in rows:
        assert not slots.vector({"server": row}, 9).any()


@pytest.mark.parametrize("lie", [-1, 5 << BITS, (2 << BITS) - 1])
def test_a_sum_that_no_honest_members_have_made_is_out_of_range(lie: int) -> None:
    slots = FigureSlots.of({}, CLASSES)
    totals = 2 * slots.vector({mode: of_classes(4) for mode in slots.modes}, 9).astype(np.int64)
    totals[3] = lie  # far more agents than there are, or less than none
    with pytest.raises(OutOfRangeError):
        slots.averages(totals, 2)


JUDGED: dict[str, Any] = {"deliver": {}}


def of_judge(candidates: int) -> dict[str, Any]:
    names = RNG.permutation(CANDIDATES)[:candidates]
    weights = RNG.dirichlet(np.ones(candidates))
    gain = (float(RNG.normal(0.1, 0.1)), float(RNG.exponential(0.001)))
    return {"weights": dict(zip(names.tolist(), weights.tolist(), strict=True)), "gain": gain}


def test_sums_have_the_weights_of_the_fleet_as_single_agents_give_them() -> None:
    slots = FigureSlots.of(JUDGED, CLASSES)
    agents = [of_judge(candidates) for candidates in (3, 5, len(CANDIDATES), 4)]
    vectors = [slots.vector({**one, "uses": {SERVED: 1.0}}, 9) for one in agents]
    found = slots.fleet(np.sum(vectors, axis=0).astype(np.int64), len(agents))
    of_each = FleetWeights.of([one["weights"] for one in agents], [one["gain"] for one in agents])
    assert found is not None
    assert found.weights == pytest.approx(of_each.weights, abs=2e-6)
    assert found.gains == of_each.gains


def test_an_agent_without_weights_of_its_own_adds_what_it_uses() -> None:
    slots = FigureSlots.of(JUDGED, CLASSES)
    totals = slots.vector({"uses": {SERVED: 0.75, "none": 0.25}}, 9).astype(np.int64)
    found = slots.fleet(totals, 1)
    assert found is not None
    assert found.weights == {"none": 0.25, SERVED: 0.75}
    assert not found.gains


def test_an_evaluation_without_the_judge_has_neither_weights_nor_delivered_figures() -> None:
    slots = FigureSlots.of(JUDGED, CLASSES)
    totals = slots.vector({"server": of_classes(4)}, 9).astype(np.int64)
    assert slots.fleet(totals, 1) is None
    assert DELIVERED not in slots.averages(totals, 1)


@pytest.mark.parametrize("place", ["weight", "holders", "gain"])
def test_weights_that_no_honest_members_have_made_are_out_of_range(place: str) -> None:
    slots = FigureSlots.of(JUDGED, CLASSES)
    totals = 2 * slots.vector({"uses": {SERVED: 1.0}}, 9).astype(np.int64)
    at = {"weight": 2 * len(CANDIDATES) + 2, "holders": len(CANDIDATES) + 2, "gain": 2}[place]
    totals[2 - 6 * at] += 9  # units of the integer part
    with pytest.raises(OutOfRangeError):
        slots.fleet(totals, 2)


# -- the workers of devices, whose owners demand sums ------------------------------------------------------------------


def watched(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any]]:
    """What each agent has measured, in the order of their work."""
    seen: list[Mapping[str, Any]] = []
    honest = FigureSlots.vector

    def vector(slots: FigureSlots, numbers: Mapping[str, Any], train: int) -> Any:
        seen.append(numbers)
        return honest(slots, numbers, train)

    monkeypatch.setattr(FigureSlots, "vector", vector)
    return seen


def test_a_fleet_that_demands_sums_has_the_weighted_averages_in_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watched(monkeypatch)
    devices = Devices(tmp_path)
    folder = made(devices, "run", evaluation={"tune_epochs": 1})
    assert devices.failures == []
    [one] = sums(folder, evaluations=True)
    assert (one["end"], len(one["reported"])) == ("sum", len(AGENTS))
    [found] = [row["evaluation"] for row in record(folder) if "evaluation" in row]
    for mode in ("server", "tuned"):
        errors = [figures[mode]["mse"] for figures in seen]
        rows = [figures[mode]["n"] for figures in seen]
        assert found[mode]["agents"] == len(AGENTS)
        mse = found[mode]["mse"]["micro"]
        assert mse == pytest.approx(np.average(errors, weights=rows), abs=1e-8)
    assert "last" not in found


def test_agents_weigh_by_all_their_samples_where_the_scenario_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: no order had the key, so that figures were weighed by test samples whatever it was."""
    honest = FigureSlots.vector
    weights: list[float] = []
    errors: list[float] = []

    def vector(slots: FigureSlots, numbers: Mapping[str, Any], train: int) -> Any:
        train *= len(weights)  # so that agents differ
        weights.append(numbers["server"]["n"] + train)
        errors.append(numbers["server"]["mse"])
        return honest(slots, numbers, train)

    monkeypatch.setattr(FigureSlots, "vector", vector)
    folder = made(Devices(tmp_path), "run", evaluation={"weight": "total"})
    [found] = [row["evaluation"] for row in record(folder) if "evaluation" in row]
    mse = found["server"]["mse"]["micro"]
    assert mse == pytest.approx(np.average(errors, weights=weights), abs=1e-8)


def test_no_figure_of_one_agent_is_in_a_report_or_in_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watched(monkeypatch)
    folder = made(Devices(tmp_path), "run", evaluation={"tune_epochs": 1})
    written = (folder / "rounds.jsonl").read_text()
    for figures in seen:
        for mode in ("server", "tuned", "last"):
            assert str(figures[mode]["mse"]) not in written
    checkpoint = json.dumps(record(folder))
    assert all(f'"{name}": {{"server"' not in checkpoint for name in AGENTS)


def test_devices_use_the_mixture_that_they_use_in_an_open_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watched(monkeypatch)
    devices = Devices(tmp_path / "sealed")
    sealed = run_of(devices, "run")
    assert devices.failures == []
    ends = [one["end"] for one in sums(devices.folder / "run", evaluations=True)]
    assert ends == ["sum"] * (1 + REFITS)
    owner = Devices(tmp_path / "open", limit="max_epochs=20")
    open_ = run_of(owner, "run", privacy=None)
    for place, (found, plain) in enumerate(
        zip(sealed.facts.fleets, open_.facts.fleets, strict=True)
    ):
        reported = seen[place * len(AGENTS) : (place + 1) * len(AGENTS)]
        of_each = FleetWeights.of(
            [one["weights"] for one in reported], [one["gain"] for one in reported]
        )
        assert found["weights"] == pytest.approx(of_each.weights, abs=2e-6)
        assert found["weights"] == pytest.approx(plain["weights"], abs=0.01)
        assert found["gains"] == plain["gains"]
    error = result_of(sealed, None).accuracy[DELIVERED]["mse"]["macro"]
    plain_error = result_of(open_, None).accuracy[DELIVERED]["mse"]["macro"]
    assert error == pytest.approx(plain_error, rel=0.01)
    assert error < 0.5 * result_of(sealed, None).accuracy["server"]["mse"]["macro"]
    uses = {name: kept.version["uses"] for name, kept in devices.kept.items()}
    assert uses.keys() == set(AGENTS)
    assert uses == {name: kept.version["uses"] for name, kept in owner.kept.items()}
    assert any("at home" in words for words in uses.values())


def test_a_fleet_of_several_groups_has_the_weights_of_all_its_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each device has those of all groups as its prior, and not those of its own."""
    seen = watched(monkeypatch)
    names = (*AGENTS, "a6")
    devices = Devices(tmp_path, "privacy={secure_least: 3}", names)
    small = {"secure": {"clip": 10.0, "cap": 1000, "group": 3}}
    run = run_of(devices, "run", privacy=small)
    assert devices.failures == []
    ends = [one["end"] for one in sums(tmp_path / "run", evaluations=True)]
    assert ends == ["sum", "sum"] * (1 + REFITS)
    for place, found in enumerate(run.facts.fleets):
        reported = seen[place * len(names) : (place + 1) * len(names)]
        weights, gains = ([one[what] for one in reported] for what in ("weights", "gain"))
        assert found["weights"] == pytest.approx(FleetWeights.of(weights, gains).weights, abs=2e-6)
    assert result_of(run, None).accuracy[DELIVERED]["agents"] == len(names)


def test_no_weight_of_one_agent_is_in_the_run_and_a_smaller_group_has_no_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member is gone once the fleet has its weights: what was found stays, and the run ends."""
    seen = watched(monkeypatch)
    honest = Secured._boxes

    def without_one(self: Secured, state: Any, reports: Any) -> Any:
        if state.progress.figures:
            reports = [one for one in reports if one[0] != VICTIM]
        return honest(self, state, reports)

    monkeypatch.setattr(Secured, "_boxes", without_one)
    run = run_of(Devices(tmp_path), "run")
    ends = [one["end"] for one in sums(tmp_path / "run", evaluations=True)]
    assert ends[0] == "sum"
    assert set(ends[1:]) == {"void"}
    assert len(seen) == len(AGENTS), "nobody was asked to weigh again"
    found = run.facts.fleets
    assert len(found) == 1 + REFITS
    assert found[0] == found[-1]
    assert result_of(run, None).accuracy[DELIVERED]["agents"] == len(AGENTS)
    kept = (tmp_path / "run" / "rounds.jsonl").read_text() + json.dumps(
        result_of(run, None).to_json()
    )
    for one in seen:
        numbers = [*one["weights"].values(), *one["gain"]]
        assert not [number for number in numbers if 0 < number < 1 and str(number) in kept]


def evaluate_fixed(monkeypatch: pytest.MonkeyPatch, *others: float) -> None:
    """Evaluations are of one model, whatever was trained, followed by further ones."""
    honest = FedAvg.model
    named = {"fixed": 1.0, **{f"other{i}": value for i, value in enumerate(others)}}

    def model(method: Any, state: Any, key: str) -> Any:
        if key not in named:
            return honest(method, state, key)
        return np.full(4, named[key], np.float32)

    monkeypatch.setattr(FedAvg, "model", model)
    monkeypatch.setattr(FedAvg, "serve", lambda *_: Order(models=tuple(named)))


def leave_out_of_evaluations(monkeypatch: pytest.MonkeyPatch, client: str) -> None:
    honest = Secured._boxes

    def lied(self: Secured, state: Any, reports: Any) -> Any:
        if state.progress.evaluates:
            reports = [one for one in reports if one[0] != client]
        return honest(self, state, reports)

    monkeypatch.setattr(Secured, "_boxes", lied)


LIES: dict[str, dict[str, Any]] = {
    "again": {},
    "another seed": {"seed": 4},
    "another fine-tuning": {"evaluation": {"tune_epochs": 1, "tune": {"lr": 0.01}}},
    "next to another model": {},
}


@pytest.mark.parametrize("lie", LIES)
def test_two_evaluations_of_one_model_with_a_member_less_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    devices = Devices(tmp_path, "privacy={secure_least: 3}")
    evaluate_fixed(monkeypatch)
    [first] = sums(made(devices, "run-1"), evaluations=True)
    assert (first["end"], devices.failures) == ("sum", [])
    evaluate_fixed(monkeypatch, *([7.0] if lie == "next to another model" else []))
    leave_out_of_evaluations(monkeypatch, VICTIM)
    folder = made(devices, "run-2", **LIES[lie])
    found = sums(folder, evaluations=True)
    assert found
    assert not [one for one in found if one["end"] == "sum"]
    assert any("summed before" in why for why in devices.failures)
    assert [row["evaluation"] for row in record(folder) if "evaluation" in row] == [{}]


def test_another_model_may_be_evaluated_with_other_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = Devices(tmp_path, "privacy={secure_least: 3}")
    made(devices, "run-1")
    leave_out_of_evaluations(monkeypatch, VICTIM)
    folder = made(devices, "run-2", seed=4, rounds={"count": 2})
    [one] = sums(folder, evaluations=True)
    assert (one["end"], len(one["reported"])) == ("sum", 4)


def test_an_agent_without_test_rows_shows_no_box_for_an_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its part of the sum would be nothing, and would not hide the others."""
    devices = Devices(tmp_path, "privacy={secure_least: 3}")
    honest = Devices.work

    def work(self: Devices, run: Any, client: str, order: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            if client == VICTIM:
                patch.setattr(
                    "covey.agent.worker.participant.TestTargets.targets", lambda *_: np.zeros(0)
                )
            return honest(self, run, client, order)

    monkeypatch.setattr(Devices, "work", work)
    [one] = sums(made(devices, "run"), evaluations=True)
    assert (one["end"], one["reported"]) == ("sum", [name for name in AGENTS if name != VICTIM])
    assert devices.failures == []
