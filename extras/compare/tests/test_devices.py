"""A record names the kinds of devices that computed the run: what needs `compare` and `simulate`."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.coordinator.run.options import RunOptions
from covey.extras.compare.tests.comparisons import DIGITS
from covey.extras.compare.tests.comparisons import scenario as small
from covey.extras.simulate import driver
from covey.extras.simulate.tests.device_run import here


def test_a_simulation_that_trains_agents_together_gets_the_figures_of_single_ones(
    tmp_path: Path,
) -> None:
    results = []
    for together in (None, 2):
        fleet = {**DIGITS["fleet"], "together": together}
        options = RunOptions(tmp_path / str(together))
        scene = small(fleet=fleet, rounds={"count": 2, "participation": 1.0})
        results.append(driver.simulate(scene, options, here(), lambda row: None))
    alone, batch = results
    assert (alone["devices"], batch["devices"]) == ({"cpu": 6}, {"cpu batched": 6})
    for mode in ("server", "tuned"):
        ours, theirs = (one["accuracy"][mode]["loss"]["macro"] for one in (batch, alone))
        assert ours == pytest.approx(theirs, rel=1e-3)
