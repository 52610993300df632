"""What a proposal needs to know about the data of this device: tables from their description, other data from its arrays.

Rows of a table may be series of measurements over time; then it matters how long their values stay as they are.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path

import numpy as np
import numpy.typing as npt

from covey.agent.data.cells import BadCells, Cells
from covey.agent.data.dataset import TESTS, Dataset, held_out
from covey.agent.data.load import has_images, load, tables_at
from covey.agent.data.table_files import USUAL, open_table
from covey.agent.data.values import moment_of, number_written, plain_number, spelled, value_of
from covey.agent.data_place import place_of
from covey.extras.formats.images import ImageHeader, ImageSource, image_folders, read_header
from covey.extras.formats.parquet_images import encoded_images, image_column, read_rows
from covey.extras.formats.sqlite_place import SqlitePath
from covey.extras.proposals.describe import (
    MAX_SHOWN,
    ColumnDescription,
    TableDescription,
    is_thing,
    lists_words,
    shape_of,
)
from covey.extras.proposals.description import (
    FEW_FAULTS,
    MAX_VALUES,
    ColumnFacts,
    DataDescription,
    ImageFacts,
    Kind,
    SeriesFacts,
    is_description,
    read_description,
)
from covey.extras.proposals.layout_found import described
from covey.extras.proposals.order import follow
from covey.extras.proposals.proposal import checked, propose
from covey.shared.errors import DataError
from covey.shared.own_code.consent import AllowedCode
from covey.shared.programs.terminal import Terminal
from covey.shared.scenario.columns import Notation
from covey.shared.scenario.task import Task

# -- whether the rows of a table are series of measurements over time ------------------------------


MOSTLY = 0.9  # of the rows of a series have a later time than the row before
LEAST_SERIES = 8  # rows; shorter groups are no series

Codes = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]


@dataclass
class _Rows:
    """The columns that count, in the order of the file."""

    count: int = 0
    times: list[float] = field(default_factory=list)  # seconds since 1970
    numbers: dict[str, list[float]] = field(default_factory=dict)  # by column
    codes: dict[str, list[int]] = field(default_factory=dict)  # values of columns with few of them
    words: dict[str, dict[str, int]] = field(default_factory=dict)

    def add(self, name: str, cells: Cells) -> None:
        """Append the cells of a column with few values."""
        codes = self.codes.setdefault(name, [])
        words = self.words.setdefault(name, {})
        for cell in cells:
            codes.append(words.setdefault(spelled(cell), len(words)))


def find_series(path: Path, table: TableDescription) -> SeriesFacts | None:
    """The series in a table whose rows are in the order of a column of times, or follow one another without one; else None.

    Args:
        path: the file.
        table: its description.

    Raises:
        DataError: the file cannot be read.
    """
    time = _time_column(table)
    if time is None and not follow(path, table):
        return None
    rows = _read(path, time, table)
    times = np.array(rows.times) if time else np.arange(rows.count, dtype=np.float64)
    known = np.isfinite(times)  # rows without a time show no order
    times = times[known]
    codes = {name: np.array(own, np.int64)[known] for name, own in rows.codes.items()}
    whole = np.zeros(len(times), np.int64)
    is_one = _rises(times, whole)
    groups = [
        name
        for name, own in codes.items()
        if (_are_recordings(own) if not time else not is_one or _take_turns(name, times, own))
        and _rises(times, own)
    ]
    if not time:
        groups.sort(key=lambda name: -int(codes[name].max()))
    is_one = is_one and not groups
    if not is_one and not groups:
        return None
    runs: dict[str, float] = {}
    for name, own in codes.items():
        others = [group for group in groups if group != name]
        series = codes[others[0]] if others else whole
        runs[name] = _mean_run(own, series)
    first = whole if is_one else codes[groups[0]]
    trends = {name: _trend(times, np.array(own)[known]) for name, own in rows.numbers.items()}
    cut = len(times) - held_out(len(times), TESTS)
    return SeriesFacts(
        time=time or "",
        groups=tuple(groups),
        shortest=int(np.quantile(np.bincount(first), 0.25, method="lower")),
        span_s=float(np.ptp(times)) if time else 0,
        runs=runs,
        trends=trends if time else {},
        lasting=tuple(name for name, own in codes.items() if {*own[:cut]} == {*own[cut:]}),
    )


def _trend(times: Float64, values: Float64) -> float:
    """How much of the squares of the latest fifth a line through the rows before explains, beyond the mean of these: at most 1,
    and 0 or less where a trend does not pay."""
    order = np.argsort(times, kind="stable")
    order = order[np.isfinite(values[order])]
    cut = len(order) - len(order) // 5
    before, latest = order[:cut], order[cut:]
    if len(before) < LEAST_SERIES or not len(latest) or not np.ptp(times[before]):
        return 0.0
    unit = np.ptp(times)
    slope, level = np.polyfit((times[before] - times[0]) / unit, values[before], 1)
    of_line = values[latest] - slope * (times[latest] - times[0]) / unit - level
    of_mean = values[latest] - values[before].mean()
    if not np.square(of_mean).sum():
        return 0.0
    return float(1 - np.square(of_line).sum() / np.square(of_mean).sum())


def _time_column(table: TableDescription) -> str | None:
    """The most complete column of times, if most rows have one."""
    times = [one for one in table.columns if one.kind == "time"]
    column = min(times, key=lambda one: one.missing, default=None)
    return column.name if column and column.missing <= (1 - MOSTLY) * table.rows else None


def _has_few_values(column: ColumnDescription) -> bool:
    is_name = column.kind in ("word", "whole", "boolean") and not column.missing
    return is_name and (1 < column.distinct <= MAX_SHOWN or column.steps == "runs")


def _are_recordings(codes: Codes) -> bool:
    """Whether each value of a column is in one run of rows."""
    return int(np.count_nonzero(np.diff(codes))) == int(codes.max())


def _read(path: Path, time: str | None, table: TableDescription) -> _Rows:
    """The times and the columns with few values, row by row."""
    rows = _Rows()
    few = [column.name for column in table.columns if _has_few_values(column)]
    numeric = [column.name for column in table.columns if column.kind in NUMBERS if time]
    names = list(dict.fromkeys([*([time] if time else ()), *few, *numeric]))
    with open_table(path, least=1, notation=table.notation) as file:
        for block in file.blocks(names, BadCells(path)):
            rows.count += len(block.rows)
            for cell in block.cells[time] if time else ():
                rows.times.append(_seconds(cell))
            for name in few:
                rows.add(name, block.cells[name])
            for name in numeric:
                own = rows.numbers.setdefault(name, [])
                own += [value_of(cell).number for cell in block.cells[name]]
    return rows


def _seconds(cell: object) -> float:
    """A point in time in seconds since 1970, by the clock as written if it has no zone; NaN if it is missing."""
    moment = moment_of(cell)
    if moment is None:
        return math.nan
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp()


def _rises(times: Float64, series: Codes) -> bool:
    """Whether the times of each series rise from row to row, and none is short."""
    if np.bincount(series).min() < LEAST_SERIES:
        return False
    order = np.argsort(series, kind="stable")
    steps = np.diff(times[order])
    inside = np.diff(series[order]) == 0
    own = steps[inside]
    return bool((own >= 0).all() and (own > 0).mean() >= MOSTLY)


def _take_turns(name: str, times: Float64, codes: Codes) -> bool:
    """Whether rows in the order of time are of several things, one after the other: a window of them all would be of none.

    A weekday or an hour takes turns too, in even steps.
    """
    count = int(codes.max()) + 1
    if is_thing(name):
        return count > 1 and _mean_run(codes, np.zeros_like(codes)) < 2
    if not 1 < count <= len(codes) // 2 or (codes[count:] == codes[:-count]).mean() < MOSTLY:
        return False
    steps = np.diff(times)
    usual = [float(np.median(steps[place::count])) for place in range(count)]
    return max(usual) > 2 * min(usual)


def _mean_run(codes: Codes, series: Codes) -> float:
    """How many rows of a series a value stays on average."""
    order = np.argsort(series, kind="stable")
    changes = (np.diff(codes[order]) != 0) | (np.diff(series[order]) != 0)
    return len(codes) / (1 + int(changes.sum()))


# -- the data of a proposal -------------------------------------------------------------------------


NUMBERS = ("whole", "number")
CLASS_FOLDERS = "the name of the folder"  # stands for the target column of images


def describe_all(
    sources: Sequence[str], words: Collection[str] = (), known: Notation = USUAL
) -> list[DataDescription]:
    """Describe the data of several devices. What stands for a missing cell on one of them does so on all.

    Args:
        sources: the data of each device, or what a device has described.
        words: as for `describe`.
        known: as for `describe`.

    Raises:
        DataError: the data cannot be read.
    """
    found = [
        read_description(Path(one)) if is_description(one) else describe(one, words, known)
        for one in sources
    ]
    of_all = _of_all([one.read for one in found], known)
    return [
        one
        if one.kind != "table" or is_description(source) or _fits(one.read, of_all)
        else describe(source, words, of_all)
        for source, one in zip(sources, found, strict=True)
    ]


def _of_all(found: Sequence[Notation], known: Notation) -> Notation:
    """What one device shows and all have in common: marks of missing cells, and the layout."""
    pivots = [one.pivot for one in found if one.pivot is not None]
    return known.model_copy(
        update={
            "missing": tuple(dict.fromkeys(mark for one in found for mark in one.missing)),
            "zeros": tuple(dict.fromkeys(name for one in found for name in one.zeros)),
            "join": next((one.join for one in found if one.join), ()),
            "pivot": max(pivots, key=lambda one: one.step_s or 0.0, default=None),
        }
    )


def _fits(one: Notation, of_all: Notation) -> bool:
    layout = ("join", "pivot", "zeros")
    same = all(getattr(one, key) == getattr(of_all, key) for key in layout)
    return same and {*one.missing} == {*of_all.missing}


def describe(data: str, words: Collection[str] = (), known: Notation = USUAL) -> DataDescription:
    """Describe the data of `agent start --data`.

    Args:
        data: a path, or code of the user's own.
        words: columns of a table whose words its owner takes for classes: all of them are listed.
        known: what its owner or another device states of a table's spelling.

    Raises:
        DataError: the data cannot be read.
    """
    tables = tables_at(place_of(data))
    if len(tables) == 1 and image_column(tables[0]) is not None:
        return _image_table(data, tables[0])
    if tables:
        return _tables(data, tables, words, known)
    if has_images(Path(data)):
        return _images(data)
    return describe_arrays(load(data, allowed=AllowedCode.for_data(data)), data)


def _images(data: str) -> DataDescription:
    """A folder of images, by the headers of its files and the names of its folders. No pixel is read."""
    sources: list[ImageSource] = []
    names: list[str] = []
    found = image_folders(Path(data))
    for file in (*found.train, *found.test):
        sources.append(file.path)
        names.append(file.class_name)
    return _described_images(data, sources, names)


def _image_table(data: str, path: Path) -> DataDescription:
    """A Parquet file with a column of images."""
    rows = read_rows(path, None, label_needed=True)
    if not rows.column.is_encoded:
        return describe_arrays(load(data), data)
    return _described_images(data, encoded_images(path, rows), rows.labels)


def _described_images(
    data: str, sources: Sequence[ImageSource], names: Sequence[str]
) -> DataDescription:
    """Images by their headers, and the names of their classes."""
    headers: list[ImageHeader] = []
    for source in sources:
        with contextlib.suppress(DataError):  # they are counted
            header = read_header(source)
            headers.append(header)
    if not headers:
        read_header(sources[0])  # raises DataError
    heights = [header.height for header in headers]
    widths = [header.width for header in headers]
    channels = {header.channels for header in headers}
    facts = ImageFacts(
        heights=(min(heights), max(heights)),
        widths=(min(widths), max(widths)),
        channels=tuple(sorted(channels)),
        unreadable=len(sources) - len(headers),
    )
    classes = sorted(set(names))
    return DataDescription(
        source=data,
        kind="images",
        samples=len(sources),
        shape=headers[0].shape if facts.have_one_form else (),
        dtype="uint8",
        images=facts,
        target=ColumnFacts(
            name=CLASS_FOLDERS,
            cells=len(names),
            kind="word",
            distinct=len(classes),
            values=tuple(classes),
        ),
    )


def _tables(
    data: str, tables: Sequence[Path], words: Collection[str], known: Notation
) -> DataDescription:
    """One table, or a training and a test table."""
    found, remarks = described(tables, words, known)
    if found.rows < 2:
        fault = f"{found.rows} rows below the header; expected at least two"
        raise DataError(f"{data}: {fault}", public=fault)
    columns = [_column_facts(column, found.rows, words) for column in found.columns]
    first = tables[0]
    return DataDescription(
        source=str(first.file) if isinstance(first, SqlitePath) else data,  # no query
        kind="table",
        samples=found.rows,
        faulty_rows=found.faulty_rows,
        columns=tuple(columns),
        read=found.notation,
        remarks=(*remarks, *found.remarks),
        signs="".join(
            sign
            for sign, is_there in ((".", found.found.has_points), (",", found.found.has_commas))
            if is_there
        ),
        nameless=found.nameless,
        series=find_series(tables[0], found),
    )


def _column_facts(column: ColumnDescription, rows: int, words: Collection[str]) -> ColumnFacts:
    """A column with few cells that are no numbers, or no times, counts as a column of these with faults."""
    present = rows - column.missing
    faults = 0 if column.kind == "time" else present - max(column.numbers, column.times)
    kind = _kind(column)
    if column.names_things:
        kind = "word"
    elif kind == "word" and faults < FEW_FAULTS * present:
        kind = "number" if column.numbers else "time"
    is_number = kind == "number"
    if is_number:
        kind = "number"
    values = _values(column, words, is_number=is_number)
    return ColumnFacts(
        name=column.name,
        cells=rows,
        missing=column.missing,
        numbers=0 if column.names_things else column.numbers,
        faults=faults if kind in ("number", "time") else 0,
        strange=_strange(column, kind),
        kind=kind,
        whole=column.kind == "whole",
        bits=_bits(column) if is_number else None,
        distinct=column.distinct if values is None else len(values),
        unique=column.is_unique,
        values=values,
        counts=None if values is None else _counts(column, values),
        most=max(column.counts, default=None),
        singles=column.words.singles,
        length=column.words.length,
        mixed=column.words.mixed,
        coded=column.words.coded,
        asked=column.name in words,
        steps=column.steps,
        smallest=column.smallest if is_number else None,
        mean=_finite(column.mean) if is_number else None,
        std=_finite(column.std) if is_number else None,
        largest=column.largest if is_number else None,
        dates_only=column.dates_only,
    )


def _strange(column: ColumnDescription, kind: Kind) -> tuple[str, ...]:
    """The cells to correct; of words without letters, such as 38,0, only their shape: they may be keys or places."""
    if kind in ("number", "time"):
        return column.strange
    return tuple(dict.fromkeys(map(shape_of, column.strange))) if column.has_no_letters else ()


def _bits(column: ColumnDescription) -> int | None:
    """The smallest power of two that is larger than every number of a column."""
    if column.smallest is None or column.largest is None:
        return None
    _, exponent = math.frexp(max(abs(column.smallest), abs(column.largest)))
    return max(exponent, 0)


def _kind(column: ColumnDescription) -> Kind:
    match column.kind:
        case "whole" | "number":
            return "number"
        case other:
            return other


def _values(
    column: ColumnDescription, words: Collection[str], *, is_number: bool
) -> tuple[str, ...] | None:
    """The different values, if there are few and they repeat; of words if they are classes of things, or are asked for."""
    if column.distinct > len(column.values) or column.kind in ("time", "bytes"):
        return None
    if not is_number:
        is_listed = column.name in words or column.kind == "boolean" or lists_words(column)
        return tuple(sorted(column.values)) if is_listed else None
    if column.is_unique:
        return None
    different = {number for text in column.values if (number := number_written(text)) is not None}
    return tuple(plain_number(number) for number in sorted(different))


def _counts(column: ColumnDescription, values: Sequence[str]) -> tuple[int, ...]:
    """The cells of each of these values."""
    found = dict(zip(column.values, column.counts, strict=True))
    return tuple(found.get(value, 0) for value in values)


def describe_arrays(data: Dataset, source: str) -> DataDescription:
    """Describe data that is no table.

    Args:
        data: as its loader returns it.
        source: its name, for messages.
    """
    targets = np.concatenate([data.targets, data.test_targets])
    seen, counts = np.unique(targets, return_counts=True)
    return DataDescription(
        source=source,
        kind="arrays",
        samples=len(targets),
        shape=data.shape,
        dtype=data.features.dtype.name,
        target=_target_facts(data, seen.tolist(), int(counts.sum())),
        classes=data.labels if data.ordered else (),
        groups=0 if data.groups is None else len(np.unique(data.groups)),
    )


def _finite(value: float | None) -> float | None:
    """A number that JSON can hold."""
    return value if value is not None and math.isfinite(value) else None


def _target_facts(data: Dataset, seen: list[float], cells: int) -> ColumnFacts:
    """The targets as a column. Indices of named classes become their names."""
    has_names = bool(data.labels)
    whole = all(math.trunc(value) == value for value in seen)
    values = [spelled(float(value)) for value in seen]
    if has_names:
        values = [data.labels[int(index)] for index in seen]
    return ColumnFacts(
        name="y",
        cells=cells,
        numbers=0 if has_names else cells,
        kind="word" if has_names else "number",
        whole=whole and not has_names,
        distinct=len(values),
        values=tuple(values) if len(values) <= MAX_VALUES else None,
    )


def task_of_table(data: str, label: str | None) -> Task:
    """The task that a proposal has for a table. Raises UserError if there is none."""
    return checked(propose([describe(data, [label] if label else ())], target=label)).task


def show_proposal(
    sources: Sequence[str],
    target: str | None,
    words: Sequence[str] = (),
    names: str = "",
    *,
    as_json: bool,
) -> None:
    """Print a scenario that fits the data of one or several devices.

    As JSON, print a description of each, one a line, which `coordinator init` combines with others. The target and the columns
    of `words` have their words in it, whatever they are; `names` are those of the columns of text files that begin with a sample, with
    commas between them.

    Raises:
        UserError: the data cannot be read, or no column can be its target.
    """
    asked = [*words, *([] if target is None else [target])]
    known = Notation(names=tuple(name.strip() for name in names.split(",") if name.strip()))
    descriptions = describe_all(sources, asked, known)
    if as_json:
        for source, description in zip(sources, descriptions, strict=True):
            if not is_description(source):
                print(description.model_dump_json())
        return
    proposal = propose(descriptions, target=target)
    print(proposal.to_yaml(), end="")
    remarks = Terminal(stderr=True, soft_wrap=True)
    for remark in proposal.remarks():
        remarks.print(remark)
