"""What an agent's own worker answers to a coordinator that asks for figures, in order to learn what a sum or noise hides: what needs `secure`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.extras.secure.secure_folder import SIGNING_KEY, SecureFolder
from covey.extras.secure.simulated import simulated_identity
from tests.attacks.test_what_leaves import EVERYTHING, VALUES, Device, figures

SEED = 3


def with_keys(folder: Path) -> None:
    """Keys of a device that takes part in secure sums."""
    identity = simulated_identity(SEED, "a1")
    SecureFolder.take_entry(folder, identity.entry, identity.fleet)
    (folder / SIGNING_KEY).write_bytes(identity.secret)


def test_a_figure_right_after_training_does_not_ride_along_with_what_the_owner_shows(
    tmp_path: Path,
) -> None:
    """`evaluation.track` is measured after the report of secure sums was stripped of its numbers."""
    with_keys(tmp_path / "secure")
    device = Device(tmp_path, "privacy={secure_least: 5, secure_clear: true}")
    report = device.report(
        phase="signature",
        strategy={"name": "fedclust"},
        evaluation=EVERYTHING,
        sizes={"signature": VALUES},
        privacy={"secure": {"clip": 1.0}, "local": None, "signatures": None, "rounds": 1},
    )
    assert report.vectors.keys() == {"signature"}
    assert figures(report) == {}


SUMMED: dict[str, Any] = {"secure": {"clip": 1.0}, "local": None, "signatures": None, "rounds": 1}


@pytest.mark.parametrize("limit", ["", "privacy={secure_least: 5}"])
def test_the_oracle_of_chosen_models_has_no_figure_of_one_agent_under_secure_sums(
    tmp_path: Path, limit: str
) -> None:
    """Some 160 figures of models that a coordinator chose gave this agent's update, also where its run had secure sums."""
    with_keys(tmp_path / "secure")
    device = Device(tmp_path, limit)
    unit = np.eye(VALUES)
    asked = [np.zeros(VALUES), *unit, *-unit, *(one + unit[0] for one in unit[1:])]
    for model in asked:
        wanted: dict[str, Any] = {"phase": "evaluate", "evaluation": EVERYTHING}
        assert figures(device.report(model, privacy=SUMMED, **wanted)) == {}
        for privacy in (SUMMED, None):  # a vector, without members to hide it
            sized = device.report(model, privacy=privacy, sizes={"model": VALUES}, **wanted)
            assert (sized.vectors, sized.numbers) == ({}, {})
            assert "secure sums" in str(sized.failure)
