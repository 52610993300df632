"""The judge of each agent in a whole run: the fleet's weights come back to the agents, and nothing that is killed changes a figure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.coordinator.record.records import lines
from covey.coordinator.run.result import result_of
from covey.coordinator.run.run import Run
from covey.coordinator.simulate.virtual_clock import Driver
from covey.extras.judge.on_device import OnDevice
from covey.shared.candidate_names import DELIVERED, MEMORY, REFITS, REPORTED
from covey.shared.scenario.evaluation import Evaluation
from covey.shared.strategies.base import ClientId
from covey.shared.strategies.client_half import Fold
from covey.shared.strategies.phase_names import EVALUATE
from covey.shared.wire.messages import OrderMessage, ReportContent
from covey.shared.work.at_hand import AtHand, seen_by_methods
from tests.bowl import Softmax
from tests.kit import small_run
from tests.kit.local_clients import Client, LocalClients

SCENE = small_run.judged("fedavg", rounds={"participation": 1.0})
PEOPLE = small_run.clients()


def folds(local: Softmax) -> Iterator[Fold]:
    """Three, each sample a unit."""
    for third in range(3):
        tests = np.arange(len(local.y)) % 3 == third
        yield Fold(
            _Fold(replace(local, x=local.x[~tests], y=local.y[~tests]), local, tests),
            np.flatnonzero(tests),
        )


class _Fold:
    """Trains on some samples, and answers on the others."""

    def __init__(self, local: Softmax, whole: Softmax, tests: Any) -> None:
        self._local, self._tests = local, replace(whole, x=whole.x[tests], y=whole.y[tests])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._local, name)

    def _of(self, split: str) -> Softmax:
        return self._tests if split == "test" else self._local

    def targets(self, split: str) -> Any:
        return self._of(split).y

    def predict(self, model: Any, split: str) -> Any:
        return self._of(split).predict(model, "train")

    def features(self, model: Any, split: str) -> Any:
        return self._of(split).x


class Judges(LocalClients):
    """Clients with folds; some of them lose all that they have not reported, as after a kill -9."""

    lose: frozenset[ClientId] = frozenset()
    new: Callable[[], Any] = staticmethod(lambda: None)

    def client(self, run: Run, client: ClientId, order: OrderMessage) -> Client:
        if client in self.lose:
            self.memories.pop(client, None)
        local: Any = self.local_for(client, order)
        return Client(
            client=client, given=AtHand(local, folds=folds(local), judge=OnDevice(new=self.new))
        )


def run(folder: Path, lose: frozenset[ClientId] = frozenset(), scene: Any = SCENE) -> Run:
    driver, clients = driven(folder, scene=scene)
    clients.lose = lose
    return driver.complete(small_run.samples_of(PEOPLE))


def driven(
    folder: Path, make: type[Judges] = Judges, scene: Any = SCENE
) -> tuple[Driver[LocalClients], Judges]:
    driver, clients = small_run.driver(folder, scene, PEOPLE), make(small_run.local_for(PEOPLE))
    driver.clients = clients
    return driver, clients


def of_evaluations(folder: Path) -> list[dict[str, Any]]:
    return [row for row in lines(folder) if row.get("phase") == EVALUATE]


def test_agents_fit_again_with_the_fleets_weights_and_use_what_follows(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert len(of_evaluations(tmp_path)) == 1 + REFITS
    assert len(done.facts.fleets) == 1 + REFITS
    fleet = done.facts.fleet
    assert fleet is not None
    assert sum(fleet["weights"].values()) == pytest.approx(1)
    assert asdict_of(done)["fleet"]["weights"] == fleet["weights"]
    uses = asdict_of(done)["uses"]
    assert uses.keys() == PEOPLE.keys()
    # each agent has two of the labels, so that training at home is for all of them
    assert fleet["gains"]
    delivered, server = (
        result_of(done, None).accuracy[mode]["accuracy"]["macro"] for mode in (DELIVERED, "server")
    )
    assert delivered > server


def test_trained_models_and_figures_of_other_modes_are_as_without_a_judge(tmp_path: Path) -> None:
    judged = run(tmp_path / "judged")
    served = small_run.scenario(
        "fedavg", rounds={"participation": 1.0}, evaluation={"deliver": "served"}
    )
    plain = run(tmp_path / "plain", scene=served)
    assert small_run.fingerprint(judged) == small_run.fingerprint(plain)
    assert len(of_evaluations(tmp_path / "plain")) == 1
    for mode in ("server", "tuned", "last"):
        assert result_of(judged, None).accuracy[mode] == result_of(plain, None).accuracy[mode], mode
    assert "uses" not in asdict_of(plain)


def test_agents_whose_served_model_learns_nothing_begin_at_home_with_new_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [good] = run(tmp_path / "good").models
    idle = small_run.judged(
        "fedavg", rounds={"participation": 1.0}, training={"lr": 1e-9, "epochs": 1, "batch": 8}
    )
    monkeypatch.setattr(Judges, "new", staticmethod(lambda: good))
    lost = frozenset(["agent-1"])  # it judges again, with the same weights
    done = run(tmp_path / "idle", lost, scene=idle)
    accuracy = result_of(done, None).accuracy
    assert accuracy[DELIVERED]["accuracy"]["macro"] > accuracy["server"]["accuracy"]["macro"] + 0.2
    assert all(
        any(one.startswith("home") for one in uses) for uses in asdict_of(done)["uses"].values()
    )
    whole = run(tmp_path / "whole", scene=idle)
    assert asdict_of(done)["uses"] == asdict_of(whole)["uses"]


def test_an_agent_that_lost_what_it_had_judged_judges_again_and_the_figures_stay(
    tmp_path: Path,
) -> None:
    whole, lost = run(tmp_path / "whole"), run(tmp_path / "lost", frozenset(["agent-1"]))
    assert asdict_of(lost)["uses"] == asdict_of(whole)["uses"]
    assert result_of(lost, None).accuracy[DELIVERED] == result_of(whole, None).accuracy[DELIVERED]


@pytest.mark.parametrize("evaluations", [1, 2])
def test_a_coordinator_that_is_killed_between_the_orders_of_the_judge_ends_with_the_same_bytes(
    tmp_path: Path, evaluations: int
) -> None:
    whole = run(tmp_path / "whole")
    driver, clients = driven(tmp_path / "killed")

    class Killed(Exception):  # noqa: N818
        pass

    taken = clients.work

    def work(run: Run, client: ClientId, order: OrderMessage) -> ReportContent:
        if len(run.facts.fleets) == evaluations and client == "agent-3":
            raise Killed
        return taken(run, client, order)

    clients.work = work  # type: ignore[method-assign]
    with pytest.raises(Killed):
        driver.complete(small_run.samples_of(PEOPLE))
    again, effects = Run.resume(
        tmp_path / "killed", SCENE, small_run.setup(SCENE), rules=small_run.rules(SCENE), now=0.0
    )
    fresh = Judges(small_run.local_for(PEOPLE))
    fresh.memories = clients.memories
    done = Driver(again, fresh).complete(small_run.samples_of(PEOPLE), [*effects, *again.desired()])
    assert asdict_of(done)["uses"] == asdict_of(whole)["uses"]
    assert done.facts.fleets == whole.facts.fleets
    assert small_run.fingerprint(done) == small_run.fingerprint(whole)


def test_a_method_never_sees_what_the_judge_keeps_and_nothing_of_it_is_left_after_the_run(
    tmp_path: Path,
) -> None:
    driver, clients = driven(tmp_path)
    kept: dict[str, Any] = {}
    work = clients.work

    def watched(run: Run, client: ClientId, order: OrderMessage) -> ReportContent:
        kept.update(clients.memories.get(client, {}))
        return work(run, client, order)

    clients.work = watched  # type: ignore[method-assign]
    driver.complete(small_run.samples_of(PEOPLE))
    assert any(key.startswith(MEMORY) for key in kept)
    assert not any(key.startswith(MEMORY) for key in seen_by_methods(kept))
    for memory in clients.memories.values():
        assert not any(key.startswith(MEMORY) for key in memory)


def test_all_numbers_of_the_judge_are_in_its_reports(tmp_path: Path) -> None:
    numbers: list[dict[str, Any]] = []

    class Heard(Judges):
        def work(self, run: Run, client: ClientId, order: OrderMessage) -> ReportContent:
            report = super().work(run, client, order)
            if report.numbers.keys() & set(REPORTED):
                numbers.append(dict(report.numbers))
            return report

    driver, _ = driven(tmp_path, Heard)
    driver.complete(small_run.samples_of(PEOPLE))
    assert len(numbers) == (1 + REFITS) * len(PEOPLE)
    assert all(one.keys() >= set(REPORTED) for one in numbers)


def test_the_earlier_choice_of_deliver_is_refused_with_what_it_is_now() -> None:
    with pytest.raises(ValueError, match="a device now weighs all that it can have; leave it out"):
        Evaluation.model_validate({"deliver": "best"})
    assert Evaluation.model_validate({"deliver": {"single": True}}).judges
    assert not Evaluation.model_validate({"deliver": "served"}).judges


def asdict_of(run: Run) -> dict[str, Any]:
    return result_of(run, None).to_json()
