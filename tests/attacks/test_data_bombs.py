"""Data files that claim or unpack to more than any machine has, and images that are none."""

from __future__ import annotations

import io
import sqlite3
import struct
import tracemalloc
import wave
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from covey.agent.data import load
from covey.agent.data.limits import (
    FREE_BYTES,
    LIMIT_VARIABLE,
    MAX_CELL_BYTES,
    MAX_RATIO,
    unpacked_limit,
)
from covey.agent.data.table_rows import MAX_COLUMNS, check_names
from covey.agent.data_place import place_of
from covey.shared.errors import DataError, UserError

SMALL = 1 << 20
ZEROS = 64 << 20  # of content: 64 MiB unpack from some 64 KiB


def npz_bomb(folder: Path) -> Path:
    np.savez_compressed(
        folder / "a.npz", x=np.zeros((1 << 10, ZEROS >> 10), np.uint8), y=np.arange(1 << 10) % 2
    )
    return folder / "a.npz"


def npz_that_lies(folder: Path) -> Path:
    """The header of the array claims 8 TB, that of the archive a hundred bytes."""
    member = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        member, {"descr": "<f8", "fortran_order": False, "shape": (10**6, 10**6)}
    )
    with zipfile.ZipFile(folder / "a.npz", "w") as archive:
        archive.writestr("x.npy", member.getvalue() + bytes(100))
        archive.writestr("y.npy", b"")
    return folder / "a.npz"


def parquet_bomb(folder: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = 4_000_000
    table = pa.table(
        {"a": pa.array(np.zeros(rows, np.float64)), "label": pa.array(np.zeros(rows, np.int64))}
    )
    pq.write_table(table, folder / "a.parquet", compression="zstd")
    return folder / "a.parquet"


BOMBS = [npz_bomb, parquet_bomb]


@pytest.mark.parametrize("make", BOMBS, ids=lambda make: make.__name__)
def test_a_file_that_unpacks_to_more_than_its_limit_is_refused_before_it_is_unpacked(
    make: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: all 64 MiB were unpacked, and twice as much was held."""
    place = make(tmp_path)
    monkeypatch.setenv(LIMIT_VARIABLE, str(SMALL))
    tracemalloc.start()
    try:
        with pytest.raises(DataError) as caught:
            load(place)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert f"more than {SMALL} bytes" in str(caught.value) or f"the limit is {SMALL}" in str(
        caught.value
    )
    assert str(SMALL) in caught.value.public
    assert peak < 16 * SMALL, f"{peak >> 20} MiB were set aside"


def test_a_header_that_lies_about_the_size_is_found_before_memory_is_set_aside(
    tmp_path: Path,
) -> None:
    """Before: numpy asked the system for 8 TB."""
    place = npz_that_lies(tmp_path)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"asks for|claims"):
            load(place)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20, f"{peak >> 20} MiB were set aside"


def test_the_limit_grows_with_the_file_and_can_be_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(b"")
    assert unpacked_limit(path) == FREE_BYTES
    with path.open("wb") as file:
        file.truncate(FREE_BYTES)
    assert unpacked_limit(path) == min(64 << 30, FREE_BYTES * MAX_RATIO)
    monkeypatch.setenv(LIMIT_VARIABLE, "12")
    assert unpacked_limit(path) == 12
    monkeypatch.setenv(LIMIT_VARIABLE, "much")
    with pytest.raises(
        UserError, match="COVEY_MAX_DATA_BYTES is 'much'; set it to a number of bytes"
    ):
        unpacked_limit(path)


# -- images ------------------------------------------------------------------------------------------------------------


def image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4)).save(path)


@pytest.mark.whole
def test_a_program_for_a_printer_is_no_image(tmp_path: Path) -> None:
    """Before: Pillow hands PostScript, whatever the file is called, to Ghostscript."""
    path = tmp_path / "cat" / "1.png"
    path.parent.mkdir()
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\nshowpage\n")
    with pytest.raises(DataError, match=r"1\.png: not a readable image \(cannot identify"):
        load(tmp_path)


@pytest.mark.whole
def test_an_image_of_more_pixels_than_are_read_is_refused_by_its_header(tmp_path: Path) -> None:
    """100 million pixels in 12 KB; Pillow only warns."""
    import zlib

    path = tmp_path / "cat" / "1.png"
    image(path)
    content = bytearray(path.read_bytes())
    content[16:24] = struct.pack(">II", 10_000, 10_000)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    path.write_bytes(content)
    with pytest.raises(DataError, match="10000x10000 pixels, at most 67108864 are read"):
        load(tmp_path)


def test_rows_that_cost_no_bytes_count_with_what_python_takes_for_them(tmp_path: Path) -> None:
    """Before: 82 kB of equal rows became 1 438 MB. Their values alone, at four bytes each, are below the limit."""
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    rows = FREE_BYTES // 64
    same = pa.array(np.ones(rows, np.int8))
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"a": same, "label": same}), path, compression="zstd")
    assert path.stat().st_size < 100_000
    assert rows * 2 * 4 < unpacked_limit(path)
    with pytest.raises(DataError, match=f"more than {FREE_BYTES} bytes"):
        load(path)


@pytest.mark.whole
def test_an_image_that_is_stored_once_and_repeated_counts_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setenv(LIMIT_VARIABLE, str(SMALL))
    image = io.BytesIO()
    Image.fromarray(np.zeros((64, 64), np.uint8)).save(image, "bmp")
    path = tmp_path / "images.parquet"
    table = pa.table({"image": [image.getvalue()] * 5000, "label": [0, 1] * 2500})
    pq.write_table(table, path, compression="zstd")
    assert path.stat().st_size < 100_000
    with pytest.raises(DataError, match=f"more than {SMALL} bytes"):
        load(path)


def wide(path: Path, columns: int) -> Path:
    names = ",".join(f"c{number}" for number in range(columns - 1))
    rows = [",".join([str(row)] * (columns - 1)) + f",{row % 2}" for row in range(4)]
    path.write_text("\n".join([f"{names},label", *rows, ""]))
    return path


def test_a_table_has_at_most_4096_columns(tmp_path: Path) -> None:
    """Before: 16 000 columns in 288 kB took 40 s."""
    assert load(wide(tmp_path / "a.csv", MAX_COLUMNS)).shape == (MAX_COLUMNS - 1,)
    with pytest.raises(DataError, match=f"4097 columns; expected at most {MAX_COLUMNS}"):
        load(wide(tmp_path / "b.csv", MAX_COLUMNS + 1))


def test_names_of_columns_are_compared_once_each(tmp_path: Path) -> None:
    class Name(str):
        compared = 0
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            Name.compared += 1
            return str.__eq__(self, other)

    names = [Name(f"c{number}") for number in range(2000)]
    check_names(tmp_path, names)
    assert Name.compared < 10 * len(names)


# -- databases ---------------------------------------------------------------------------------------------------------


@pytest.mark.whole
def test_a_long_text_in_another_column_is_no_obstacle(tmp_path: Path) -> None:
    file = tmp_path / "a.sqlite"
    with sqlite3.connect(file) as base:
        base.execute("CREATE TABLE t (photo, a, label)")
        rows = [(bytes(2 * MAX_CELL_BYTES), number, number % 2) for number in range(8)]
        base.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
    base.close()
    query = "SELECT a, label FROM t"
    assert load(place_of(f"sqlite:{file}?query={query}")).shape == (1,)


# -- what is stored once and repeated, or stored in fewer bytes than it takes ------------------------------------------


@pytest.mark.parametrize("is_dictionary", [True, False])
def test_a_word_that_is_stored_once_counts_in_each_row(
    is_dictionary: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: 221 kB took more than 100 s."""
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setenv(LIMIT_VARIABLE, str(SMALL))
    words = pa.array(["x" * 1000] * 2000)
    path = tmp_path / "words.parquet"
    same = words.dictionary_encode() if is_dictionary else words
    pq.write_table(pa.table({"a": same, "label": [0, 1] * 1000}), path, compression="zstd")
    assert path.stat().st_size < 20_000
    with pytest.raises(DataError, match=f"more than {SMALL} bytes"):
        load(path)


@pytest.mark.parametrize("kind", ["int8", "bool", "float16"])
def test_numbers_of_an_archive_count_with_what_they_become(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: 510 kB of truth values became 2.6 GB."""
    monkeypatch.setenv(LIMIT_VARIABLE, str(SMALL))
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.zeros((8, SMALL // 24), kind), y=np.arange(8) % 2)
    with pytest.raises(DataError, match="its numbers take"):
        load(path)


@pytest.mark.whole
def test_images_unpack_to_no_more_than_their_files_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: to 64 GiB, from 900 times one image of 60 kB."""
    monkeypatch.setenv(LIMIT_VARIABLE, str(SMALL))
    for number in range(8):
        path = tmp_path / "cat" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("L", (512, 512)).save(path)
    with pytest.raises(DataError, match=f"more than {SMALL} bytes"):
        load(tmp_path)


@pytest.mark.whole
def test_sounds_become_no_more_than_their_files_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: a file of 44 bytes became as long as the task demanded, up to 30 MB."""
    monkeypatch.setenv(LIMIT_VARIABLE, "100000")
    for number in range(8):
        path = tmp_path / ("cat", "dog")[number % 2] / f"{number}.wav"
        path.parent.mkdir(exist_ok=True)
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 1, 16_000, 0, "NONE", ""))
    with pytest.raises(DataError, match="more than 100000 bytes"):
        load(tmp_path)
