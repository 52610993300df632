"""MATLAB 5 files: what SciPy writes is read as SciPy reads it, and what is damaged is refused, never unpacked."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any, cast

import numpy as np
import pytest
from scipy.io import loadmat, savemat

from covey.agent.data.matlab import MatlabError, read_arrays

LIMIT = 1 << 20


def written(compressed: bool, **arrays: Any) -> bytes:
    savemat(cast(Any, buffer := io.BytesIO()), arrays, do_compression=compressed)
    return buffer.getvalue()


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", ["u1", "i1", "u2", "i2", "u4", "i4", "f4", "f8"])
def test_arrays_are_read_as_scipy_reads_them(kind: str, compressed: bool) -> None:
    arrays = {"X": np.arange(24).reshape(2, 3, 4).astype(kind), "y": np.array([[7]]).astype(kind)}
    content = written(compressed, **arrays, other="a text", cell=np.array([1, "a"], object))
    theirs = loadmat(cast(Any, io.BytesIO(content)))
    ours = read_arrays(content, ("X", "y"), LIMIT)
    assert set(ours) == {"X", "y"}
    for name, array in ours.items():
        assert array.dtype == theirs[name].dtype
        assert np.array_equal(array, theirs[name])


def test_a_small_element_is_read() -> None:
    """MATLAB puts up to four bytes into the tag itself."""
    content = written(False, y=np.array([[1, 2, 3]], np.uint8))
    assert read_arrays(content, ("y",), LIMIT)["y"].tolist() == [[1, 2, 3]]


@pytest.mark.parametrize("value", ["a text", {"a": 1}, np.array([1, "a"], object), np.array([1j])])
def test_anything_but_real_numbers_is_refused(value: Any) -> None:
    with pytest.raises(MatlabError, match="not an array of real numbers"):
        read_arrays(written(True, X=value), ("X",), LIMIT)


def test_every_file_that_is_cut_short_is_refused_or_lacks_an_array() -> None:
    for compressed in (False, True):
        whole = written(compressed, X=np.arange(60, dtype=np.uint8), y=np.ones(9))
        for length in range(len(whole)):
            try:
                found = read_arrays(whole[:length], ("X", "y"), LIMIT)
            except MatlabError:
                continue
            assert set(found) < {"X", "y"}


def test_a_bomb_is_not_unpacked() -> None:
    """20 MB of zeros in 20 KB."""
    bomb = written(True, X=np.zeros(20 << 20, np.uint8))
    assert len(bomb) < 30_000
    with pytest.raises(MatlabError, match="unpacks to more than 1048576 bytes"):
        read_arrays(bomb, ("X",), LIMIT)
    assert read_arrays(bomb, ("y",), LIMIT) == {}, "an array that nobody asks for is not unpacked"


def test_dimensions_that_do_not_fit_the_values_are_refused() -> None:
    content = bytearray(written(False, X=np.zeros((2, 2), np.uint8)))
    at = content.index(struct.pack("<II", 5, 8)) + 8
    content[at : at + 8] = struct.pack("<ii", 1 << 30, 1 << 30)
    with pytest.raises(MatlabError, match="its dimensions ask for another number"):
        read_arrays(bytes(content), ("X",), LIMIT)


def test_a_compressed_element_with_a_damaged_end_is_refused() -> None:
    head = written(True)[:128]
    squeezed = zlib.compress(written(False, X=np.zeros(500, np.uint8))[128:])[:-6]
    with pytest.raises(MatlabError, match="cut short"):
        read_arrays(head + struct.pack("<II", 15, len(squeezed)) + squeezed, ("X",), LIMIT)
