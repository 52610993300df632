"""The rows of a CSV or Parquet file as blocks of columns, so that both kinds of file are read by the same code."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

from covey.agent.data.cells import BadCell, BadCells, Cells
from covey.agent.data.limits import ROW_BYTES, VALUE_BYTES, check_size, unpacked_limit
from covey.agent.data.notation import MARKS, encoding_of, named_separator, plain, separator_of
from covey.agent.data.values import number_written, value_of
from covey.agent.data_place import FORM, UnfinishedFile
from covey.shared.errors import DataError, install
from covey.shared.scenario.columns import LABEL_NAMES, SEPARATORS, Notation
from covey.shared.sentences import some

BLOCK_ROWS = 4096
WORD_ROWS = 1 << 16  # whose words are measured at once
MAX_NAMES = 8  # in a message
MAX_COLUMNS = 4096
MANY_NUMBERS = 4  # of which more do not rise by chance from one to the next
UTF_32 = b"\xff\xfe\0\0"  # begins like UTF-16


@dataclass(frozen=True)
class Block:
    """Consecutive rows of a table, by column."""

    rows: Sequence[int]  # (n,) their numbers, from 1 below the header
    lines: Sequence[int]  # (n,) their lines in the file, from 1; 0 in a file that is no text
    cells: Mapping[str, Cells]  # by name of the column, (n,) each


class TableFile:
    """An open table. `columns` are the names in its header, without empty ones; `blocks` gives its rows, once."""

    columns: tuple[str, ...]
    nameless: int = 0  # columns without a name, which are never read
    separator: str = ""  # between the cells of a text file

    @cached_property
    def left_out(self) -> Counter[str]:
        """How many lines hold no row, by what they hold, once the rows are read."""
        return Counter()

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """The place of each column in the file, from 0."""
        return {name: position for position, name in enumerate(self.columns)}

    def blocks(self, names: Sequence[str], faults: BadCells) -> Iterator[Block]:
        """The rows, with the cells of the named columns. Rows of another length become faults."""
        raise NotImplementedError


def check_columns(path: Path, columns: Sequence[str], least: int) -> None:
    """DataError for too few or too many columns, and for two of one name."""
    if len(columns) < least:
        fault = f"{len(columns)} columns; expected a label and at least one feature"
        raise DataError(f"{path}: {fault}", public=f"the table has {fault}")
    _check_width(path, len(columns))
    check_names(path, columns)


def check_names(path: Path, columns: Sequence[str]) -> None:
    """DataError if two columns have one name."""
    repeated = [column for column, count in Counter(columns).items() if count > 1]
    if repeated:
        raise DataError(
            f"{path}: columns occur twice: {listed(sorted(repeated))}; rename or remove one of "
            "them",
            public="two columns have one name",
        )


def _check_width(path: Path, count: int) -> None:
    """DataError for a table with more columns than are read: each of them costs time in every block of rows."""
    if count > MAX_COLUMNS:
        fault = f"{count} columns; expected at most {MAX_COLUMNS}"
        raise DataError(
            f"{path}: {fault}: leave some out, or save the features as an array x in an .npz file",
            public=f"the table has {fault}",
        )


def listed(names: Sequence[str]) -> str:
    """The first names, for a message."""
    return some([repr(name) for name in names], MAX_NAMES)


# -- CSV -----------------------------------------------------------------------------------------------------


COMMENTS = ("#", "%", "//", ";")  # how lines may begin that hold no row
PEEKED = 200  # lines that show how a text is written


class _Lines:
    """The lines of a text table, numbered as in the file, from its column names on: without comments, and without a sign behind the
    last cell that parts no cells."""

    number = 0  # of the newest line, from 1
    comments = 0  # lines that were left out

    def __init__(self, lines: Iterable[str], notation: Notation) -> None:
        lines = iter(lines)
        self._first = list(islice(lines, PEEKED))
        self._lines = chain(self._first, lines)
        self._begin = int(bool(self._first) and named_separator(self._first[0]) is not None)
        rows = self._first[self._begin :]
        self._sign = next((one for one in COMMENTS if rows and rows[0].startswith(one)), "")
        while self._sign and rows and (rows[0].startswith(self._sign) or not rows[0].strip()):
            del rows[0]
        self.separator = separator_of(
            (self._first[:1] if self._begin else rows or [""])[0], notation
        )
        if self._sign and not notation.names and self._names_above(rows, notation):
            self._begin = len(self._first) - len(rows) - 1
            self.separator = separator_of(self._first[self._begin], notation)
            rows, self._sign = self._first[self._begin :], self._sign if self._begin else ""
        else:
            self._begin = len(self._first) - len(rows)
        self._header = rows[0] if rows else ""
        end = rows[min(1, len(rows) - 1)].strip()[-1:] if rows else ""
        self._tail = end if end and end in SEPARATORS and end != self.separator else ""

    def _names_above(self, rows: Sequence[str], notation: Notation) -> bool:
        """Whether the column names are what seems to be the last comment, because these lines below it are samples."""
        if not rows:
            return True
        above = self._first[len(self._first) - len(rows) - 1]
        lines = csv.reader([above, *rows[:2]], delimiter=separator_of(above, notation))
        name, first, *others = lines
        return 1 < len(name) == len(first) and (
            _has_values(first) or not any(map(_has_values, others))
        )

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            self.number += 1
            is_comment = (
                bool(self._sign) and line.startswith(self._sign) and self.number != self._begin + 1
            )
            if is_comment or self.number <= self._begin:
                self.comments += is_comment
                continue
            yield line.rstrip().removesuffix(self._tail) + "\n" if self._tail else line

    def below(self, *, header: bool) -> list[list[str]]:
        """The cells of the first rows, those below a header."""
        lines = [
            line
            for line in self._first[self._begin :]
            if not self._sign or not line.startswith(self._sign)
        ]
        whole = lines[:-1] if len(self._first) == PEEKED else lines
        return [row for row in self.cells(whole) if row][int(header) :]

    def cells(self, lines: Iterable[str]) -> Iterator[list[str]]:
        """The cells of each line. Some programs put the first name, and then all words, between apostrophes."""
        is_quoted = re.match(rf"'[^']*'\s*({re.escape(self.separator)}|$)", self._header)
        return csv.reader(lines, delimiter=self.separator, quotechar="'" if is_quoted else '"')


def _has_values(cells: Sequence[str]) -> bool:
    return any(value_of(cell).kind in ("number", "time") for cell in cells)


class _CsvFile(TableFile):
    def __init__(
        self, path: Path, lines: _Lines, names: Sequence[str], least: int, notation: Notation
    ) -> None:
        self._path = path
        self._lines = lines
        self._rows = lines.cells(lines)
        self._notation = notation
        self._header = list(notation.names) or [cell.strip() for cell in next(self._rows, [])]
        below = [row for row in lines.below(header=not notation.names) if row != self._header]
        if notation.names:
            _check_names_given(path, self._header, below)
        else:
            _check_csv_header(path, self._header, names, least, below)
        self._has_values = bool(below) and _has_values(below[0])
        self._width = len(self._header)
        self.positions = {name: place for place, name in enumerate(self._header) if name}
        self._least = 1 + max(self.positions.values(), default=0)
        self.columns = tuple(self.positions)
        self.nameless = self._least - len(self.columns)
        self.separator = lines.separator

    def blocks(self, names: Sequence[str], faults: BadCells) -> Iterator[Block]:
        positions = {name: self.positions[name] for name in names}
        numbered = self._numbered(faults)
        while block := list(islice(numbered, BLOCK_ROWS)):
            rows, lines, cells = zip(*block, strict=True)
            by_position = list(zip(*cells, strict=True))
            columns = {
                name: plain(by_position[position], self._notation)
                for name, position in positions.items()
            }
            yield Block(rows, lines, columns)

    def _numbered(self, faults: BadCells) -> Iterator[tuple[int, int, list[str]]]:
        """Number, line and cells of each row that has as many cells as the header; empty lines, comments and repetitions of the
        header are skipped.

        Empty cells behind the last column count as none: spreadsheets write them, in the header alone, too.
        """
        number = comments = 0
        for cells in self._rows:
            if not cells:
                continue
            line = self._lines.number
            is_alike = cells[0].strip() == self._header[0]
            if is_alike and [cell.strip() for cell in cells[: self._width]] == self._header:
                self.left_out["repeated column names"] += 1
                continue
            if self._lines.comments > comments:
                comments = self._lines.comments
                self._check_same_table(line, cells)
            number += 1
            if len(cells) > self._width and not any(map(str.strip, cells[self._width :])):
                del cells[self._width :]
            if self._least <= len(cells) <= self._width:
                yield number, line, cells[: self._least]
                continue
            if cells[0].startswith("#"):
                number -= 1
                self.left_out["comments"] += 1
                continue
            fault = f"{len(cells)} cells, the header has {self._width} columns"
            is_open = any("\n" in cell for cell in cells)
            faults.add(
                BadCell(
                    number,
                    -1,
                    line,
                    column="",
                    fault=fault,
                    kind=f"has {fault}",
                    advice="close the quotation mark in the row, which has several lines"
                    if is_open
                    else "correct the row",
                )
            )
        self.left_out["comments"] += self._lines.comments

    def _check_same_table(self, line: int, cells: Sequence[str]) -> None:
        """DataError for another header below comments: the rows under it have other columns."""
        if self._has_values and any(map(str.strip, cells)) and not _has_values(cells):
            fault = f"line {line} begins a second table, with other column names"
            raise DataError(
                f"{self._path}: {fault} ({listed([cell for cell in cells if cell])}); give each table a file of its own",
                public=fault,
            )


# the first bytes of files that are called tables, in lower case -> what they are, and what to do
OTHER_FILES = {
    rb"pk\x03\x04": "an Excel workbook, or another zip archive; save its sheet as CSV",
    rb"\xd0\xcf\x11\xe0": "an old Excel workbook; save its sheet as CSV",
    rb"par1": "a Parquet file; give it the suffix .parquet",
    rb"sqlite format 3": f"a SQLite database of which no table is named; expected {FORM}",
    rb"%pdf": "a PDF document; export its table as CSV",
    rb"\x1f\x8b": "compressed with gzip; unpack it",
    rb'\[\s*[{\[]|\{\s*"': "JSON; give it the suffix .json, or .jsonl with an object in each line",
    rb"@relation": "a table of Weka (ARFF); save it as CSV",
    rb"version https://git-lfs": "a pointer of Git LFS; fetch the file with git lfs pull",
    rb"<[!?a-z]": "a web page, perhaps of a login, or an XML document; download the table itself",
    rb"[\w./-]+(,[\w./-]+=[^\s,]+)* [\w./-]+=[^\s,=]+(,[\w./-]+=.*| \d+)?\s": "the line protocol of InfluxDB; export it as CSV (influx query "
    '--raw), or let Telegraf write data_format = "json" into a file .jsonl',
    rb'([\w:.+-]+ )*[^\s,;"]*/[^\s,;"]* (\{"|-?[\d.]+\s)': "a log of MQTT; record it as JSON with mosquitto_sub -F %j, or cut what stands before "
    "the braces: sed 's/^[^{]*//' LOG > FILE.jsonl",
}
CONTROLS = frozenset(range(32)) - frozenset(b"\t\n\v\f\r")  # bytes that no line of text has


def check_is_text(path: Path, *, is_named: bool = True) -> None:
    """DataError for a file whose first bytes show what else it is, or that it is binary if it `is_named` as a table."""
    with path.open("rb") as file:
        begin = file.read(256)
    if begin[:2] in MARKS and begin[:4] != UTF_32:
        return
    first = begin.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    what = next((what for form, what in OTHER_FILES.items() if re.match(form, first)), "")
    if is_named and not what and not CONTROLS.isdisjoint(begin.partition(b"\n")[0]):
        what = "binary data, or text in UTF-16 or UTF-32 without its mark; save it as CSV in UTF-8"
    if what:
        raise DataError(f"{path}: not a table but {what}", public=f"the file is {what}")


@contextmanager
def open_csv(
    path: Path, names: Sequence[str], least: int, notation: Notation
) -> Iterator[TableFile]:
    check_is_text(path)
    encoding = encoding_of(path, notation)
    try:
        with path.open(newline="", encoding=encoding) as file:
            lines = _complete_lines(file) if isinstance(path, UnfinishedFile) else file
            yield _CsvFile(path, _Lines(lines, notation), names, least, notation)
    except UnicodeError as error:
        fault = f"not {encoding.removesuffix('-sig').upper()} text"
        advice = "save the table as UTF-8, or name its encoding in task.read.encoding"
        raise DataError(
            f"{path}: {fault} ({error}); {advice}", public=f"the table is {fault}; {advice}"
        ) from None
    except csv.Error as error:
        advice = "save it as CSV, and close every quotation mark"
        raise DataError(
            f"{path}: not a CSV table ({error}); {advice}", public="the table is not CSV text"
        ) from None


def _complete_lines(lines: Iterable[str]) -> Iterator[str]:
    """Lines up to the last line break: what follows is still being written, and 12.5 may become 12.57."""
    return (line for line in lines if line.endswith(("\n", "\r")))


def _check_csv_header(
    path: Path,
    cells: Sequence[str],
    names: Sequence[str],
    least: int,
    below: Sequence[Sequence[str]],
) -> None:
    """DataError if the first line of a CSV file is empty, is a sample, holds numbers or names a column twice."""
    columns = [cell for cell in cells if cell]
    _check_width(path, len(cells))
    if not columns:
        raise DataError(
            f"{path}: empty; expected a first line with column names and one line per sample",
            public="the table is empty",
        )
    expected = "expected column names: add such a line, or give them (coordinator init --names A,B,... or task.read.names)"
    if seen := _sample_signs(cells, names, below):
        fault = "the first line looks like a sample"
        raise DataError(f"{path}: {fault} ({seen}); {expected}", public=f"{fault}; {expected}")
    # A first sample's label may be a word, so that the last column proves nothing. But a label's usual name, or a name
    # that is asked for, occurs in a header only.
    has_a_known_name = bool(names) or len(columns) == 1
    for column in columns:
        if column.lower() in LABEL_NAMES:
            has_a_known_name = True
    examined = columns if has_a_known_name else columns[:-1]
    if all(number_written(column) is not None for column in examined):
        fault = f"the first line holds numbers; {expected}"
        raise DataError(f"{path}: {fault}", public=fault)
    if len(columns) < least:
        expected = "expected a label and at least one feature"
        if " " in columns[0]:
            expected += ", with commas, semicolons, tabs or bars between the cells of each line"
        raise DataError(
            f"{path}: one column only ({columns[0]!r:.60}); {expected}",
            public=f"the table has one column only; {expected}",
        )
    check_names(path, columns)


def _sample_signs(
    header: Sequence[str], names: Sequence[str], below: Sequence[Sequence[str]]
) -> str:
    """The sign that a first line is a sample; empty if it may hold column names.

    A time above times does, and so do numbers of the size of those below that are no series of positions (wavelengths, pixels,
    years), and words all of which occur below them. A name that is asked for is none of these.
    """
    numbers: list[float] = []
    near: list[str] = []
    recurring: list[bool] = []
    known = False
    for place, name in enumerate(header):
        cells = [row[place].strip() for row in below if place < len(row)]
        values = [one for one in map(value_of, cells) if one.kind != "missing"]
        kind = value_of(name).kind
        known |= (
            kind == "word" and name not in cells and (name in names or name.lower() in LABEL_NAMES)
        )
        if not name or name in names or not values:
            continue
        alike = sum(one.kind == kind for one in values) > len(values) / 2
        if kind == "time" and alike:
            return f"{name!r:.40} above times"
        if (
            kind == "word"
            and _signs(name)
            and 2 * [*map(_signs, cells)].count(_signs(name)) > len(values)
        ):
            return f"{name!r:.40} above cells like it"
        if kind == "word":
            recurring.append(name in cells)
        if kind == "number" and alike:
            numbers.append(value_of(name).number)
            those = [one.number for one in values if one.kind == "number"]
            spread = max(those) - min(those)
            if min(those) - spread <= numbers[-1] <= max(those) + spread:
                near.append(f"{name!r:.40} above numbers like it")
    steps = {round(after - before, 9) for before, after in pairwise(numbers)}
    rises = len(numbers) > MANY_NUMBERS and (min(steps) > 0 or max(steps) < 0)
    is_series = rises or (len(numbers) > 2 and len(steps) == 1 and steps != {0.0})
    if 2 * len(near) > len(numbers) and not is_series and not known:
        return near[0]
    if len(recurring) > 1 and all(recurring):
        return "its words occur below it"
    return ""


def _signs(text: str) -> str:
    """The signs around digits, as in 31.12.2025 or 20,5; empty for a text with a letter, or without a digit."""
    is_name = text.upper() != text.lower() or not any(map(str.isdigit, text))
    return "" if is_name else re.sub(r"\d+", "9", text)


def _check_names_given(path: Path, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """DataError if a file has another number of cells than the names that are given for its columns."""
    check_names(path, names)
    for cells in rows[:1]:
        count = len(cells) if len(cells) <= len(names) or any(cells[len(names) :]) else len(names)
        if count != len(names):
            fault = f"the first row has {count} cells, and task.read.names {len(names)} names"
            raise DataError(f"{path}: {fault}; name each column", public=fault)


# -- parquet -------------------------------------------------------------------------------------------------


class _ParquetFile(TableFile):
    def __init__(self, file: Any, columns: tuple[str, ...], notation: Notation) -> None:
        self.columns = columns
        self._file = file
        self._notation = notation

    def blocks(self, names: Sequence[str], faults: BadCells) -> Iterator[Block]:
        number = 0
        for batch in self._file.iter_batches(BLOCK_ROWS, columns=list(names)):
            count = batch.num_rows
            rows = range(number + 1, number + count + 1)
            number += count
            cells = {name: plain(_values(batch.column(name)), self._notation) for name in names}
            yield Block(rows, [0] * count, cells)


@contextmanager
def open_parquet(path: Path, least: int, notation: Notation) -> Iterator[TableFile]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        fault = f"reading Parquet needs pyarrow: {install('parquet')}"
        raise DataError(f"{path}: {fault}", public=fault) from None
    try:
        file = pq.ParquetFile(path)
        columns = _parquet_header(path, file, least)
        # a word that occurs often is stored once: read as a dictionary, it is held once too
        texts: list[str] = []
        for field in file.schema_arrow:
            kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
            if pa.types.is_string(kind) or pa.types.is_large_string(kind):
                texts.append(field.name)
        file = pq.ParquetFile(path, read_dictionary=texts)
        _check_words(path, file, texts)
        yield _ParquetFile(file, columns, notation)
    except DataError:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
        with path.open("rb") as content:
            is_parquet = content.read(4) == b"PAR1"
        fault = (
            "a Parquet file that is cut short or still being written"
            if is_parquet
            else "not a Parquet file"
        )
        advice = "copy it again" if is_parquet else "give it the suffix of what it is"
        raise DataError(f"{path}: {fault} ({error}); {advice}", public=fault) from None


def _parquet_header(path: Path, file: Any, least: int) -> tuple[str, ...]:
    """The columns; DataError for a table that is empty, ambiguous, nested or too large."""
    columns = tuple(name for name in file.schema_arrow.names if name.strip())
    rows = file.metadata.num_rows
    if rows == 0 or len(columns) < least:
        fault = f"{rows} rows, {len(columns)} columns; expected samples with a label and features"
        raise DataError(f"{path}: {fault}", public=fault)
    _check_width(path, len(columns))
    check_names(path, columns)
    limit = unpacked_limit(path)
    check_size(path, rows * (len(columns) * VALUE_BYTES + ROW_BYTES), limit)
    stored_bytes = 0
    for group in range(file.metadata.num_row_groups):
        stored_bytes += file.metadata.row_group(group).total_byte_size
    check_size(path, stored_bytes, limit)
    for number, field in enumerate(file.schema_arrow, start=1):
        if field.type.num_fields:
            expected = "expected plain values: remove the column or spread it over several"
            raise DataError(
                f"{path}: column {field.name!r} is {field.type}; {expected}",
                public=f"column {number} is nested; {expected}",
            )
    return columns


def _check_words(path: Path, file: Any, texts: Sequence[str]) -> None:
    """DataError for columns of words that are too long in all rows together: each row costs its word again."""
    import pyarrow.compute as pc

    limit, size = unpacked_limit(path), 0
    for batch in file.iter_batches(WORD_ROWS, columns=list(texts)) if texts else ():
        for column in batch.columns:
            if hasattr(column, "dictionary"):
                lengths = pc.binary_length(column.dictionary).take(column.indices)
            else:
                lengths = pc.binary_length(column)
            size += pc.sum(lengths).as_py() or 0
        check_size(path, size, limit)


def _values(column: Any) -> list[Any]:
    """The values of a column, which may be stored as indices into a dictionary. Equal words share one string."""
    if hasattr(column, "dictionary"):
        words = _values(column.dictionary)
        return [None if index is None else words[index] for index in column.indices.to_pylist()]
    kind = str(column.type)
    if "[ns" in kind:  # Python's own times have microseconds
        column = column.cast(_in_microseconds(column.type), safe=False)
    try:
        values: list[Any] = column.to_pylist()
    except OverflowError:
        values = [_python_value(value) for value in column]
    return values


def _in_microseconds(kind: Any) -> Any:
    """A type of times or durations in nanoseconds, in microseconds."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return pa.duration("us") if pa.types.is_duration(kind) else pa.time64("us")


def _python_value(value: Any) -> Any:
    """A value of a Parquet file; a word for a point in time that no calendar has."""
    try:
        return value.as_py()
    except OverflowError:
        return "a time beyond the year 9999"
