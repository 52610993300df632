"""What signatures reveal, measured: labels are read from FedClust's final layers, and noise takes that away."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.leakage import Reading, mean_in_span, read, table


@pytest.fixture(scope="module")
def readings() -> dict[float | None, Reading]:
    return {one.noise: one for one in read(1, (0.0, 0.03, 0.1, 0.3, 1.0))}


def test_labels_are_read_from_the_biases_of_a_signature_without_noise(
    readings: dict[float | None, Reading],
) -> None:
    assert readings[None].biases > 0.99
    assert readings[None].learnt > 0.95


def test_a_clip_alone_hides_nothing(readings: dict[float | None, Reading]) -> None:
    assert readings[0.0].biases > 0.99


def test_noise_takes_it_away_little_by_little(readings: dict[float | None, Reading]) -> None:
    amounts = (0.0, 0.1, 0.3, 1.0)
    falling = [readings[amount].biases for amount in amounts]
    assert falling == sorted(falling, reverse=True)
    assert readings[1.0].biases < 0.7
    assert readings[1.0].learnt < 0.75


def test_what_pacfl_sends_holds_the_mean_image_of_each_class() -> None:
    assert mean_in_span(1) > 0.95


def test_the_table_has_a_line_for_each_amount_of_noise(
    readings: dict[float | None, Reading],
) -> None:
    lines = table(list(readings.values())).splitlines()
    assert len(lines) == 2 + len(readings)
    assert "none, no clip" in lines[2]
    assert np.isfinite([one.learnt for one in readings.values()]).all()
