"""Data that cannot take part, one file per kind of fault, each with marked values that must not leave the device.

`CASES` maps the name of a fault to a function that writes the data into a folder and gives the arguments of `load`.
"""

from __future__ import annotations

import sqlite3
import struct
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SECRET = "Mustermann"
PNG = b"\x89PNG\r\n\x1a\n"  # the beginning of an image
Source = tuple[str, str | None]
CASES: dict[str, Callable[[Path], Source]] = {}

HEADER = f"{SECRET}_age,{SECRET}_weight,label\n"


def case(make: Callable[[Path], Source]) -> Callable[[Path], Source]:
    """Add a fault to the table, by the name of its function."""
    CASES[make.__name__] = make
    return make


def written(path: Path, content: str | bytes) -> Source:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path), None


def table(
    folder: Path, text: str | bytes, name: str = "patients.csv", label: str | None = None
) -> Source:
    return written(folder / f"{SECRET}-files" / name, text)[0], label


# -- tables ------------------------------------------------------------------------------------------------------------

TABLES: dict[str, str | bytes] = {
    "a_word_among_numbers": HEADER + f"1,2,0\n3,Erika {SECRET},1\n",
    "an_empty_cell": HEADER + "1,2,0\n,4,1\n",
    "an_infinite_cell": HEADER + "1,2,0\n3,1e99,1\n",
    "a_row_too_long": HEADER + f"1,2,0\n3,4,1,{SECRET}\n",
    "no_label": HEADER + "1,2,0\n3,4,\n",
    "an_empty_table": "",
    "one_column": f"{SECRET}\n1\n2\n",
    "no_header": "1,2,3\n4,5,6\n",
    "a_column_twice": f"{SECRET},{SECRET},label\n1,2,0\n3,4,1\n",
    "no_rows": HEADER,
    "one_row": HEADER + "1,2,0\n",
    "not_utf8": b"a,label\n\xff\xfe,1\n",
    "a_cell_too_long": HEADER + f'"{SECRET * 20_000}",1,0\n',
    "classes_that_nobody_named": HEADER + f"1,2,{SECRET}\n3,4,healthy\n",
    "values_instead_of_classes": HEADER + "1,2,0.5\n3,4,1.75\n",
    "a_class_too_many": HEADER + "1,2,0\n3,4,77431\n",
    "too_few_columns": f"{SECRET},label\n1,0\n2,1\n",
    "a_first_line_that_is_a_sample": f"2026-01-05 10:00,{SECRET},0\n2026-01-05 10:05,{SECRET},1\n"
    * 3,
    "a_second_table_below": f"#group,{SECRET}\n{HEADER}1,2,0\n3,4,1\n\n#group,1\na,{SECRET},label\n1,2,0\n",
    "columns_beyond_all_bounds": "," * 5000 + "label\n" + "1," * 5000 + "0\n",
}
for _name, _text in TABLES.items():
    CASES[f"csv_{_name}"] = lambda folder, text=_text: table(folder, text)  # type: ignore[misc]


@case
def csv_without_the_label_column(folder: Path) -> Source:
    return table(folder, HEADER + "1,2,0\n3,4,1\n", label=f"{SECRET}_diagnosis")


@case
def json_that_is_cut_short(folder: Path) -> Source:
    return table(folder, f'[{{"{SECRET}": 1, "label": 0}}, {{"{SECRET}"', "patients.json")


@case
def json_of_one_object_that_is_no_table(folder: Path) -> Source:
    lists = f'{{"{SECRET}": [1, 2, 3], "a": [1, 2], "label": [0]}}'
    return table(folder, lists, "patients.json")


@case
def json_of_another_encoding(folder: Path) -> Source:
    return table(folder, b'[{"a": "\xff\xfe", "label": 0}]', "patients.json")


@case
def csv_train_and_test_differ(folder: Path) -> Source:
    table(folder, HEADER + "1,2,0\n3,4,1\n", "train.csv")
    path, _ = table(folder, f"{SECRET}_height,b,label\n1,2,0\n", "test.csv")
    return str(Path(path).parent), None


# -- tables whose columns the task names: the keys of the task that differ from that of all other cases ---------------

OWN_TASKS: dict[str, dict[str, Any]] = {}


def task_case(name: str, keys: dict[str, Any], text: str) -> None:
    """Add a CSV table that does not fit a task with columns."""
    OWN_TASKS[name] = keys
    CASES[name] = lambda folder: table(folder, text)


NAMED = {"columns": ("a", "b")}
task_case("columns_missing", NAMED, f"a,{SECRET},label\n1,2,healthy\n3,4,ill\n")
task_case("columns_unknown", NAMED, f"a,b,{SECRET},label\n1,2,3,healthy\n4,5,6,ill\n")
task_case("columns_incomplete", NAMED, f"a,b,label\n1,,healthy\n{SECRET},2,ill\n")
task_case("columns_cells_and_labels", NAMED, f"a,{SECRET},label\n{SECRET},2,{SECRET}\n3,4,ill\n")
LEFT_OUT = NAMED | {"impute": "drop"}
task_case("every_row_left_out", LEFT_OUT, "a,b,label\n1,,healthy\n,2,ill\n")
WINDOWS = {"columns": ("a",), "features": (1, 9), "window": {"rows": 9}}
task_case("a_table_shorter_than_a_window", WINDOWS, "a,label\n1,healthy\n2,ill\n")
OVERLAPPING = {"columns": ("a",), "features": (1, 4), "window": {"rows": 4, "stride": 1}}
SIX_ROWS = "a,label\n1,healthy\n2,healthy\n3,ill\n4,ill\n5,ill\n6,healthy\n"
task_case("windows_that_all_overlap_the_tested_one", OVERLAPPING, SIX_ROWS)
task_case("columns_without_a_label", NAMED, f"a,b,c,{SECRET}\n1,2,3,healthy\n4,5,6,ill\n")


NAMES = {"read": {"names": ("a", "b", "label")}}
task_case("names_of_other_columns", NAMES, f"1,2,{SECRET},0\n3,4,{SECRET},1\n")
PIVOT = {"read": {"pivot": {"name": "sensor", "value": "state", "time": "at", "every": "1h"}}}
task_case("a_pivot_of_missing_columns", PIVOT, f"sensor,{SECRET},at\n1,2,3\n3,4,5\n")

LABELS = NAMED | {"target": ("l", "m"), "classes": ("l", "m"), "measure": None}
task_case("cells_that_are_no_labels", LABELS, f"a,b,l,m\n1,2,0,1\n3,4,{SECRET},1\n")
UNUSUAL = NAMED | {
    "target": "label",
    "anomalies": {},
    "model": {"name": "autoencoder"},
    "measure": None,
}
task_case("unusual_samples_alone", UNUSUAL, "a,b,label\n1,2,healthy\n3,4,ill\n5,6,ill\n")


@case
def one_label_of_several(folder: Path) -> Source:
    return table(folder, "a,b,l,m\n1,2,0,1\n3,4,1,1\n", label="l")


OWN_TASKS["one_label_of_several"] = LABELS


@case
def columns_of_no_table(folder: Path) -> Source:
    return npz(folder, x=FOUR, y=np.arange(4) % 2)


OWN_TASKS["columns_of_no_table"] = NAMED


def parquet(folder: Path, columns: dict[str, Any]) -> Source:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / f"{SECRET}-files" / "patients.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return str(path), None


PARQUET: dict[str, dict[str, Any]] = {
    "a_word_among_numbers": {f"{SECRET}_name": ["x", SECRET], "label": [0, 1]},
    "an_empty_cell": {f"{SECRET}_age": [1.0, None], "label": [0, 1]},
    "no_label": {f"{SECRET}_age": [1.0, 2.0], "label": ["yes", None]},
    "nested": {f"{SECRET}_age": [[1.0], [2.0]], "label": [0, 1]},
    "a_struct": {f"{SECRET}_age": [{"a": 1.0}, {"a": 2.0}], "label": [0, 1]},
    "no_rows": {f"{SECRET}_age": [], "label": []},
}
for _name, _columns in PARQUET.items():
    CASES[f"parquet_{_name}"] = lambda folder, columns=_columns: parquet(folder, columns)  # type: ignore[misc]


@case
def parquet_with_a_column_twice(folder: Path) -> Source:
    import pyarrow as pa
    import pyarrow.parquet as pq

    values = pa.array([1.0, 2.0])
    path = folder / f"{SECRET}.parquet"
    pq.write_table(
        pa.Table.from_arrays([values, values, values], names=[SECRET, SECRET, "label"]), path
    )
    return str(path), None


@case
def parquet_damaged(folder: Path) -> Source:
    path, _ = parquet(folder, {SECRET: [1.0, 2.0], "label": [0, 1]})
    return written(Path(path), Path(path).read_bytes()[:-20])


# -- arrays ------------------------------------------------------------------------------------------------------------


def npz(folder: Path, **arrays: Any) -> Source:
    path = folder / f"{SECRET}.npz"
    np.savez(path, **arrays)
    return str(path), None


FOUR = np.ones((4, 2), np.float32)
NPZ: dict[str, dict[str, Any]] = {
    "no_y": {"x": FOUR, SECRET: FOUR},
    "half_a_test_part": {"x": FOUR, "y": np.arange(4), "x_test": FOUR},
    "words_as_features": {"x": np.array([[SECRET, "b"]] * 4), "y": np.arange(4)},
    "flat_features": {"x": np.ones(4), "y": np.arange(4)},
    "a_single_value": {"x": np.array(5.0), "y": np.arange(4)},
    "targets_of_another_length": {"x": FOUR, "y": np.arange(3)},
    "no_samples": {"x": FOUR[:0], "y": np.arange(0)},
    "samples_without_numbers": {"x": np.ones((4, 0)), "y": np.arange(4)},
    "targets_of_two_values": {"x": FOUR, "y": np.ones((4, 2))},
    "a_nan": {"x": np.array([[1, np.nan]] * 4), "y": np.arange(4)},
    "a_missing_target": {"x": FOUR, "y": np.array([0, 1, np.nan, 1])},
    "odd_targets": {"x": FOUR, "y": np.ones(4, np.complex64)},
    "a_test_part_of_another_shape": {
        "x": FOUR,
        "y": np.arange(4),
        "x_test": np.ones((4, 3)),
        "y_test": np.arange(4),
    },
    "too_few_groups": {"x": FOUR, "y": np.arange(4), "groups": np.array([SECRET])},
    "another_shape_than_the_task": {"x": np.ones((4, 1, 3, 3)), "y": np.arange(4)},
    "class_names": {"x": FOUR, "y": np.array([SECRET, "b", "a", "a"])},
    "python_objects": {"x": np.array([{SECRET: 1}] * 4), "y": np.arange(4)},
}
for _name, _arrays in NPZ.items():
    CASES[f"npz_{_name}"] = lambda folder, arrays=_arrays: npz(folder, **arrays)  # type: ignore[misc]


@case
def npz_that_is_a_folder_later(folder: Path) -> Source:
    path, _ = npz(folder, x=FOUR, y=np.arange(4))
    return written(Path(path), SECRET)


OWN_CODE: dict[str, str] = {
    "raises": f"raise ValueError('patient {SECRET}')",
    "returns_text": f"return '{SECRET}'",
    "returns_ragged_rows": "return [[1], [2, 3]], [0, 1]",
}


def own_module(folder: Path, body: str, function: str = "read") -> Source:
    module = f"own_{abs(hash(body)):x}_{SECRET}"
    written(folder / f"{module}.py", f"def read(path):\n    {body}\nread_not = 1\n")
    return f"{module}:{function}", None


for _name, _body in OWN_CODE.items():
    CASES[f"own_code_{_name}"] = lambda folder, body=_body: own_module(folder, body)  # type: ignore[misc]


@case
def own_code_that_is_missing(folder: Path) -> Source:
    return f"no_such_{SECRET}:read", None


@case
def installed_source_that_cannot_be_imported(folder: Path) -> Source:
    package = folder / "broken-1.0.dist-info"
    written(package / "METADATA", "Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    written(
        package / "entry_points.txt", f"[covey.data]\n{SECRET}_source = no_such_{SECRET}:read\n"
    )
    return f"{SECRET}_source", None


@case
def own_code_that_is_no_function(folder: Path) -> Source:
    return own_module(folder, "return 1", "read_not")


# -- places ------------------------------------------------------------------------------------------------------------


@case
def faults_in_a_training_and_a_test_table(folder: Path) -> Source:
    written(folder / SECRET / "train.csv", f"a,label\n{SECRET},healthy\n2,ill\n")
    path, _ = written(folder / SECRET / "test.csv", f"a,label\n{SECRET},healthy\n2,ill\n")
    return str(Path(path).parent), None


@case
def nothing_there(folder: Path) -> Source:
    return str(folder / f"{SECRET}.csv"), None


@case
def an_unknown_kind(folder: Path) -> Source:
    return written(folder / f"data.{SECRET}", "x")


@case
def a_folder_of_something_else(folder: Path) -> Source:
    return str(Path(written(folder / SECRET / f"{SECRET}.doc", "x")[0]).parent), None


@case
def a_folder_of_several_tables(folder: Path) -> Source:
    written(folder / SECRET / f"{SECRET}.csv", "a,label\n1,2\n")
    return str(Path(written(folder / SECRET / "b.csv", "a,label\n1,2\n")[0]).parent), None


@case
def a_web_page_that_is_called_a_table(folder: Path) -> Source:
    return table(folder, f"<!DOCTYPE html><p>{SECRET}</p>")


@case
def files_of_a_growing_folder_with_other_columns(folder: Path) -> Source:
    place = folder / SECRET
    written(place / "2026-01-01.csv", "a,b,label\n1,2,healthy\n3,4,ill\n")
    written(place / "2026-01-02.csv", f"a,{SECRET},label\n1,2,healthy\n3,4,ill\n")
    return str(place), None


@case
def files_of_a_growing_folder_of_which_one_is_compressed(folder: Path) -> Source:
    place = folder / SECRET
    written(place / "2026-01-01.csv", "a,b,label\n1,2,healthy\n3,4,ill\n")
    written(place / "2026-01-02.csv", "a,b,label\n1,2,healthy\n3,4,ill\n")
    written(place / "2026-01-03.csv.gz", "x")
    return str(place), None


def database(folder: Path, what: str) -> Source:
    """A database with one table, and the address of something in it."""
    path = folder / f"{SECRET}.db"
    with closing(sqlite3.connect(path)) as base, base:
        base.execute("CREATE TABLE patients (a REAL, b REAL, label TEXT)")
    return f"sqlite:{path}{what}", None


@case
def a_database_that_is_missing(folder: Path) -> Source:
    return f"sqlite:{folder}/{SECRET}.db?table=patients", None


@case
def a_database_without_the_table(folder: Path) -> Source:
    return database(folder, f"?table={SECRET}")


@case
def a_database_and_neither_a_table_nor_a_query(folder: Path) -> Source:
    return database(folder, "?row=1")


@case
def a_database_and_a_query_that_writes(folder: Path) -> Source:
    return database(folder, "?query=DROP TABLE patients")


@case
def a_database_and_a_query_of_one_column(folder: Path) -> Source:
    return database(folder, "?query=SELECT label FROM patients")


@case
def a_database_of_which_no_table_is_named(folder: Path) -> Source:
    return database(folder, "")[0].removeprefix("sqlite:"), None


# -- images ------------------------------------------------------------------------------------------------------------


def image(path: Path, mode: str = "L", size: tuple[int, int] = (4, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size).save(path)


@case
def images_of_two_sizes(folder: Path) -> Source:
    image(folder / SECRET / "healthy" / "1.png")
    image(folder / SECRET / "ill" / f"{SECRET}.png", size=(5, 5))
    return str(folder / SECRET), None


@case
def images_of_another_mode(folder: Path) -> Source:
    image(folder / SECRET / SECRET / "1.png", "RGBA")
    return str(folder / SECRET), None


@case
def images_and_their_masks(folder: Path) -> Source:
    image(folder / SECRET / "images" / f"{SECRET}.png")
    image(folder / SECRET / "masks" / f"{SECRET}.png")
    return str(folder / SECRET), None


@case
def images_damaged(folder: Path) -> Source:
    return str(Path(written(folder / SECRET / "ill" / f"{SECRET}.png", SECRET)[0]).parents[1]), None


@case
def images_in_parquet_without_a_label(folder: Path) -> Source:
    return parquet(folder, {f"{SECRET}_scan": [PNG, PNG]})


@case
def images_in_parquet_with_a_missing_label(folder: Path) -> Source:
    return parquet(folder, {f"{SECRET}_scan": [PNG, PNG], "label": ["ill", None]})


@case
def images_in_parquet_of_two_lengths(folder: Path) -> Source:
    return parquet(folder, {f"{SECRET}_scan": [[1, 2], [1]], "label": ["ill", "healthy"]})


@case
def images_in_parquet_of_words(folder: Path) -> Source:
    return parquet(folder, {f"{SECRET}_scan": [[SECRET], ["x"]], "label": ["ill", "healthy"]})


@case
def images_in_parquet_whose_pages_are_damaged(folder: Path) -> Source:
    scans = [bytes(range(256)) * 9] * 40
    path, _ = parquet(folder, {f"{SECRET}_scan": scans, "label": ["ill"] * 40})
    content = bytearray(Path(path).read_bytes())
    content[4:60] = b"\xff" * 56
    Path(path).write_bytes(content)
    return path, None


@case
def images_damaged_twice(folder: Path) -> Source:
    for number in (1, 2):
        path, _ = written(folder / SECRET / "ill" / f"{number}-{SECRET}.png", SECRET)
    return str(Path(path).parents[1]), None


@case
def images_of_a_class_in_test_alone(folder: Path) -> Source:
    image(folder / "images" / "train" / "healthy" / "1.png")
    image(folder / "images" / "train" / "healthy" / "2.png")
    image(folder / "images" / "test" / SECRET / "1.png")
    return str(folder / "images"), None


@case
def images_of_absurd_size(folder: Path) -> Source:
    path = folder / "images" / SECRET / "1.png"
    image(path)
    content = bytearray(path.read_bytes())
    content[16:24] = struct.pack(">II", 9_000, 9_000)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    return str(Path(written(path, bytes(content))[0]).parents[1]), None


# -- published data sets ------------------------------------------------------------------------------------------------


PUBLISHED = (
    "train-images-idx3-ubyte.gz",
    "cifar-10-binary.tar.gz",
    "train_32x32.mat",
    "all_data.json",
)
for _name in PUBLISHED:
    CASES[f"published_{_name.split('.')[0]}"] = lambda folder, name=_name: written(  # type: ignore[misc]
        folder / SECRET / name, SECRET
    )


# -- sounds ------------------------------------------------------------------------------------------------------------


def sounds(folder: Path, content: bytes) -> Source:
    """A folder with a sound of each class."""
    for name in ("healthy", "ill"):
        written(folder / "sounds" / name / f"{SECRET}.wav", content)
    return str(folder / "sounds"), None


@case
def sounds_for_a_task_of_numbers(folder: Path) -> Source:
    return sounds(folder, b"RIFF")


@case
def sounds_cut_short(folder: Path) -> Source:
    return sounds(folder, b"RIFF")


OWN_TASKS["sounds_cut_short"] = {"features": (1, 4, 8)}
