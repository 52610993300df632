"""The models of the newest order, which the other agents of a simulated fleet mostly need again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from covey.shared.numerics.vectors import Layout, Vector

Read = Callable[[Path, "Layout"], "Vector"]
Name = tuple[str, str]  # of a file, and the digest of a layout
DIGEST_NAMES = ".model"  # the ending of files that are named by the digest of their content


def is_named_by_digest(path: Path) -> bool:
    """An agent names the models that it received by their digest; the coordinator of a simulation does not."""
    return path.suffix == DIGEST_NAMES


class ModelCache:
    """Models (d,) by the digest of their content and of their layout; they are read-only."""

    def __init__(self) -> None:
        self._models: dict[Name, Vector] = {}

    def __repr__(self) -> str:
        return f"<ModelCache: {len(self._models)} models>"

    def models(self, paths: Sequence[str], layout: Layout, read: Read) -> list[Vector]:
        """The models in some files, of which those are read that the order before this one did not name.

        Args:
            paths: of the files.
            layout: of the models.
            read: reads one file, with its errors.
        """
        names = [_name(path, layout) for path in paths]
        # before new ones are read: they may take all the memory that there is
        self._forget_all_but(names)
        found: list[Vector] = []
        for path, name in zip(paths, names, strict=True):
            model = self._models.get(name)
            if model is None:
                file = Path(path)
                model = read(file, layout)
                if is_named_by_digest(file):
                    self._keep(name, model)
            found.append(model)
        return found

    def _forget_all_but(self, names: Sequence[Name]) -> None:
        for name in tuple(self._models):
            if name not in names:
                del self._models[name]

    def _keep(self, name: Name, model: Vector) -> None:
        model.flags.writeable = False
        self._models[name] = model


def _name(path: str, layout: Layout) -> Name:
    return Path(path).name, layout.digest
