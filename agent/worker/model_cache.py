"""The models of the newest order, which the other agents of a simulated fleet mostly need again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from covey.shared.numerics.vectors import Layout, Vector

Read = Callable[[Path, "Layout"], "Vector"]
DIGEST_NAMES = ".model"  # the ending of files that are named by the digest of their content


def is_named_by_digest(path: Path) -> bool:
    """An agent names the models that it received by their digest; the coordinator of a simulation does not."""
    return path.suffix == DIGEST_NAMES


class ModelCache:
    """Models (d,) by the digest of their content and of their layout; they are read-only."""

    def __init__(self) -> None:
        self._models: dict[tuple[str, str], Vector] = {}

    def __repr__(self) -> str:
        return f"<ModelCache: {len(self._models)} models>"

    def models(self, paths: Sequence[str], layout: Layout, read: Read) -> list[Vector]:
        """The models in some files, of which those are read that the order before this one did not name.

        Args:
            paths: of the files.
            layout: of the models.
            read: reads one file, with its errors.
        """
        names = {_name(path, layout) for path in paths}
        # before new ones are read: they may take all the memory that there is
        self._models = {name: model for name, model in self._models.items() if name in names}
        found: list[Vector] = []
        for path in paths:
            name = _name(path, layout)
            model = self._models.get(name)
            if model is None:
                model = read(Path(path), layout)
            if is_named_by_digest(Path(path)):
                model.flags.writeable = False
                self._models[name] = model
            found.append(model)
        return found


def _name(path: str, layout: Layout) -> tuple[str, str]:
    return Path(path).name, layout.digest
