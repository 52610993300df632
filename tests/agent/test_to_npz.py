"""`scripts/to_npz.py`: published data sets become an .npz that Covey reads, and the old sources are refused with its command."""

from __future__ import annotations

import gzip
import io
import json
import runpy
import struct
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from covey.agent.data import Dataset, load
from covey.agent.data.load import PUBLISHED_FILES, PUBLISHED_FOLDERS
from covey.agent.data.named import find_root, load_named
from covey.shared.errors import DataError
from tests.processes import ROOT

Bytes = npt.NDArray[np.uint8]
SCRIPT = ROOT / "scripts" / "to_npz.py"


def converted(kind: str, source: Path, out: Path) -> Dataset:
    command = [sys.executable, str(SCRIPT), kind, str(source), str(out)]
    subprocess.run(command, check=True, capture_output=True)
    return load(out)


def idx(folder: Path, part: str, images: Bytes, labels: list[int]) -> None:
    for kind, array in {"images-idx3": images, "labels-idx1": np.array(labels, np.uint8)}.items():
        head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
        path = folder / f"{part}-{kind}-ubyte.gz"
        path.write_bytes(gzip.compress(head + array.tobytes()))


def test_cifar_10_as_published_has_5000_images_of_each_class() -> None:
    """Of the archive itself: to compress it into an .npz takes most of a minute."""
    source = (find_root() or Path()) / "cifar-10-binary.tar.gz"
    if not source.exists():
        pytest.skip(f"needs {source.name}: set COVEY_DATA_ROOT")
    arrays = runpy.run_path(str(SCRIPT))["cifar10"](source)
    assert arrays["x"].shape == (50000, 3, 32, 32)
    assert np.bincount(arrays["y"]).tolist() == [5000] * 10
    assert arrays["label_names"][8] == "ship"


def test_idx_images_become_one_channel_bytes(tmp_path: Path) -> None:
    images = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    idx(tmp_path, "train", images, [1, 0])
    idx(tmp_path, "t10k", images[:1], [1])
    data = converted("idx", tmp_path, tmp_path / "out.npz")
    assert data.features.dtype == np.uint8
    assert np.array_equal(data.features, images[:, None])
    assert (data.targets.tolist(), data.test_targets.tolist()) == ([1, 0], [1])


def test_emnist_stands_upright_and_its_letters_count_from_zero(tmp_path: Path) -> None:
    upright = np.random.default_rng(0).integers(0, 256, (3, 28, 28), np.uint8)
    for part in ("train", "test"):
        idx(tmp_path, f"emnist-letters-{part}", upright.transpose(0, 2, 1), [1, 26, 3])
    idx(tmp_path, "emnist-digits-train", upright, [0, 1, 2])
    images = tmp_path / "emnist-letters-train-images-idx3-ubyte.gz"
    data = converted("idx", images, tmp_path / "out.npz")
    assert np.array_equal(data.features, upright[:, None])
    assert data.targets.tolist() == data.test_targets.tolist() == [0, 25, 2]
    assert (data.labels[0], data.labels[25], len(data.labels)) == ("A", "Z", 26)


def cifar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"cifar/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def records(*labels: bytes) -> bytes:
    return b"".join(label + label[-1:] * 3072 for label in labels)


def test_cifar_10_is_read_batch_by_batch_with_its_names(tmp_path: Path) -> None:
    files = {f"data_batch_{i}.bin": records(bytes([i])) for i in (2, 1, 3, 4, 5)}
    files |= {"test_batch.bin": records(b"\0"), "batches.meta.txt": b"plane\ncar\nbird\n\n"}
    data = converted("cifar10", cifar(tmp_path / "c.tar.gz", files), tmp_path / "out.npz")
    assert (data.shape, data.targets.tolist()) == ((3, 32, 32), [1, 2, 3, 4, 5])
    assert data.features[:, 0, 0, 0].tolist() == [1, 2, 3, 4, 5]
    assert data.labels == ("plane", "car", "bird")


def test_cifar_100_has_its_fine_classes_and_next_to_them_the_coarse_ones(tmp_path: Path) -> None:
    files = {"train.bin": records(b"\x07\x1e", b"\x07\x63"), "test.bin": records(b"\x01\x05")}
    data = converted("cifar100", cifar(tmp_path / "c.tar.gz", files), tmp_path / "out.npz")
    assert (data.targets.tolist(), data.test_targets.tolist()) == ([30, 99], [5])
    with np.load(tmp_path / "out.npz") as arrays:
        assert (arrays["coarse"].tolist(), arrays["coarse_test"].tolist()) == ([7, 7], [1])


def test_svhn_comes_channels_first_and_ten_is_zero(tmp_path: Path) -> None:
    from scipy.io import savemat

    images = np.random.default_rng(0).integers(0, 256, (3, 3, 32, 32), np.uint8)
    x, y = images.transpose(2, 3, 1, 0), np.array([[1], [10], [9]], np.uint8)
    savemat(tmp_path / "train_32x32.mat", {"X": x, "y": y}, do_compression=True)
    data = converted("svhn", tmp_path, tmp_path / "out.npz")
    assert np.array_equal(data.features, images)
    assert data.targets.tolist() == [1, 0, 9]


def test_a_matlab_file_keeps_its_arrays_by_name(tmp_path: Path) -> None:
    from scipy.io import savemat

    x = np.arange(8, dtype=np.float64).reshape(4, 2)
    savemat(tmp_path / "own.mat", {"x": x, "y": np.array([[0, 1, 0, 1]]).T})
    data = converted("mat", tmp_path / "own.mat", tmp_path / "out.npz")
    assert (data.features.tolist(), data.targets.tolist()) == (x.tolist(), [0, 1, 0, 1])


def leaf(path: Path, users: dict[str, tuple[list[Any], list[Any]]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    counts = [len(y) for _, y in users.values()]
    data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    content = {"users": list(users), "num_samples": counts, "user_data": data}
    path.write_text(json.dumps(content))


def test_leafs_users_are_the_groups(tmp_path: Path) -> None:
    pixels = [[0.25] * 783 + [i / 8] for i in range(3)]
    leaf(tmp_path / "train/a.json", {"f1": (pixels, [61, 0, 5])})
    leaf(tmp_path / "train/b.json", {"f0": (pixels[:1], [1])})
    leaf(tmp_path / "test/a.json", {"f1": (pixels[:1], [7]), "f0": (pixels[:1], [8])})
    data = converted("leaf", tmp_path, tmp_path / "out.npz")
    assert (data.shape, data.features.dtype.name) == ((1, 28, 28), "float32")
    assert data.targets.tolist() == [61, 0, 5, 1]
    assert data.groups is not None
    assert data.test_groups is not None
    assert data.groups.tolist() == ["f1"] * 3 + ["f0"]
    assert data.test_groups.tolist() == ["f1", "f0"]


def test_celeba_is_resized_exactly_as_leafs_call_does_it(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    noise = np.random.default_rng(0).integers(0, 256, (218, 178), np.uint8)
    raw = tmp_path / "raw" / "img_align_celeba"
    raw.mkdir(parents=True)
    image.fromarray(noise).save(raw / "a.png")
    leaf(tmp_path / "train/all_data.json", {"1": (["a.png"] * 2, [0.0, 1.0])})
    data = converted("leaf", tmp_path, tmp_path / "out.npz")
    with image.open(raw / "a.png") as opened:
        leafs = np.array(opened.resize((84, 84)).convert("RGB"))
    assert np.array_equal(data.features[0], leafs.transpose(2, 0, 1))
    assert data.targets.tolist() == [0, 1]


@pytest.mark.parametrize(("pattern", "kind"), [(p, k) for p, (_, k) in PUBLISHED_FILES.items()])
def test_a_file_of_a_published_set_is_refused_with_the_command_that_converts_it(
    tmp_path: Path, pattern: str, kind: str
) -> None:
    place = tmp_path / pattern.replace("*", "a")
    place.write_bytes(b"")
    with pytest.raises(DataError, match=rf"is not read; .*to_npz\.py {kind} .*{place.name}"):
        load(place)


@pytest.mark.parametrize(("pattern", "kind"), [(p, k) for p, (_, k) in PUBLISHED_FOLDERS.items()])
def test_a_folder_of_a_published_set_is_refused_with_the_command_that_converts_it(
    tmp_path: Path, pattern: str, kind: str
) -> None:
    place = tmp_path / "set" / pattern.replace("*", "1")
    place.parent.mkdir(parents=True)
    place.write_bytes(b"")
    with pytest.raises(DataError, match=rf"is not read; .*to_npz\.py {kind} {tmp_path}/set") as why:
        load(tmp_path / "set")
    assert str(tmp_path) not in why.value.public


def test_a_named_set_that_is_missing_is_refused_with_the_command_that_makes_it(
    tmp_path: Path,
) -> None:
    with pytest.raises(DataError, match=r"cifar10\.npz does not exist .*to_npz\.py cifar10 .*gz"):
        load_named("cifar10", tmp_path)
