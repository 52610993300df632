"""The named data sets of simulated fleets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from covey.agent.data.named import find_root, load_named
from covey.shared import extras
from covey.shared.errors import DataError, UserError
from tests.agent.real_data import real


def test_digits_are_embedded() -> None:
    data = load_named("digits")
    assert data.features.shape == (1797, 1, 8, 8)
    assert (data.features.min(), data.features.max()) == (0, 16)
    assert np.bincount(data.targets).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_digits_are_what_scikit_learn_loads() -> None:
    data, reference = load_named("digits"), load_digits()
    assert np.array_equal(data.features[:, 0], reference.images)
    assert np.array_equal(data.targets, reference.target)


def test_a_real_set_keeps_its_small_type() -> None:
    data = real("fashion-mnist")
    assert (data.shape, data.features.dtype.name) == ((1, 28, 28), "uint8")
    assert (len(data.targets), len(data.test_targets)) == (60_000, 10_000)


def test_a_set_that_an_extra_reads_is_refused_by_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "PACKAGE", "covey.gone")
    np.savez(tmp_path / "har.npz", x=np.zeros((3, 2)), y=[0, 1, 0])
    with pytest.raises(UserError, match=r"data set 'har': needs covey's extra `formats`"):
        load_named("har", tmp_path)


def test_a_missing_data_set_is_refused_with_its_expected_path(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cifar10\.npz.*--data-root or COVEY_DATA_ROOT"):
        load_named("cifar10", tmp_path)


def test_a_path_below_the_root_is_loaded_by_its_kind(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.csv").write_text("f,label\n1,0\n2,1\n")
    assert len(load_named("sub/a.csv", tmp_path).targets) == 2


def test_the_root_is_the_option_then_the_variable_then_the_neighbour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("COVEY_DATA_ROOT", raising=False)
    assert find_root() is None
    (tmp_path / "shared" / "data").mkdir(parents=True)
    assert find_root() == Path("../shared/data")
    monkeypatch.setenv("COVEY_DATA_ROOT", "/elsewhere")
    assert find_root() == Path("/elsewhere")
    assert find_root("/chosen") == Path("/chosen")
