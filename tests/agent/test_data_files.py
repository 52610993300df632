"""Arrays, IDX, CIFAR, image folders, functions: what is read, and how a fault is named."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from covey.agent.data import load, with_test
from covey.agent.data.dataset import dataset
from covey.shared.consent import AllowedCode, ConsentError
from covey.shared.errors import CoveyError, DataError


def idx(array: npt.NDArray[np.uint8]) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.tobytes()


def mnist_like(folder: Path, n: int = 6) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    images = np.arange(n * 4 * 3, dtype=np.uint8).reshape(n, 4, 3)
    labels = np.arange(n, dtype=np.uint8) % 3
    for part in ("train", "t10k"):
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    return images, labels


def test_idx_images_become_one_channel_bytes(tmp_path: Path) -> None:
    images, labels = mnist_like(tmp_path)
    data = load(tmp_path)
    assert data.features.dtype == np.uint8
    assert data.features.tolist() == images[:, None].tolist()
    assert data.targets.tolist() == labels.tolist()
    assert len(data.test_targets) == 6


def test_a_cut_short_gzip_is_named(tmp_path: Path) -> None:
    mnist_like(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz: cut short"):
        load(tmp_path)


def test_an_idx_file_shorter_than_its_header_promises_is_named(tmp_path: Path) -> None:
    mnist_like(tmp_path)
    path = tmp_path / "train-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(idx(np.zeros(6, np.uint8))[:-1]))
    with pytest.raises(DataError, match=r"train-labels.*5 bytes of values, its header asks for 6"):
        load(tmp_path)


def test_images_without_labels_are_named(tmp_path: Path) -> None:
    mnist_like(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match="its labels"):
        load(tmp_path)


def cifar_records(labels: list[int], hundred: bool = False) -> bytes:
    return b"".join(
        (b"\7" if hundred else b"") + bytes([label]) + bytes([label]) * 3072 for label in labels
    )


def cifar_archive(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"cifar/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def test_cifar_10_reads_from_the_archive_as_it_ships_and_from_its_folder(tmp_path: Path) -> None:
    files = {
        "data_batch_2.bin": cifar_records([2, 0]),
        "data_batch_1.bin": cifar_records([1]),
        **{f"data_batch_{i}.bin": cifar_records([0]) for i in (3, 4, 5)},
        "test_batch.bin": cifar_records([2]),
        "batches.meta.txt": b"plane\ncar\nbird\n\n",
    }
    archive = cifar_archive(tmp_path / "c.tar.gz", files)
    folder = tmp_path / "extracted"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    for place in (archive, folder):
        data = load(place)
        assert data.features.shape == (6, 3, 32, 32)
        assert data.targets.tolist() == [1, 2, 0, 0, 0, 0]  # batches in the order of their numbers
        assert data.features[1].max() == 2
        assert data.labels == ("plane", "car", "bird")


def test_cifar_100_counts_its_fine_labels(tmp_path: Path) -> None:
    files = {
        "train.bin": cifar_records([30, 99], hundred=True),
        "test.bin": cifar_records([5], hundred=True),
    }
    data = load(cifar_archive(tmp_path / "c.tar.gz", files))
    assert (data.targets.tolist(), data.test_targets.tolist()) == ([30, 99], [5])


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([1, 2, 4, 5, "test"], r"data_batch_3\.bin missing"),
        ([1, 2, 3, 4, 5], r"test_batch\.bin missing"),
    ],
)
def test_a_part_of_cifar_that_is_missing_is_named(
    tmp_path: Path, files: list[Any], words: str
) -> None:
    for one in files:
        name = "test_batch.bin" if one == "test" else f"data_batch_{one}.bin"
        (tmp_path / name).write_bytes(cifar_records([1]))
    with pytest.raises(DataError, match=words):
        load(tmp_path)


def test_cifar_records_cut_short_are_named(tmp_path: Path) -> None:
    whole = {f"data_batch_{i}.bin": cifar_records([1]) for i in range(2, 6)} | {
        "test_batch.bin": cifar_records([1])
    }
    path = cifar_archive(
        tmp_path / "c.tar.gz", {"data_batch_1.bin": cifar_records([1, 2])[:-1], **whole}
    )
    with pytest.raises(DataError, match=r"data_batch_1\.bin: 6145 bytes.*3073"):
        load(path)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DataError, match="cut short"):
        load(path)


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


def test_an_image_folder_has_one_class_per_folder(tmp_path: Path) -> None:
    image(tmp_path / "dog" / "1.png", colour=(9, 8, 7))
    image(tmp_path / "cat" / "1.png")
    image(tmp_path / "cat" / "2.png")
    data = load(tmp_path)
    assert data.features.shape == (3, 3, 2, 3)  # channels, height, width
    assert data.features[2, :, 0, 0].tolist() == [9, 8, 7]
    assert (data.labels, data.targets.tolist()) == (("cat", "dog"), [0, 0, 1])


def test_an_image_folder_may_have_train_and_test(tmp_path: Path) -> None:
    for name in ("train/a/1.png", "train/b/1.png", "test/b/1.png"):
        image(tmp_path / name, mode="L")
    data = load(tmp_path)
    assert data.shape == (1, 2, 3)
    assert data.test_targets.tolist() == [1]
    image(tmp_path / "test/c/1.png", mode="L")
    with pytest.raises(DataError, match="class 'c' occurs in test only"):
        load(tmp_path)


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
