"""What a proposal needs to know about the data of one device: counts, kinds and the values that repeat. No rows."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from covey.shared.errors import UserError
from covey.shared.scenario.columns import Notation
from covey.shared.scenario.section import Section
from covey.shared.storage.json_text import holds_rows

MAX_VALUES = 50  # different values of a column that a description lists
MAX_BYTES = 16 << 20  # of a description in a file
FEW_FAULTS = 0.2  # cells without a number, as a share: a column of numbers has fewer

Kind = Literal["empty", "number", "boolean", "word", "time", "bytes"]


class ColumnFacts(Section):
    """One column of a table, or the targets of other data."""

    name: str
    cells: int = Field(ge=0)  # rows, missing cells included
    missing: int = Field(0, ge=0)
    numbers: int = Field(0, ge=0)  # cells with a finite number
    faults: int = Field(0, ge=0)  # other cells of a column of numbers
    # the first of these; of a column of words the first ones without a letter, such as 38,0
    strange: tuple[str, ...] = ()
    kind: Kind
    whole: bool = False  # all numbers are whole
    bits: int | None = None  # all numbers are smaller than 2**bits; None: unknown, or no numbers
    distinct: int = Field(0, ge=0)  # different values, or at least this number
    unique: bool = False  # no value occurs twice, and there are many
    # all different values; None: more than MAX_VALUES, unique, or words that are no classes of things
    values: tuple[str, ...] | None = None
    counts: tuple[int, ...] | None = None  # cells of each of these; None: unknown
    most: int | None = Field(None, ge=0)  # cells of the most frequent value; None: unknown
    singles: int = Field(0, ge=0)  # values that one cell has
    length: float = Field(0.0, ge=0)  # characters of a value, on average
    mixed: float = Field(0.0, ge=0)  # the share of values with letters and digits
    coded: float = Field(
        0.0, ge=0
    )  # the share of values with three digits or more among other signs
    asked: bool = False  # the owner of the device takes its words for classes
    # whole numbers, none missing: each one more than the one before, or rising, or falling, or rising after runs of one number
    steps: Literal["", "ones", "rising", "falling", "runs"] = ""
    smallest: float | None = None  # of numbers
    largest: float | None = None
    mean: float | None = None
    std: float | None = None
    dates_only: bool = False  # of times: all are at 0:00

    @property
    def present(self) -> int:
        """Cells that are not missing."""
        return self.cells - self.missing


class ImageFacts(Section):
    """The images of a folder, from their headers alone."""

    heights: tuple[int, int]  # of the lowest and of the highest image, in pixels
    widths: tuple[int, int]
    channels: tuple[int, ...]  # 1: there are grey images, 3: there are coloured ones
    unreadable: int = Field(0, ge=0)  # files that are no images

    @property
    def have_one_form(self) -> bool:
        """Whether all images have the same size and the same colours."""
        lowest, highest = self.heights
        narrowest, widest = self.widths
        return lowest == highest and narrowest == widest and len(self.channels) == 1


class SeriesFacts(Section):
    """The rows of a table as series over time."""

    time: str  # the column that has the times; empty: rows that follow one another show their order
    groups: tuple[str, ...] = ()  # columns that name a series each; empty: the file is one series
    shortest: int = Field(ge=0)  # rows of a short series: three of four have as many
    span_s: float = Field(ge=0)  # from the first to the last time, in seconds
    # by column with few values: rows for which a value stays, on average
    runs: dict[str, float] = Field(default_factory=dict)
    # by column of numbers: how much better than the mean a line over time is on the latest fifth, at most 1
    trends: dict[str, float] = Field(default_factory=dict)
    # columns with few values, all of which come both before and in the latest rows
    lasting: tuple[str, ...] = ()


class DataDescription(Section):
    """The data of one device."""

    form: Literal["covey data description 1"] = "covey data description 1"
    source: str
    kind: Literal["table", "arrays", "images"]
    samples: int = Field(ge=0)
    columns: tuple[ColumnFacts, ...] = ()  # of a table, in the order of its file
    read: Notation = Notation()  # of a table
    remarks: tuple[str, ...] = ()  # of a table: what in it has two readings
    signs: str = ""  # of a table: those before the decimals of its numbers
    nameless: int = 0  # of a table: columns without a name, which are not read
    faulty_rows: int = 0  # of a table: rows with another number of cells than the header
    series: SeriesFacts | None = None  # of a table whose rows are in the order of their times
    shape: tuple[int, ...] = ()  # of one sample of other data; empty for images of mixed sizes
    images: ImageFacts | None = None  # of a folder of images
    dtype: str = ""  # of its features
    target: ColumnFacts | None = None  # its targets
    classes: tuple[str, ...] = ()  # names of its classes, in the order that its format fixes
    groups: int = 0  # natural clients, such as people, that its samples belong to

    @property
    def is_mixed(self) -> bool:
        """Whether a column of words has numbers among them."""
        return any(column.kind == "word" and column.numbers for column in self.columns)

    def column(self, name: str) -> ColumnFacts | None:
        """The column of this name."""
        for column in self.columns:
            if column.name == name:
                return column
        return None


def is_description(source: str) -> bool:
    """Whether a source of data is such a description, which a device has written, and not a list or lines of JSON."""
    return source.endswith(".json") and Path(source).is_file() and not holds_rows(Path(source))


def read_description(path: Path) -> DataDescription:
    """A description that `agent check --propose --json` wrote on a device.

    Raises:
        UserError: the file is none.
    """
    expected = "expected what `agent check --propose --json` prints"
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise UserError(f"{path}: longer than {MAX_BYTES} bytes; {expected}")
    try:
        return DataDescription.model_validate_json(content)
    except ValidationError as error:
        raise UserError(
            f"{path}: not a description of data ({error.error_count()} faults); {expected}"
        ) from None
