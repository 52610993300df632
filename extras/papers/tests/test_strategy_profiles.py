"""FLUX and Feroma: who is similar by profiles of the data, and what follows from it."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from covey.extras.papers.feroma import Feroma, FeromaState
from covey.extras.papers.flux import Flux
from covey.extras.papers.profile import length_of, profile
from covey.shared.strategies.base import Phase, View
from covey.shared.strategies.reading import folded
from tests.bowl import flat
from tests.drive import Run
from tests.kit.small_run import scenario
from tests.shared.planted import SGD, job, layout_of, run, setup, softmaxes


def test_a_profile_has_means_and_deviations_of_outputs_over_all_samples_and_by_class() -> None:
    local = softmaxes(2)["c0"]
    model = np.random.default_rng(1).standard_normal(local.layout.size).astype(np.float32)
    outputs, labels = local.predict(model, "train"), local.targets("train")
    found = profile(local, model)
    assert len(found) == length_of(outputs.shape[1]) == 2 * 4 + 2 * 16
    np.testing.assert_allclose(found[:4], outputs.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(found[8:12], outputs[labels == 0].mean(axis=0), atol=1e-5)
    assert not found[16:20].any(), "a class without samples"


def test_flux_trains_one_model_and_then_clusters_once() -> None:
    end = run(Flux(), softmaxes(8), SGD, rounds=5)
    assert [phase.name for phase, _ in end.phases] == ["train"] * 3 + ["signature"] + ["train"] * 2
    labels = [*end.state.assign.values()]
    assert all(labels[i] != labels[i + 1] for i in range(7)), "no cluster has both kinds of labels"
    assert end.strategy.shown(end.state).notes["radius"] > 0


def test_a_newcomer_of_flux_joins_the_nearest_cluster() -> None:
    end = run(Flux(), softmaxes(8), SGD, rounds=6, joins={"c7": 5})
    assert end.state.assign["c7"] in {end.state.assign[client] for client in ("c1", "c3", "c5")}


def test_agents_with_one_profile_are_one_cluster() -> None:
    alike = dict.fromkeys([f"c{i}" for i in range(5)], softmaxes(1)["c0"])
    end = run(Flux(), alike, SGD, rounds=4)
    assert len(end.state.models) == 1


def test_feroma_weighs_models_by_samples_over_distance() -> None:
    """Profiles at 0, 1 and 3 of the agents; the own distance is that of the nearest other one."""
    profiles = {name: flat(*[place] * 12) for name, place in (("a", 0), ("b", 1), ("c", 3))}
    state = FeromaState(
        flat(0, 0),
        outputs=2,
        round=5,
        stored={"a": flat(1, 0), "b": flat(0, 1), "c": flat(5, 5)},
        samples={"a": 10, "b": 10, "c": 30},
        profiles=profiles,
    )
    weights = np.array([10 / 1, 10 / 1, 30 / 3])
    models = np.array([[1, 0], [0, 1], [5, 5]])
    expected = weights @ models / weights.sum()
    np.testing.assert_allclose(Feroma().model(state, "@a"), expected, rtol=1e-4)


def test_feroma_is_fedavg_until_profiles_are_made_and_a_stranger_gets_a_mixture() -> None:
    clients = softmaxes(6)
    end = Run(Feroma(), setup(clients, SGD, rounds=5), clients).rounds(4)
    names = [phase.name for phase, _ in end.phases]
    assert names == ["train", "train", "train", "entry", "train"]
    phase = Phase("entry", ("new",), ends_round=False)
    order = job(end.state.common, phase="entry", layout=layout_of(clients))
    stranger, _ = end.strategy.work(order, clients["c1"], {})
    after = folded(end.strategy, end.state, phase, reports=[("new", stranger)])
    assert end.strategy.serve(after, "new").models == ("@new",)
    assert end.strategy.model(after, "@new").shape == end.state.common.shape


def test_a_privacy_section_is_refused_by_both() -> None:
    for name in ("flux", "feroma"):
        with pytest.raises(ValidationError, match="without noise"):
            scenario(name, privacy={"client": {"clip": 1.0, "noise_multiplier": 1.0}})
    assert Feroma().plan(FeromaState(flat(0, 0)), View(0, 3, 0, ())).sizes == {"model": 2}
