"""Clipped sums, noised signatures, and scenarios that promise what cannot be kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from covey.shared.numerics.vectors import Vector
from covey.shared.privacy.settings import (
    AgentPrivacy,
    LocalPrivacy,
    Noise,
    Privacy,
    SignaturePrivacy,
    clipped_sum,
    combined_multiplier,
    noised,
    noised_count,
)
from tests.kit.small_run import scenario
from tests.methods import of_each_kind

CLIENT = {"client": {"clip": 1.0, "noise_multiplier": 1.0}}
SIGNED = {**CLIENT, "signatures": {"clip": 1.0, "noise_multiplier": 0.5}}
PARTS = {"lg", "fedrep", "fedrep-fedper", "fedbabu", "fedbn"}  # share a part of their model
POSSIBLE = {
    "fedavg",
    "fedprox",
    "ditto",
    "feddist",
    "feddws",
    "given",
    "local",
    "fedclust",
    "pacfl",
    "fesem",
    "ifca",
} | PARTS
LOCALLY = {
    "fedavg",
    "fedprox",
    "ditto",
    "feddist",
    "feddws",
    "given",
    "local",
    "fedclust",
    "fesem",
} | PARTS
PRIVATE_OPTIONS: dict[str, dict[str, Any]] = {
    "ifca": {"shared_trunk": False},
    "fesem": {"m_step": "participants"},
}


def vectors(seed: int, count: int, scale: float) -> list[Vector]:
    draw = np.random.default_rng(seed)
    lengths = scale * 10 ** draw.uniform(-3, 3, count)
    return [(length * draw.normal(size=40)).astype(np.float32) for length in lengths]


@given(seed=st.integers(0, 10_000), count=st.integers(1, 12), clip=st.floats(1e-3, 1e3))
def test_one_report_more_or_less_changes_the_sum_by_at_most_the_clip(
    seed: int, count: int, clip: float
) -> None:
    base = np.random.default_rng(seed + 1).normal(size=40).astype(np.float32)
    reports = vectors(seed, count, clip)
    with_all = clipped_sum(reports, base, clip)
    for left_out in range(count):
        others = reports[:left_out] + reports[left_out + 1 :]
        change = with_all - clipped_sum(others, base, clip)
        assert np.linalg.norm(change) <= clip * (1 + 1e-9)


def test_a_step_within_the_clip_is_summed_as_it_is() -> None:
    base = np.ones(40, np.float32)
    near = base + np.float32(0.01)
    assert np.allclose(clipped_sum([near, near], base, 10.0), 2 * (near.astype(np.float64) - base))


def test_a_noised_signature_is_within_the_clip_before_noise_and_has_the_noise_that_was_declared() -> (
    None
):
    base = np.random.default_rng(0).normal(size=20_000).astype(np.float32)
    far = base + np.random.default_rng(1).normal(size=20_000).astype(np.float32)
    clipped = noised(
        far, base, SignaturePrivacy(clip=2.0, noise_multiplier=0.0), Noise.simulated(1, "t")
    )
    assert np.linalg.norm(clipped.astype(np.float64) - base) == pytest.approx(2.0, rel=1e-4)
    hidden = noised(
        far, base, SignaturePrivacy(clip=2.0, noise_multiplier=0.5), Noise.simulated(1, "t")
    )
    assert np.std(hidden - clipped) == pytest.approx(1.0, rel=0.05)


def test_a_count_is_used_only_where_it_cannot_be_that_of_an_empty_cluster() -> None:
    empty = [noised_count(0, 1.0, Noise.simulated(seed, "c")) for seed in range(2000)]
    assert sum(one is not None for one in empty) <= 10  # beyond three deviations: 0.13 % of them
    full = [noised_count(50, 1.0, Noise.simulated(seed, "c")) for seed in range(2000)]
    seen = [one for one in full if one is not None]
    assert len(seen) == len(full)
    assert np.std(seen) == pytest.approx(2.0, rel=0.1)
    assert noised_count(7, 0.0, Noise.simulated(1, "c")) == 7
    assert noised_count(0, 0.0, Noise.simulated(1, "c")) is None


def test_a_noised_count_costs_as_much_as_the_account_records() -> None:
    for multiplier in (0.5, 1.0, 3.0):
        both = 1 / multiplier**2 + 1 / (2 * multiplier) ** 2
        assert combined_multiplier(multiplier) == pytest.approx(both**-0.5)


@pytest.mark.parametrize("method", of_each_kind("client noise"))
def test_client_level_privacy_is_kept_or_refused_with_a_reason(method: str) -> None:
    options = PRIVATE_OPTIONS.get(method, {})
    signed = method in ("fedclust", "pacfl", "fesem")
    if method in POSSIBLE:
        assert (
            scenario(method, privacy=SIGNED if signed else CLIENT, strategy=options).privacy
            is not None
        )
    else:
        with pytest.raises(ValidationError, match=r"privacy\.client: "):
            scenario(method, privacy=CLIENT, strategy=options)


@pytest.mark.parametrize("method", of_each_kind("example noise"))
def test_example_level_privacy_is_kept_or_refused_with_a_reason(method: str) -> None:
    local = {"local": {"noise_multiplier": 1.0}}
    if method in LOCALLY:
        assert scenario(method, privacy=local).privacy is not None
    else:
        with pytest.raises(ValidationError, match=r"privacy\.local: "):
            scenario(method, privacy=local)


@pytest.mark.parametrize(
    ("method", "sections", "said"),
    [
        ("fedclust", {"privacy": CLIENT}, "the phases signature and entry send"),
        ("fesem", {"privacy": SIGNED}, "m_step"),
        ("ifca", {"privacy": CLIENT}, "shared_trunk"),
        (
            "ifca",
            {"privacy": CLIENT, "strategy": {"shared_trunk": False, "reseed_dead": True}},
            "reseed_dead",
        ),
        (
            "ifca",
            {"privacy": CLIENT, "strategy": {"shared_trunk": False, "initial": "kmeans++"}},
            "kmeans",
        ),
        ("fedavg", {"privacy": SIGNED}, "fedavg sends no signature"),
        (
            "fedavg",
            {"privacy": CLIENT, "task": {"standardise": "federated"}},
            "sums of the data without noise",
        ),
        (
            "fedavg",
            {"privacy": CLIENT, "task": {"classes": None, "target_scale": "federated"}},
            "statistics of the data for task.target_scale without noise",
        ),
        (
            "fedavg",
            {"privacy": CLIENT, "aggregation": {"rule": "median"}},
            "set aggregation.rule to mean",
        ),
        ("fedavg", {"privacy": {"local": {}}}, "either noise_multiplier or target_epsilon"),
        (
            "fedavg",
            {"privacy": {"local": {"noise_multiplier": 1, "target_epsilon": 1}}},
            "either noise_multiplier or",
        ),
    ],
)
def test_an_impossible_privacy_promise_is_refused_with_its_reason(
    method: str, sections: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValidationError) as error:
        scenario(method, **sections)
    assert said in str(error.value)


def test_a_method_of_a_comparison_is_held_to_the_same_promise() -> None:
    fleet = {"agents": 8}
    with pytest.raises(ValidationError, match="cfl"):
        scenario("fedavg", privacy=CLIENT, fleet=fleet, compare={"methods": [{"name": "cfl"}]})


def test_an_order_carries_the_agents_part_and_not_the_coordinators() -> None:
    privacy = Privacy.model_validate({**SIGNED, "local": {"noise_multiplier": 2.0}})
    wire = privacy.for_agents(7)
    assert "client" not in wire
    assert AgentPrivacy.from_wire(wire) == AgentPrivacy(
        privacy.signatures, LocalPrivacy(noise_multiplier=2.0), 7
    )
    assert AgentPrivacy.from_wire(None) == AgentPrivacy(None, None, 1)
