"""Noise where others have laws of their own: sums in any order, parts of a model, a compute device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from covey.extras.private.private_sums import Ledger, PrivateSums
from covey.shared.privacy.settings import Budget, LocalPrivacy, Noise, Trainings
from covey.shared.strategies.client_half import Drill
from covey.shared.strategies.reading import folded
from tests.agent.test_compute_device import Watch, elsewhere, local_of
from tests.agent.test_learner import TABLE
from tests.coordinator.test_split_runs import ALL, BOTH, ended, scene_of, tensors
from tests.coordinator.test_sum_laws import folds_of, in_orders, on_arrival, state_after
from tests.drive import fingerprint
from tests.kit import small_run
from tests.kit.small_run import scenario
from tests.methods import METHODS, of_each_kind

__all__ = ["elsewhere"]  # a fixture

CLIENT = {"clip": 0.5, "noise_multiplier": 1.0, "delta": 1e-5}
SIGNATURES = {"clip": 1.0, "noise_multiplier": 0.1}


def is_private(method: str) -> bool:
    return scenario(method).strategy.privacy.routes is not None


@pytest.mark.parametrize("method", of_each_kind("noise", filter(is_private, METHODS)))
def test_noise_is_the_same_in_any_order_of_arrival_and_another_in_the_next_step(
    method: str, tmp_path: Path
) -> None:
    signs = bool(scenario(method).strategy.facts.signatures)
    privacy = {"client": CLIENT, "signatures": SIGNATURES} if signs else {"client": CLIENT}
    scene = scenario(method, privacy=privacy, fleet={"agents": 8})
    state, phase, reports = folds_of(method)[-1]

    def sums() -> PrivateSums:
        assert scene.privacy is not None
        return PrivateSums(scene, scene.privacy, b"key", Ledger())

    found = [
        state_after(tmp_path / str(place), scene, on_arrival, state, phase, shuffled, sums())
        for place, shuffled in enumerate(in_orders(reports))
    ]
    assert found[1:] == found[:-1]
    if phase.sizes:
        plain = fingerprint(folded(scene.strategy, state, phase, reports=reports))
        assert found[0] != plain


def test_clipping_and_noise_concern_the_shared_part_alone(tmp_path: Path) -> None:
    privacy = {"client": {"noise_multiplier": 1.0, "clip": 0.5}}
    run, states = ended(tmp_path, scene_of("fedavg", BOTH, privacy=privacy, rounds=ALL))
    starts, layout = small_run.starts(run.scenario)
    frozen = layout.named(starts[0])["fc1.weight"]
    assert np.array_equal(tensors(run, run.models[0])["fc1.weight"], frozen)
    assert run.privacy is not None
    assert len(states) == 8


def test_dp_sgd_works_on_the_device(elsewhere: Watch) -> None:
    pytest.importorskip("opacus")
    local, start = local_of(TABLE)
    budget = Budget(Trainings(), 2, 0)
    local.enable_privacy(
        LocalPrivacy(noise_multiplier=1.0), budget, Noise.simulated(1, "test"), None
    )
    elsewhere.products.clear()
    done = local.train(start, Drill(epochs=1))
    assert done.steps > 0
    assert done.end.dtype == np.float32
    assert local.spent() > 0
    assert elsewhere.products == {"meta"}
