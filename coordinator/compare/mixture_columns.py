"""Columns of a comparison whose agents hold known mixtures of super-classes; see `coordinator.run.mixtures`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

ERROR = "membership_mse"  # the sum over clusters
ERROR_MEAN = "membership_mse_mean"
SUPERCLASS = "superclass_"  # and its number, then "_accuracy"


@dataclass(frozen=True)
class Column:
    """How a table shows one figure."""

    key: str
    header: str
    digits: int  # after the point
    scale: float = 1.0  # the figure is multiplied with it


def mixture_figures(result: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a finished run that has them: membership_mse, superclass_0_accuracy, ..."""
    figures: dict[str, float] = {}
    error = result.get("membership")
    if error:
        figures[ERROR] = error["mse_sum"]
        figures[ERROR_MEAN] = error["mse_mean"]
    tested = result.get("cluster_accuracy")
    if tested:
        for k, accuracy in enumerate(tested["by_superclass"]):
            figures[f"{SUPERCLASS}{k}_accuracy"] = accuracy
    return figures


def is_mixture_figure(key: str) -> bool:
    """Whether a column of a row comes from this module."""
    return key in (ERROR, ERROR_MEAN) or key.startswith(SUPERCLASS)


def mixture_columns(keys: Iterable[str]) -> list[Column]:
    """The columns that a table shows, out of all keys that its rows have."""
    known = set(keys)
    shown = []
    for key in sorted(known):
        if key.startswith(SUPERCLASS):
            number = key.split("_")[1]
            shown.append(Column(key, f"super-class {number}", 2, 100.0))
    if ERROR in known:
        shown.append(Column(ERROR, "membership MSE", 4))
        shown.append(Column(ERROR_MEAN, "MSE / K", 4))
    return shown
