"""Files of weights: what a run or another program wrote as safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from covey.shared import extras
from covey.shared.errors import UserError
from covey.shared.storage import json_text

Named = dict[str, npt.NDArray[Any]]  # arrays by the name of their tensor
MIXED = "weights"  # the fact of a file with the weight of each of its models


def read_weights(path: Path) -> Named:
    """The arrays of a trained model, or of any other file of safetensors, by name.

    Raises:
        UserError: the file is missing or damaged, or holds several models or other values than numbers.
    """
    try:
        facts, arrays = read_file(path)
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        first_line = str(error).splitlines()[0]
        raise UserError(f"{path}: expected a model file (.safetensors); {first_line}") from None
    if MIXED not in facts:
        return arrays
    kept: Named = extras.part("in_use", "model_file", str(path)).read_model(path).models[0]
    return kept


def read_file(path: Path) -> tuple[dict[str, Any], Named]:
    """The facts in the header of a file of safetensors, nothing if it has none, and its arrays.

    Raises:
        SafetensorError, OSError, ValueError, TypeError: it is missing or damaged.
    """
    arrays: Named = {}
    with safe_open(path, framework="numpy") as file:
        facts = json_text.loads((file.metadata() or {}).get("facts", "{}"))
        for name in file.keys():  # noqa: SIM118  it is no mapping
            arrays[name] = file.get_tensor(name)
    return facts, arrays
