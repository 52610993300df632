"""A Parquet file with a column of images: encoded as files (as Hugging Face's data sets are), or as lists of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covey.agent.data.dataset import Array, Dataset, dataset, encode
from covey.agent.data.limits import check_size, unpacked_limit
from covey.agent.data.table_selection import label_column
from covey.agent.data.values import is_missing, spelled
from covey.extras.formats.images import EncodedImage, Form, ImageReader
from covey.shared.errors import DataError
from covey.shared.scenario.task import Task

SUFFIX = ".parquet"
CONTENT = "bytes"  # the field with the file, if a cell has several fields
MAX_ROWS_NAMED = 10
BATCH_ROWS = 256
PROBED = 64  # cells, of which one must be an image
# of the files that are read: PNG, JPEG, GIF, BMP, TIFF, WebP, PPM
BEGINNINGS = (
    b"\x89PNG",
    b"\xff\xd8",
    b"GIF8",
    b"BM",
    b"II*\x00",
    b"MM\x00*",
    b"RIFF",
    b"P5",
    b"P6",
)


@dataclass(frozen=True)
class ImageColumn:
    """The only column of a file that holds images."""

    name: str
    is_encoded: bool  # files such as PNG; else lists of numbers


@dataclass(frozen=True)
class ImageRows:
    """The rows of a file with images."""

    column: ImageColumn
    label: str | None  # the name of the label column; None: it is not read
    cells: Sequence[Any]  # (n,) images
    labels: Sequence[str]  # (n,) as the file spells them; empty without a label column


def image_column(path: Path) -> ImageColumn | None:
    """The column of images in a Parquet file; None if it has none or several, if it is no such file, or without pyarrow."""
    if path.suffix.lower() != SUFFIX or not path.is_file():
        return None
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = pq.read_schema(path)
    except Exception:  # `load_table` names the fault of a file that cannot be read
        return None
    found: list[ImageColumn] = []
    for field in schema:
        kind = field.type
        is_file = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        if pa.types.is_struct(kind):
            is_file = kind.get_field_index(CONTENT) >= 0
        is_list = pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind)
        if is_file or is_list:
            found.append(ImageColumn(field.name, is_encoded=is_file))
    if len(found) != 1 or (found[0].is_encoded and not _holds_images(path, found[0].name)):
        return None
    return found[0]


def _holds_images(path: Path, name: str) -> bool:
    """Whether one of the first cells of a column of bytes is an image, and the column not a key or a shape on a map.

    True also where no cell can be read: the reader of images names the fault.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        first = next(pq.ParquetFile(path).iter_batches(PROBED, columns=[name]), None)
    except (pa.ArrowException, OSError, ValueError):
        return True
    cells = [] if first is None else [cell for cell in first.column(0).to_pylist() if cell]
    contents = [cell[CONTENT] if isinstance(cell, Mapping) else cell for cell in cells]
    return not contents or any(bytes(content or b"").startswith(BEGINNINGS) for content in contents)


def load_image_column(path: Path, label: str | None, task: Task | None) -> Dataset:
    """The images and labels of a Parquet file. Other columns are not read.

    Args:
        path: a file for which `image_column` finds a column.
        label: the label column; None: the task's target, else as in other tables.
        task: brings images to the form of its features, if it has `resize`.

    Returns:
        Encoded images as (n, 1 or 3, height, width) uint8, lists as (n, length) float32.

    Raises:
        DataError: labels are missing, images cannot be read or differ in size, or lists in length.
    """
    wish = label
    if wish is None and task is not None:
        wish = next(iter(task.targets), None)
    rows = read_rows(path, wish, label_needed=True)
    features = pixels_of(path, rows, task)
    targets, _, names = encode(rows.labels)
    return dataset(features, targets, source=f"{path}, label column {rows.label!r}", labels=names)


def read_rows(path: Path, label: str | None, *, label_needed: bool) -> ImageRows:
    """The cells of a file with images, and its labels if they are needed. DataError as `load_image_column`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    column = image_column(path)
    assert column is not None  # noqa: S101 - the caller has found it
    try:
        file = pq.ParquetFile(path)
        _check_unpacked_size(path, file)
        names = [column.name]
        label_name: str | None = None
        if label_needed:
            label_name = _label_name(path, file.schema_arrow.names, column, label)
            names.append(label_name)
        table = _read_within(path, file, names)
    except (pa.ArrowException, OSError, ValueError) as error:
        fault = "the Parquet file is damaged"
        raise DataError(f"{path}: {fault} ({error}); copy it again", public=fault) from None
    cells = table.column(column.name).to_pylist()
    labels: list[str] = []
    if label_name is not None:
        labels = _labels(path, label_name, table.column(label_name).to_pylist())
    return ImageRows(column, label_name, cells, labels)


def _label_name(path: Path, names: Sequence[str], column: ImageColumn, label: str | None) -> str:
    """The label column among the others. DataError if there is none."""
    others = [name for name in names if name != column.name]
    if not others:
        fault = "images without a label column; add one, such as `label`"
        raise DataError(f"{path}: {fault}", public=fault)
    return label_column(others, label, str(path))


def encoded_images(path: Path, rows: ImageRows) -> list[EncodedImage]:
    """The encoded images of all rows."""
    found: list[EncodedImage] = []
    for number, cell in enumerate(rows.cells, start=1):
        content = cell
        if isinstance(cell, Mapping):
            content = cell[CONTENT]
        found.append(EncodedImage(f"{path}: row {number}", content or b""))
    return found


def pixels_of(path: Path, rows: ImageRows, task: Task | None) -> Array:
    """The features of all rows. DataError as `load_image_column`."""
    if not rows.column.is_encoded:
        return _lists(path, rows)
    reader = ImageReader(path, Form.of(task))
    features = reader.read(encoded_images(path, rows))
    reader.check()
    return features


def _check_unpacked_size(path: Path, file: Any) -> None:
    stored_bytes = 0
    for group in range(file.metadata.num_row_groups):
        stored_bytes += file.metadata.row_group(group).total_byte_size
    check_size(path, stored_bytes, unpacked_limit(path))


def _read_within(path: Path, file: Any, names: Sequence[str]) -> Any:
    """The columns of these names. DataError once they take more than the file may unpack to: a value that repeats is stored once."""
    import pyarrow as pa

    limit, size = unpacked_limit(path), 0
    batches: list[Any] = []
    for batch in file.iter_batches(BATCH_ROWS, columns=list(names)):
        size += batch.nbytes
        check_size(path, size, limit)
        batches.append(batch)
    return pa.Table.from_batches(batches) if batches else file.read(columns=list(names))


def _labels(path: Path, name: str, cells: Sequence[Any]) -> list[str]:
    """Labels as the file spells them. DataError names the rows without one."""
    found: list[str] = []
    missing: list[str] = []
    for row, cell in enumerate(cells, start=1):
        found.append(spelled(cell))
        if is_missing(cell):
            missing.append(str(row))
    if missing:
        rows = ", ".join(missing[:MAX_ROWS_NAMED])
        fault = f"{len(missing)} rows without a label, the first: {rows}"
        raise DataError(
            f"{path}: column {name!r}: {fault}; fill them in or leave the rows out", public=fault
        )
    return found


def _lists(path: Path, rows: ImageRows) -> Array:
    """Lists of numbers as features (n, length). DataError names the first list of another length."""
    lengths = [len(cell or ()) for cell in rows.cells]
    for number, count in enumerate(lengths, start=1):
        length = lengths[0]
        if count != length or not count:
            fault = f"row {number} has a list of {count} numbers, the first has {length}; expected lists of one length"
            raise DataError(f"{path}: {fault}", public=fault)
    try:
        return np.array(rows.cells, np.float32)
    except (TypeError, ValueError):
        fault = "a list holds something else than numbers; expected numbers"
        raise DataError(f"{path}: {fault}", public=fault) from None
