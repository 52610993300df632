"""A base: a file of weights that agents keep on their disk, and name by the digest of its content.

The base gives initial values to the tensors of a model. What of it does not travel with each report, agents take from their
own copy of the file: they have it already, or fetch it once from the broker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from covey.shared.errors import PublicError, UserError
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.scenario.section import Section
from covey.shared.sentences import some
from covey.shared.wire.messages import digest_of_file

Array = npt.NDArray[Any]

HEADER_BYTES = 1 << 20  # of a file, at most, in addition to its values
VALUE_BYTES = 8
NO_SAFETENSORS = (
    "expected a file of safetensors; files of torch.save are refused because they can run code: write the tensors with "
    "safetensors.torch.save_file"
)


class Base(Section):
    """A file of weights that agents keep on their disk."""

    file: str = Field(description="A .safetensors file with the model's names of tensors.")
    digest: str = Field(
        pattern="^[0-9a-f]{32}$",
        description="Digest of the file, as `coordinator lab base` prints it.",
    )

    @property
    def size(self) -> int:
        """Bytes of the file. Raises UserError if it is not there."""
        try:
            return Path(self.file).stat().st_size
        except OSError as error:
            raise UserError(f"task.base: {self.file} cannot be read: {error.strerror}") from None

    def content(self) -> bytes:
        """The file's bytes. Raises UserError if it cannot be read, or is another file."""
        self.check()
        return Path(self.file).read_bytes()

    def check(self) -> None:
        """Raises UserError if the file cannot be read, or is another one."""
        path = Path(self.file)
        found = digest_of_base(path)
        if found != self.digest:
            raise UserError(
                f"task.base: {path} has the digest {found}, the scenario names {self.digest}; give the file that was meant, "
                "or take the entry that `coordinator lab base` prints"
            )


def digest_of_base(path: Path) -> str:
    """The digest of a file, 32 hexadecimal digits. Raises UserError if it cannot be read."""
    try:
        return digest_of_file(path).hex()
    except OSError as error:
        raise UserError(f"task.base: {path} cannot be read: {error.strerror}") from None


def entry_of(path: Path) -> tuple[Base, list[str]]:
    """The entry `task.base` for a file, and the names of its tensors. Raises UserError if it is no file of safetensors."""
    from safetensors import SafetensorError, safe_open

    entry = Base(file=str(path), digest=digest_of_base(path))
    try:
        with safe_open(path, framework="numpy") as file:
            return entry, sorted(file.keys())
    except (SafetensorError, OSError):
        raise UserError(f"{path}: {NO_SAFETENSORS}") from None


def check_size(size: int, layout: Layout) -> None:
    """Raises PublicError for a file that is too large for the model: it is not read."""
    most = VALUE_BYTES * layout.size + HEADER_BYTES
    if size > most:
        raise PublicError(
            f"task.base: the file has {size / 1e6:.1f} MB, and the tensors of the model take {4 * layout.size / 1e6:.1f}; "
            "give a file with the model's tensors alone"
        )


def base_vector(content: bytes, layout: Layout) -> Vector:
    """A model (d,) with the values of a base, and NaN where the base has none.

    Raises:
        PublicError: the content is no file of safetensors, or its tensors are not those of the model.
    """
    from safetensors import SafetensorError  # few runs have a base
    from safetensors.numpy import load

    check_size(len(content), layout)
    try:
        named = load(content)
    except (SafetensorError, ValueError, TypeError):
        raise PublicError(f"task.base: {NO_SAFETENSORS}") from None
    return with_tensors(np.full(layout.size, np.nan, np.float32), layout, named, "task.base", None)


def with_tensors(
    start: Vector,
    layout: Layout,
    named: Mapping[str, Array],
    where: str,
    may_lack: Collection[str] | None,
) -> Vector:
    """A model (d,) with values of its own in the place of those of `start`.

    Args:
        start: (d,).
        layout: of the model.
        named: arrays by the names of their tensors.
        where: they come from, for the message.
        may_lack: tensors that may be missing there, and stay as they are; None: any.

    Raises:
        PublicError: tensors are missing, or not in the model, or of another shape, or hold values that are not finite.
    """
    shapes = {tensor.name: tensor.shape for tensor in layout.tensors}
    wrong = {
        "missing": [
            name
            for name in shapes
            if name not in named and may_lack is not None and name not in may_lack
        ],
        "not in the model": sorted(named.keys() - shapes.keys()),
        "of another shape": [
            f"{name} {list(named[name].shape)}, here {list(shape)}"
            for name, shape in shapes.items()
            if name in named and named[name].shape != shape
        ],
        "not finite": [
            name for name in shapes if name in named and not np.isfinite(named[name]).all()
        ],
    }
    if faults := [f"{what}: {some(names)}" for what, names in wrong.items() if names]:
        raise PublicError(
            f"{where}: its tensors are not those of the scenario's model ({'; '.join(faults)}); compare task.model and "
            "task.features with what made it"
        )
    model = start.copy()
    for tensor, span in layout.spans():
        if tensor.name in named:
            model[span] = named[tensor.name].reshape(-1)
    return model
