"""The task of devices that hold images: as folders, as arrays, or as tables with a column per pixel. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from covey.extras.proposals.choices import Choice, Proposal, image_model
from covey.extras.proposals.description import ColumnFacts, DataDescription, ImageFacts
from covey.extras.proposals.features import Features, key_reason
from covey.extras.proposals.fleet_columns import FleetColumn, fleet_columns, spelled_alike
from covey.extras.proposals.targets import find_target
from covey.extras.proposals.task_of_table import ignored_columns
from covey.shared.errors import UserError
from covey.shared.sentences import counted, some

BYTE_SCALE = 0.00392157  # 1 / 255
BYTE_BITS = 8
LARGEST_SIDE = 128  # pixels; images of one size up to this keep it
USUAL_SIDE = 64  # of larger images, and of images of mixed sizes
LEAST_SIDE = 32  # to which smaller images of mixed sizes are enlarged
MIN_CLASSES = 2
MAX_CLASSES = 1000

Shape = tuple[int, ...]  # channels, height, width


@dataclass(frozen=True)
class PixelTables:
    """What the tables of a fleet with images have in common."""

    target: str = ""
    roles: Features = field(default_factory=Features)  # its columns are pixels

    @property
    def pixels(self) -> tuple[str, ...]:
        """Names of the columns, in the order of the first table; empty if no device has a table."""
        return tuple(self.roles.columns)


def picture_task(devices: Sequence[DataDescription], wish: str | None, proposal: Proposal) -> None:
    """Add the task section of a proposal.

    Args:
        devices: at least one of them holds a folder of images.
        wish: the target of tables that the user asks for.
        proposal: gets the section, differences between the devices, and warnings.

    Raises:
        UserError: arrays or tables do not go together with the images, or there are not two classes.
    """
    tables = _pixel_tables(devices, wish)
    shape = _shape(devices, tables)
    classes = _classes(devices, tables)
    task: dict[str, Choice] = {}
    task["features"] = Choice(shape, "channels, height and width of every image")
    if tables.pixels:
        task["columns"] = Choice(
            tables.pixels,
            "of the tables: one column per pixel, row by row; their order in a file does not matter",
        )
        task["target"] = Choice(tables.target, "of the tables")
        if tables.roles.ignored:
            task["ignore"] = ignored_columns(tables.roles)
    task["classes"] = Choice(classes, "the names of the folders on all devices")
    if _needs_resize(devices, shape):
        task["resize"] = Choice(
            "bilinear", f"images have {_sizes(devices)}; larger features learn and cost more"
        )
    task["scale"] = Choice(BYTE_SCALE, "bytes become numbers from 0 to 1")
    _, height, width = shape
    task["model"] = image_model(shape[0], min(height, width))
    proposal.sections["task"] = task
    _name_absent_classes(devices, classes, tables, proposal)
    proposal.warnings += spelled_alike(classes)
    proposal.warnings += _warnings(devices, tables)


# -- tables --------------------------------------------------------------------------------------------------


def _pixel_tables(devices: Sequence[DataDescription], wish: str | None) -> PixelTables:
    """The pixels among the columns of all tables: numbers that all tables have, in the order of the first one."""
    tables = [device for device in devices if device.kind == "table"]
    if not tables:
        if wish is not None:
            raise UserError(f"--target {wish}: no device has a table; omit the option")
        return PixelTables()
    columns = fleet_columns(tables)
    target = find_target(columns, [table.columns[-1].name for table in tables], wish)
    roles = Features()
    for column in columns:
        if column.name == target.name:
            continue
        reason = _no_pixel(column)
        if reason:
            roles.ignored[column.name] = reason
        else:
            roles.columns.append(column.name)
    return PixelTables(target.name, roles)


def _no_pixel(column: FleetColumn) -> str:
    """Why a column is no pixel; empty if it can be one. A pixel may have the same value in all rows."""
    if column.absent:
        return f"missing on {some(column.absent)}"
    if column.kinds != ("number",):
        return "no numbers"
    return key_reason(column)


# -- the shape -----------------------------------------------------------------------------------------------


def _shape(devices: Sequence[DataDescription], tables: PixelTables) -> Shape:
    """The features: as arrays fix them, else as all images are, else a square."""
    pixels = len(tables.pixels)
    arrays: list[DataDescription] = []
    for device in devices:
        is_flat = len(device.shape) == 1  # only the number of its pixels counts
        if device.kind == "arrays" and not is_flat:
            arrays.append(device)
    shape = _of_arrays(arrays[0]) if arrays else _of_folders(devices, pixels)
    for device in arrays:
        if _of_arrays(device) != shape:
            raise UserError(
                f"{device.source}: samples have shape {list(device.shape)}, those of another device {list(shape)}; "
                "bring all to one shape"
            )
    expected = math.prod(shape)
    _check_flat(devices, shape)
    if pixels and expected != pixels:
        columns = counted(pixels, "column")
        image = f"images of shape {list(shape)} have {expected} pixels"
        if not expected:
            image = "no square image has as many pixels"
        raise UserError(
            f"the tables have {columns} of numbers without the target, and {image}; give them one column per pixel"
        )
    return shape


def _check_flat(devices: Sequence[DataDescription], shape: Shape) -> None:
    """UserError for an array of flat samples with another number of values than the images have pixels."""
    expected = math.prod(shape)
    for device in devices:
        if len(device.shape) == 1 and device.shape[0] != expected:
            raise UserError(
                f"{device.source}: samples have {device.shape[0]} values, images of shape {list(shape)} have {expected} "
                "pixels; bring all to one shape"
            )


def _of_folders(devices: Sequence[DataDescription], pixels: int) -> Shape:
    """The shape of all images if it is one and not large; else that of the tables' pixels, or a usual one."""
    shapes = {device.shape for device in devices if device.kind == "images"}
    shape: Shape = ()
    if len(shapes) == 1:
        shape = shapes.pop()
    if pixels:
        fits = bool(shape) and math.prod(shape) == pixels
        return shape if fits else _square_of(pixels)
    if shape and max(shape) <= LARGEST_SIDE:
        return shape
    return _usual_shape(devices)


def _of_arrays(device: DataDescription) -> Shape:
    """The shape of images in an array; a grey one gets a channel."""
    shape = device.shape
    match shape:
        case (_, _, _):
            return shape
        case (_, _):
            return (1, *shape)
    raise UserError(
        f"{device.source}: samples have shape {list(shape)}, and other devices have images; bring all to [channels, height, "
        "width]"
    )


def _square_of(pixels: int) -> Shape:
    """The square grey or coloured image with this number of pixels; empty axes if there is none."""
    for channels in (1, 3):
        side = math.isqrt(pixels // channels)
        if channels * side * side == pixels:
            return (channels, side, side)
    return (1, 0, 0)


def _usual_shape(devices: Sequence[DataDescription]) -> Shape:
    """A square of a size that a small model learns from: no larger than needed, and no smaller than most images."""
    images = _image_facts(devices)
    sides: list[int] = []
    channels = 1
    for facts in images:
        sides += [*facts.heights, *facts.widths]
        channels = max(channels, *facts.channels)
    side = max(min(sides), min(LEAST_SIDE, max(sides)))
    side = min(side, USUAL_SIDE)
    return (channels, side, side)


def _image_facts(devices: Sequence[DataDescription]) -> list[ImageFacts]:
    return [device.images for device in devices if device.images is not None]


def _needs_resize(devices: Sequence[DataDescription], shape: Shape) -> bool:
    for device in devices:
        is_folder = device.kind == "images"
        if is_folder and device.shape != shape:
            return True
    return False


def _sizes(devices: Sequence[DataDescription]) -> str:
    """The smallest and the largest width and height, for a reason."""
    heights: list[int] = []
    widths: list[int] = []
    for facts in _image_facts(devices):
        heights += facts.heights
        widths += facts.widths
    smallest = f"{min(widths)}x{min(heights)}"
    largest = f"{max(widths)}x{max(heights)}"
    if smallest == largest:
        return f"{largest} pixels"
    return f"{smallest} to {largest} pixels"


# -- the classes ---------------------------------------------------------------------------------------------


def _classes(devices: Sequence[DataDescription], tables: PixelTables) -> tuple[str, ...]:
    """The classes of all devices together, by name. UserError for fewer than two, or for amounts."""
    names: set[str] = set()
    for device in devices:
        names.update(_own_classes(device, tables))
    count = len(names)
    if not MIN_CLASSES <= count <= MAX_CLASSES:
        shown = some(sorted(names))
        raise UserError(
            f"{counted(count, 'class name')} on all devices ({shown}); expected {MIN_CLASSES} to {MAX_CLASSES}: "
            "one folder of images per class"
        )
    if all(map(_is_whole, names)):
        return tuple(sorted(names, key=int))
    return tuple(sorted(names))


def _own_classes(device: DataDescription, tables: PixelTables) -> tuple[str, ...]:
    """The classes on one device. UserError if its targets are not classes."""
    if device.classes:
        return device.classes
    facts = _target_of(device, tables)
    values: tuple[str, ...] | None = None
    if facts is not None:
        has_fractions = facts.kind == "number" and not facts.whole
        values = None if has_fractions else facts.values
    if values is None:
        raise UserError(
            f"{device.source}: the targets are amounts or too many to be classes, and other devices have folders of "
            "images; name the column of the classes with --target"
        )
    return values


def _target_of(device: DataDescription, tables: PixelTables) -> ColumnFacts | None:
    if device.kind == "table":
        return device.column(tables.target)
    return device.target


def _is_whole(name: str) -> bool:
    return name.isdecimal() and name.isascii()


def _name_absent_classes(
    devices: Sequence[DataDescription],
    classes: Sequence[str],
    tables: PixelTables,
    proposal: Proposal,
) -> None:
    for device in devices:
        own = _own_classes(device, tables)
        absent = [name for name in classes if name not in own]
        if absent:
            proposal.differences.append(f"{device.source}: no images of class {some(absent)}")


# -- faults --------------------------------------------------------------------------------------------------


def _warnings(devices: Sequence[DataDescription], tables: PixelTables) -> list[str]:
    """Unreadable images, faulty rows and cells, and pixels that are no bytes."""
    found: list[str] = []
    for device in devices:
        if device.images is not None and device.images.unreadable:
            files = counted(device.images.unreadable, "image")
            found.append(
                f"{device.source}: {files} unreadable, or neither grey nor RGB: replace or remove; "
                f"`agent check --data {device.source}` names each"
            )
        if device.faulty_rows:
            rows = counted(device.faulty_rows, "row")
            found.append(f"{device.source}: {rows} with another number of cells than the header")
        if device.kind == "table":
            found += _pixel_warnings(device, tables)
    return found


def _pixel_warnings(device: DataDescription, tables: PixelTables) -> list[str]:
    """Faults of the pixels of one table."""
    found: list[str] = []
    wrong: list[str] = []
    bits = 0
    for name in tables.pixels:
        facts = device.column(name)
        if facts is None:
            continue
        if facts.missing or facts.faults:
            wrong.append(name)
        bits = max(bits, facts.bits or 0)
    if wrong:
        found.append(
            f"{device.source}: cells without a number in {some(wrong)}: correct them, or leave the rows out"
        )
    if bits != BYTE_BITS:
        found.append(
            f"{device.source}: pixels are smaller than {2**bits}, those of images reach 255; write them as 0 to 255"
        )
    return found
