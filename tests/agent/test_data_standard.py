"""LEAF, EMNIST and SVHN as they ship: small files in the exact formats, and how a damaged one is named."""

from __future__ import annotations

import builtins
import gzip
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from covey.agent.data import load, load_named
from covey.agent.data.check import load_local
from covey.agent.data.partition import client_dataset, fleet_data
from covey.shared.errors import DataError
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.task import Model, Task

Bytes = npt.NDArray[np.uint8]


# -- LEAF ---------------------------------------------------------------------------------------------


def leaf_file(path: Path, users: dict[str, tuple[list[Any], list[Any]]], /, **changes: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    path.write_text(json.dumps({**content, **changes}))
    return path


def pixels(value: float, n: int) -> list[list[float]]:
    return [[value] * 783 + [i / 8] for i in range(n)]


def femnist(folder: Path) -> Path:
    """Three writers in two files, each with a test sample or two of her own."""
    leaf_file(
        folder / "train/all_data_0_niid_0_keep_0_train_9.json",
        {"f0001_41": (pixels(0.25, 3), [61, 0, 5])},
    )
    leaf_file(
        folder / "train/all_data_1_niid_0_keep_0_train_9.json",
        {"f0000_14": (pixels(0.5, 2), [1, 2]), "f0002_10": (pixels(1.0, 4), [3, 3, 3, 4])},
    )
    tests = {"f0001_41": (pixels(0.25, 1), [7]), "f0000_14": (pixels(0.5, 1), [8])}
    leaf_file(
        folder / "test/all_data_0_niid_0_keep_0_test_9.json",
        {**tests, "f0002_10": (pixels(1.0, 2), [9, 10])},
    )
    return folder


def test_femnist_as_leaf_writes_it_keeps_its_writers(tmp_path: Path) -> None:
    data = load(femnist(tmp_path))
    assert (data.shape, data.features.dtype.name) == ((1, 28, 28), "float32")
    assert data.targets.tolist() == [61, 0, 5, 1, 2, 3, 3, 3, 4]
    assert data.features[1].ravel()[[0, -1]].tolist() == [0.25, 0.125]
    assert data.groups is not None
    assert data.groups.tolist() == ["f0001_41"] * 3 + ["f0000_14"] * 2 + ["f0002_10"] * 4
    assert data.test_groups is not None
    assert (data.test_groups.tolist()[2:], data.test_targets.tolist()) == (
        ["f0002_10"] * 2,
        [7, 8, 9, 10],
    )


def by_group(data: str, agents: int) -> Scenario:
    return Scenario.model_validate(
        {
            "name": "t",
            "task": {"features": [1, 28, 28], "classes": 62, "model": {"name": "linear"}},
            "strategy": {"name": "fedavg"},
            "rounds": {"count": 1},
            "fleet": {"agents": agents, "data": data, "partition": {"name": "by_group"}},
        }
    )


def test_a_leaf_folder_below_the_data_root_gives_each_agent_one_writer_and_her_own_test_part(
    tmp_path: Path,
) -> None:
    femnist(tmp_path / "femnist")
    data, split = fleet_data(by_group("femnist", 3), tmp_path)
    parts = [client_dataset(data, split, i) for i in range(3)]
    assert [part.targets.tolist() for part in parts] == [
        [1, 2],
        [61, 0, 5],
        [3, 3, 3, 4],
    ]  # in the order of names
    assert [part.test_targets.tolist() for part in parts] == [[8], [7], [9, 10]]


def test_a_leaf_split_by_users_leaves_each_agent_a_test_part_of_its_training_samples(
    tmp_path: Path,
) -> None:
    leaf_file(
        tmp_path / "train/a.json", {"a": (pixels(0, 5), [0] * 5), "b": (pixels(0, 5), [1] * 5)}
    )
    leaf_file(tmp_path / "test/a.json", {"c": (pixels(0, 5), [2] * 5)})
    data, split = fleet_data(by_group(".", 2), tmp_path)
    assert [len(client_dataset(data, split, i).test_targets) for i in range(2)] == [1, 1]


def test_one_leaf_file_is_a_devices_data(tmp_path: Path) -> None:
    path = leaf_file(tmp_path / "mine.json", {"me": ([[1.5, 2], [3, 4]] * 5, [0, 1] * 5)})
    data = load_local(path, task=Task(features=(2,), classes=2, model=Model(name="linear")))
    assert (len(data.targets), len(data.test_targets), data.shape) == (8, 2, (2,))


def celeba(folder: Path, raw: str = "raw/img_align_celeba") -> Path:
    image = pytest.importorskip("PIL.Image")
    (folder / raw).mkdir(parents=True, exist_ok=True)
    for i, colour in enumerate(["red", "lime", "blue"]):
        image.new("RGB", (178, 218), colour).save(folder / raw / f"{i:06}.png")
    leaf_file(folder / "train/all_data.json", {"1": (["000000.png", "000002.png"], [0.0, 1.0])})
    leaf_file(folder / "test/all_data.json", {"1": (["000001.png"], [1.0])})
    return folder


@pytest.mark.parametrize("raw", ["raw/img_align_celeba", "img_align_celeba", "raw", "."])
def test_celeba_names_are_read_from_the_raw_folder_as_84x84(tmp_path: Path, raw: str) -> None:
    data = load(celeba(tmp_path, raw))
    assert (data.features.shape, data.features.dtype.name) == ((2, 3, 84, 84), "uint8")
    assert data.features[:, :, 0, 0].tolist() == [[255, 0, 0], [0, 0, 255]]
    assert data.test_features[0, :, 83, 83].tolist() == [0, 255, 0]
    assert data.targets.dtype == np.int64
    assert (data.targets.tolist(), data.test_targets.tolist()) == ([0, 1], [1])


def test_celeba_is_resized_exactly_as_leafs_call_does_it(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    noise = np.random.default_rng(0).integers(
        0, 256, (218, 178), np.uint8
    )  # grey: LEAF makes it RGB after resizing
    image.fromarray(noise).save(tmp_path / "a.png")
    file = leaf_file(tmp_path / "one.json", {"1": (["a.png"] * 2, [0, 1])})
    with image.open(tmp_path / "a.png") as opened:
        leafs = np.array(opened.resize((84, 84)).convert("RGB"))
    assert np.array_equal(load(file).features[0], leafs.transpose(2, 0, 1))


def test_a_missing_image_of_celeba_is_named_with_the_folders_searched(tmp_path: Path) -> None:
    leaf_file(tmp_path / "train/all.json", {"7": (["000001.jpg"] * 2, [0, 1])})
    with pytest.raises(
        DataError,
        match=r"all\.json: user '7': image '000001\.jpg' is in none of .*img_align_celeba",
    ):
        load(tmp_path)
    celeba(tmp_path / "other")
    leaf_file(tmp_path / "other/train/all_data.json", {"7": (["000000.png", "9.png"], [0, 1])})
    with pytest.raises(DataError, match=r"9\.png: not a readable image"):
        load(tmp_path / "other")


@pytest.mark.parametrize(
    ("users", "changes", "words"),
    [
        ({}, {"users": None}, "no 'users'"),
        ({}, {"user_data": []}, "no 'user_data'"),
        ({"a": ([[1]], [0])}, {"num_samples": []}, "1 users, but num_samples has 0 entries"),
        ({"a": ([[1]], [0])}, {"num_samples": [2]}, "user 'a': 1 x and 1 y, num_samples has 2"),
        ({"a": ([[1], [2]], [0])}, {}, "user 'a': 2 x and 1 y"),
        ({"a": ([[1]], [0])}, {"user_data": {"b": {}}}, "user 'a': user_data has no lists x and y"),
        ({"a": ([[1], [1, 2]], [0, 1])}, {}, "user 'a': the rows of x have different lengths"),
        ({"a": ([[1], [float("nan")]], [0, 1])}, {}, "NaN is not a number in JSON"),
        (
            {"a": (["to be", "or not"], [0, 1])},
            {},
            "user 'a': x holds 'to be'; expected rows of numbers",
        ),
        ({"a": ([[1], [2]], ["b", "c"])}, {}, "user 'a': y holds 'b'; expected numbers"),
        ({"a": ([[1]], [0]), "b": ([[1, 2]], [0])}, {}, "(1,) of user 'a' and (2,) of user 'b'"),
        ({"a": ([], [])}, {}, "no samples"),
    ],
)
def test_a_fault_in_a_leaf_file_is_named(
    tmp_path: Path, users: Any, changes: Any, words: str
) -> None:
    path = leaf_file(tmp_path / "train/part.json", users, **changes)
    with pytest.raises(DataError) as caught:
        load(tmp_path)
    assert words in str(caught.value)
    assert str(path.parent) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"[1, 2]", b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_not_leafs_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(DataError, match=r"x\.json: "):
        load(tmp_path / "x.json")


def test_a_cut_short_leaf_file_is_named(tmp_path: Path) -> None:
    path = next((femnist(tmp_path) / "test").iterdir())
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"test_9\.json: not JSON, or cut short"):
        load(tmp_path)


# -- EMNIST -------------------------------------------------------------------------------------------


def idx(array: Bytes) -> bytes:
    return (
        bytes([0, 0, 8, array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )


def emnist(folder: Path, split: str, labels: list[int]) -> Bytes:
    """The four files of a split; returns the images upright. EMNIST's files hold them by columns."""
    upright = np.random.default_rng(0).integers(0, 256, (len(labels), 28, 28), np.uint8)
    for part in ("train", "test"):
        name = folder / f"emnist-{split}-{part}"
        Path(f"{name}-images-idx3-ubyte.gz").write_bytes(
            gzip.compress(idx(upright.transpose(0, 2, 1)))
        )
        Path(f"{name}-labels-idx1-ubyte.gz").write_bytes(
            gzip.compress(idx(np.array(labels, np.uint8)))
        )
    return upright


def test_emnist_letters_stand_upright_and_count_from_zero(tmp_path: Path) -> None:
    upright = emnist(tmp_path, "letters", [1, 26, 3])
    data = load(tmp_path)
    assert np.array_equal(data.features, upright[:, None])
    assert np.array_equal(data.test_features, data.features)
    assert (data.targets.tolist(), data.test_targets.tolist()) == ([0, 25, 2], [0, 25, 2])
    assert (data.labels[0], data.labels[25], len(data.labels)) == ("A", "Z", 26)


@pytest.mark.parametrize(
    ("split", "classes", "last"),
    [
        ("byclass", 62, "z"),
        ("bymerge", 47, "t"),
        ("balanced", 47, "t"),
        ("digits", 10, "9"),
        ("mnist", 10, "9"),
    ],
)
def test_the_other_splits_of_emnist_count_from_zero(
    tmp_path: Path, split: str, classes: int, last: str
) -> None:
    emnist(tmp_path, split, [0, classes - 1])
    data = load_local(
        tmp_path, task=Task(features=(1, 28, 28), classes=classes, model=Model(name="mlp"))
    )
    assert data.targets.tolist() == [0, classes - 1]
    assert (len(load(tmp_path).labels), load(tmp_path).labels[-1]) == (classes, last)


def test_a_folder_of_several_emnist_splits_is_refused_with_their_names(tmp_path: Path) -> None:
    (tmp_path / "emnist").mkdir()
    emnist(tmp_path / "emnist", "digits", [7, 8])
    emnist(tmp_path / "emnist", "letters", [7, 8])
    with pytest.raises(
        DataError, match=r"2 data sets; .*emnist-digits-train-images.*, emnist-letters-train-images"
    ):
        load(tmp_path / "emnist")
    assert load(tmp_path / "emnist/emnist-digits-train-images-idx3-ubyte.gz").targets.tolist() == [
        7,
        8,
    ]
    assert load_named("emnist-letters", tmp_path).targets.tolist() == [6, 7]


@pytest.mark.parametrize(
    ("split", "labels", "words"),
    [
        ("letters", [0, 5], "labels 0 to 5; expected labels from 1 to 26"),
        ("balanced", [0, 47], "labels 0 to 47; expected labels from 0 to 46"),
        ("small", [0, 1], "no split 'small'; it has byclass"),
    ],
)
def test_emnist_labels_outside_the_range_of_their_split_are_named(
    tmp_path: Path, split: str, labels: list[int], words: str
) -> None:
    emnist(tmp_path, split, labels)
    with pytest.raises(DataError, match=words):
        load(tmp_path)


def test_a_cut_short_emnist_file_is_named(tmp_path: Path) -> None:
    emnist(tmp_path, "digits", [1, 2])
    path = tmp_path / "emnist-digits-test-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DataError, match=r"emnist-digits-test-labels-idx1-ubyte\.gz: cut short"):
        load(tmp_path)
    path.unlink()
    with pytest.raises(
        DataError, match=r"emnist-digits-test-images.* its labels \(emnist-digits-test-labels"
    ):
        load(tmp_path)


# -- SVHN ---------------------------------------------------------------------------------------------


def svhn(path: Path, labels: list[int], **changes: Any) -> Bytes:
    """One of SVHN's files; returns the images as (n, 3, 32, 32)."""
    io = pytest.importorskip("scipy.io")
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 3, 32, 32), np.uint8)
    arrays = {
        "X": images.transpose(2, 3, 1, 0),
        "y": np.array(labels, np.uint8)[:, None],
        **changes,
    }
    io.savemat(
        path,
        {name: array for name, array in arrays.items() if array is not None},
        do_compression=True,
    )
    return images


def test_svhn_images_come_channels_first_and_ten_is_zero(tmp_path: Path) -> None:
    images = svhn(tmp_path / "train_32x32.mat", [1, 10, 9])
    svhn(tmp_path / "test_32x32.mat", [10, 2])
    data = load(tmp_path)
    assert np.array_equal(data.features, images)
    assert (data.targets.tolist(), data.test_targets.tolist()) == ([1, 0, 9], [0, 2])
    alone = load(tmp_path / "test_32x32.mat")
    assert (alone.targets.tolist(), alone.has_test) == ([0, 2], False)


def test_svhn_has_its_name_below_the_data_root(tmp_path: Path) -> None:
    (tmp_path / "svhn").mkdir()
    svhn(tmp_path / "svhn/train_32x32.mat", [1, 10, 9])
    assert load_named("svhn", tmp_path).shape == (3, 32, 32)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"X": None}, "X is missing"),
        ({"X": np.zeros((32, 32, 3, 2))}, r"X is float64 \(32, 32, 3, 2\); expected bytes"),
        ({"X": np.zeros((2, 32, 32, 3), np.uint8)}, r"X is uint8 \(2, 32, 32, 3\)"),
        ({"y": None}, "y is missing"),
        (
            {"y": np.ones((3, 1), np.uint8)},
            r"y is of shape \(3, 1\); expected one digit for each of 2 images",
        ),
        ({"y": np.array([[0], [9]], np.uint8)}, "y has values from 0 to 9; expected 1 to 10"),
    ],
)
def test_a_fault_in_an_svhn_file_is_named(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    svhn(tmp_path / "train_32x32.mat", [1, 2], **changes)
    with pytest.raises(DataError, match=rf"train_32x32\.mat: {words}"):
        load(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:100],
        lambda content: content[:-50],
        lambda content: b"",
        lambda content: b"no mat file" * 50,
        lambda content: content[:124] + b"\0\x02" + content[126:],
    ],
    ids=["in the header", "in the middle", "empty", "another file", "MATLAB 7.3"],
)
def test_a_damaged_svhn_file_is_named(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "train_32x32.mat"
    svhn(path, [1, 2])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"train_32x32\.mat: "):
        load(tmp_path)


def test_svhn_is_read_without_scipy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    svhn(tmp_path / "train_32x32.mat", [1, 2])
    real = builtins.__import__

    def without_scipy(name: str, *rest: Any) -> Any:
        if name.startswith("scipy"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_scipy)
    assert load(tmp_path).targets.tolist() == [1, 2]
