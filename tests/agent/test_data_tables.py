"""Tables: what is read, and how a fault is named."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from covey.agent.data import load
from covey.shared.errors import DataError


def written(tmp_path: Path, text: str, name: str = "data.csv") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_column_called_label_is_the_label_and_all_others_are_features(tmp_path: Path) -> None:
    data = load(written(tmp_path, "a,Label,b\n1,cat,2\n3,dog,4\n5,cat,6\n"))
    assert data.features.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert data.features.dtype == np.float32
    assert (data.labels, data.targets.tolist()) == (("cat", "dog"), [0, 1, 0])


def test_without_such_a_column_the_last_one_is_the_label_and_the_source_names_it(
    tmp_path: Path,
) -> None:
    data = load(written(tmp_path, "a;b;species\n1;2;0\n3;4;1\n"))
    assert data.targets.tolist() == [0, 1]
    assert data.labels == ()
    assert "label column 'species'" in data.source


@pytest.mark.parametrize(
    ("header", "label"),
    [("x1,label", None), ("x,species", None), ("0,label", None), ("1,species", "species")],
)
def test_a_header_is_recognised_by_a_features_name_or_by_the_label_that_was_asked_for(
    header: str, label: str | None, tmp_path: Path
) -> None:
    assert load(written(tmp_path, f"{header}\n1,cat\n2,dog\n"), label=label).labels == (
        "cat",
        "dog",
    )


def test_the_label_option_wins(tmp_path: Path) -> None:
    data = load(written(tmp_path, "a,label\n7,1\n8,2\n"), label="a")
    assert data.targets.tolist() == [7, 8]


def test_values_make_a_regression_target(tmp_path: Path) -> None:
    data = load(written(tmp_path, "a,y\n1,0.5\n2,1\n"))
    assert data.regression
    assert data.targets.tolist() == [0.5, 1.0]


def test_whole_numbers_spelled_as_floats_are_classes(tmp_path: Path) -> None:
    assert load(written(tmp_path, "a,y\n1,0.0\n2,1.0\n")).targets.dtype == np.int64


def test_train_and_test_tables_share_one_list_of_class_names(tmp_path: Path) -> None:
    written(tmp_path, "a,label\n1,dog\n2,cat\n", "train.csv")
    written(tmp_path, "a,label\n3,ant\n4,dog\n", "test.csv")
    data = load(tmp_path)
    assert data.labels == ("ant", "cat", "dog")
    assert (data.targets.tolist(), data.test_targets.tolist()) == ([2, 1], [0, 2])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["empty", "column names"]),
        ("a,label\n", ["no samples"]),
        ("a,label\n1,x\n", ["one sample only"]),
        ("1,2\n3,4\n", ["first line holds numbers"]),
        ("5.1,0.2,setosa\n4.9,0.2,setosa\n", ["first line holds numbers"]),
        ("5.1,yes\n4.9,no\n", ["first line holds numbers"]),
        ("label\nx\n", ["one column only"]),
        ("a,a,label\n1,2,x\n", ["occur twice", "'a'"]),
        ("a,b,label\n1,2,x\n3,y\n", ["row 2 (line 3)", "2 cells", "3 columns"]),
        ("a,b,label\n1,2,x\n3,oops,y\n", ["row 2 (line 3)", "'b'", "'oops'"]),
        ("a,b,label\n1,2,x\n3,,y\n", ["row 2 (line 3)", "'b'", "empty"]),
        ("a,b,label\n1,2,x\nnan,4,y\n", ["row 2 (line 3)", "'a'", "nan"]),
        ("a,b,label\n1,2,x\n3,1e60,y\n", ["row 2", "'b'", "1e60", "finite"]),
        ("a,b,label\n1,2,x\n3,4,\n", ["row 2", "no label", "'label'"]),
    ],
)
def test_a_fault_in_a_table_is_named(tmp_path: Path, text: str, words: list[str]) -> None:
    path = written(tmp_path, text)
    with pytest.raises(DataError) as caught:
        load(path)
    for word in [str(path), *words]:
        assert word in str(caught.value)


def test_an_unknown_label_column_lists_the_columns(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'kind'.*'a', 'b'"):
        load(written(tmp_path, "a,b\n1,2\n3,4\n"), label="kind")


def test_a_table_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes("a,label\n1,\xe4\n".encode("latin-1"))
    with pytest.raises(DataError, match="not UTF-8"):
        load(path)


def test_parquet_reads_like_csv(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"a": [1.0, 2.0], "label": ["x", "y"], "b": [3, 4]}), path)
    data = load(path)
    assert data.features.tolist() == [[1, 3], [2, 4]]
    assert data.labels == ("x", "y")
    pq.write_table(pa.table({"a": [1.0, None], "label": [0, 1]}), path)
    with pytest.raises(DataError, match=r"row 2, column 'a': the cell is empty"):
        load(path)
    path.write_bytes(b"PAR1 not really")
    with pytest.raises(DataError, match="cut short"):
        load(path)


def test_parquet_without_pyarrow_names_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"pip install '\.\[parquet\]'"):
        load(written(tmp_path, "x", "data.parquet"))


def test_a_decimal_comma_is_answered_with_the_decimal_point(tmp_path: Path) -> None:
    table = written(tmp_path, "a;b;label\n0,5;1,25;cat\n1,5;2;dog\n")
    with pytest.raises(DataError, match="with a decimal point") as error:
        load(table)
    assert "words" not in str(error.value)


def test_the_case_of_a_suffix_does_not_matter(tmp_path: Path) -> None:
    text = "a,label\n1,cat\n2,dog\n"
    alone = written(tmp_path, text, "GROSS.CSV")
    assert load(alone).labels == ("cat", "dog")
    folder = tmp_path / "device"
    folder.mkdir()
    for name in ("Train.CSV", "Test.CSV"):
        written(folder, text, name)
    assert len(load(folder).features) == 2
