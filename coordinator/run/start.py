"""The initial models of a run, in its folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from covey.coordinator.run.folder import START
from covey.shared import json_text
from covey.shared.errors import UserError
from covey.shared.numerics.vectors import Layout


def read_start(folder: Path) -> tuple[np.ndarray, Layout]:
    """The initial models of a run, float32 (starts, d), and their layout. Raises UserError for a damaged file."""
    path = folder / START
    try:
        with np.load(path, allow_pickle=False) as file:
            return file["starts"], Layout.from_wire(json_text.loads(str(file["layout"])))
    except Exception as error:  # numpy, zipfile and zlib raise a dozen types for damaged files
        raise UserError(
            f"{path}: the initial models are missing or damaged ({type(error).__name__}: {error}). "
            "Remove the file and type the same command: it is built again from the scenario"
        ) from None
