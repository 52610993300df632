"""Arrays, image folders, functions: what is read, and how a fault is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from covey.agent.data import load, with_test
from covey.agent.data.dataset import dataset
from covey.shared.errors import CoveyError, DataError
from covey.shared.own_code.consent import AllowedCode, ConsentError


def test_npz_keeps_bytes_and_reads_a_test_part(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    x = np.arange(8, dtype=np.uint8).reshape(4, 2)
    np.savez(path, x=x, y=np.array([0, 1, 0, 1]), x_test=x[:1], y_test=np.array([1]))
    data = load(path)
    assert data.features.dtype == np.uint8
    assert (data.targets.tolist(), data.test_targets.tolist()) == ([0, 1, 0, 1], [1])


def test_npz_with_pickled_objects_is_refused_and_never_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=np.array([{"a": 1}, None], dtype=object), y=np.array([0, 1]))
    with pytest.raises(DataError, match="Python objects"):
        load(path)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.zeros((3, 2))}, "no array 'y'; it holds x"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(2)}, "3 samples, but targets of shape"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0)}, "no samples"),
        ({"x": np.array([[0.0, 1], [2, np.nan]]), "y": np.zeros(2)}, "row 2, column 2: nan"),
        ({"x": np.zeros((2, 2)), "y": np.array([0, np.nan])}, "row 2: the target is missing"),
        ({"x": np.zeros(3), "y": np.zeros(3)}, "at least 2 axes"),
        ({"x": np.zeros((2, 2)), "y": np.zeros(2), "x_test": np.zeros((1, 2))}, "belong together"),
        (
            {
                "x": np.zeros((2, 2)),
                "y": np.zeros(2),
                "x_test": np.zeros((1, 3)),
                "y_test": np.zeros(1),
            },
            "test samples have shape",
        ),
    ],
)
def test_a_fault_in_an_npz_is_named(
    tmp_path: Path, arrays: dict[str, npt.NDArray[np.float64]], words: str
) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    with pytest.raises(DataError) as caught:
        load(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_cut_short_npz_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=np.zeros((3, 2)), y=np.zeros(3))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match=r"data\.npz"):
        load(path)


def image(
    path: Path, mode: str = "RGB", size: tuple[int, int] = (3, 2), colour: int | tuple[int, ...] = 0
) -> None:
    image_module = pytest.importorskip("PIL.Image")
    path.parent.mkdir(parents=True, exist_ok=True)
    image_module.new(mode, size, colour).save(path)


@pytest.mark.whole
def test_an_image_folder_has_one_class_per_folder(tmp_path: Path) -> None:
    image(tmp_path / "dog" / "1.png", colour=(9, 8, 7))
    image(tmp_path / "cat" / "1.png")
    image(tmp_path / "cat" / "2.png")
    data = load(tmp_path)
    assert data.features.shape == (3, 3, 2, 3)  # channels, height, width
    assert data.features[2, :, 0, 0].tolist() == [9, 8, 7]
    assert (data.labels, data.targets.tolist()) == (("cat", "dog"), [0, 0, 1])


@pytest.mark.whole
def test_an_image_folder_may_have_train_and_test(tmp_path: Path) -> None:
    for name in ("train/a/1.png", "train/b/1.png", "test/b/1.png"):
        image(tmp_path / name, mode="L")
    data = load(tmp_path)
    assert data.shape == (1, 2, 3)
    assert data.test_targets.tolist() == [1]
    image(tmp_path / "test/c/1.png", mode="L")
    with pytest.raises(DataError, match="class 'c' occurs in test only"):
        load(tmp_path)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("mode", "size", "words"),
    [("RGB", (4, 2), "RGB 4x2"), ("L", (3, 2), "grey 3x2"), ("RGBA", (3, 2), "colour mode RGBA")],
)
def test_an_image_of_another_size_or_mode_is_named_and_not_converted(
    tmp_path: Path, mode: str, size: tuple[int, int], words: str
) -> None:
    image(tmp_path / "a" / "1.png")
    image(tmp_path / "a" / "2.png", mode=mode, size=size)
    with pytest.raises(DataError) as caught:
        load(tmp_path)
    assert words in str(caught.value)
    assert "2.png" in str(caught.value)


@pytest.mark.whole
def test_a_broken_image_is_named(tmp_path: Path) -> None:
    image(tmp_path / "a" / "1.png")
    (tmp_path / "a" / "2.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"2\.png: not a readable image"):
        load(tmp_path)


def test_a_function_of_the_users_own_is_called_with_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_code.py").write_text(
        "import numpy as np\n"
        "def pair(path): return np.ones((4, 2)) * len(path.name), np.array([0, 1, 0, 1])\n"
        "def named(path): return {'x': np.zeros((2, 2)), 'y': np.array(['b', 'a'])}\n"
        "def wrong(path): return 3\n"
        "def raises(path): return path['x']\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    allowed = AllowedCode.parse(["their_code", "absent_code", "half_code"])
    assert load("their_code:pair:/data/abc", allowed=allowed).features[0, 0] == 3
    assert load("their_code:named", allowed=allowed).labels == ("a", "b")
    (tmp_path / "half_code.py").write_text("def f(:")
    mistakes = {
        "their_code:wrong": "returned int",
        "their_code:raises": "called with a path it raised TypeError: .*subscriptable",
        "their_code:no": "no",
        "absent_code:f": "install",
        "half_code:f": "invalid syntax",
    }
    for spec, words in mistakes.items():
        with pytest.raises(CoveyError, match=words):
            load(spec, allowed=allowed)


def test_data_given_as_code_is_allowed_and_nothing_else_of_its_module() -> None:
    consent = AllowedCode.for_data("their_code:pair:/data/abc")
    assert consent.names == {"their_code:pair"}
    for spec in ("their_code:named", "os:listdir:/", "their_code.pair:x"):
        with pytest.raises(ConsentError, match="--allow"):
            load(spec, allowed=consent)
    with pytest.raises(ConsentError):
        load("their_code:pair")


def test_a_folder_with_nothing_usable_names_its_files_and_the_accepted_kinds(
    tmp_path: Path,
) -> None:
    (tmp_path / "readme.txt").touch()
    with pytest.raises(DataError, match=r"readme\.txt; expected a table"):
        load(tmp_path)
    with pytest.raises(DataError, match="no such file"):
        load(tmp_path / "absent")


def test_a_test_part_is_a_fifth_drawn_on_the_seed_and_disjoint(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=np.arange(50).reshape(50, 1), y=np.arange(50) % 2)
    data = load(path)
    split = with_test(data, seed=3)
    train, test = set(split.features[:, 0].tolist()), set(split.test_features[:, 0].tolist())
    assert (len(train), len(test), len(train | test)) == (40, 10, 50)
    assert np.array_equal(with_test(data, seed=3).test_features, split.test_features)
    assert not np.array_equal(with_test(data, seed=4).test_features, split.test_features)
    assert with_test(split) is split


def test_random_rows_that_test_have_each_class_in_its_share() -> None:
    """Ten positives of a hundred: two of them test, whatever the seed."""
    rare = np.arange(100) % 10 == 0
    data = dataset(np.arange(100.0)[:, None], rare.astype(int), source="sensor")
    tested = [with_test(data, seed=seed).test_targets for seed in range(20)]
    assert {(len(targets), int(targets.sum())) for targets in tested} == {(20, 2)}
