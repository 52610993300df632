"""The measures of a model on test data: names, labels, units and directions. Everything that shows or compares figures
reads this table.

A figure is stored under the name of its measure: accuracies as shares from 0 to 1, values of a regression in the units
of the target as the data has it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

# what a task asks for: values, one class of several, any number of labels, or whether a sample is unusual
Kind = Literal["values", "classes", "labels", "anomalies"]
MeasureName = Literal["accuracy", "f1", "recall", "auc", "loss", "mse", "rmse", "mae", "r2"]
PERCENT = 100.0
TARGET_UNITS = "in units of the target"
GROUPED = 1e15  # larger figures keep their exponent
NARROW = "\u00a0"  # between thousands; no line ends here


def plain(figure: float) -> str:
    """A figure with four digits and without an exponent, such as 0.1234, 5290 or 10 660."""
    text = f"{figure:.4g}"
    if "e+" not in text or abs(figure) >= GROUPED:
        return text
    return f"{float(text):,.0f}".replace(",", NARROW)


@dataclass(frozen=True)
class Measure:
    """One kind of figure."""

    name: MeasureName  # in reports, records, results and files
    label: str  # for people
    unit: str  # in words; empty without one
    lower_is_better: bool = False
    scale: float = 1.0  # from the stored figure to the shown one
    most: float = math.inf  # the largest possible figure, as it is stored
    decimals: int | None = None  # in tables; None: four digits, wherever they begin

    @property
    def title(self) -> str:
        """The label with its unit, such as "accuracy in %"."""
        return f"{self.label} {self.unit}".strip()

    def text(self, figure: float) -> str:
        """The figure as tables show it: with the measure's decimals, or with four digits."""
        shown = self.scale * figure
        if self.decimals is None:
            return plain(shown)
        return f"{shown:.{self.decimals}f}"

    def target_text(self, target: float) -> str:
        """A target in words, such as "75 %" or "3.5"."""
        shown = self.scale * target
        return f"{shown:g} %" if self.scale == PERCENT else f"{shown:g}"

    @property
    def range_text(self) -> str:
        """The figures that a target can be, in words."""
        if self.name == "r2":
            return "below or equal to 1"
        if self.most < math.inf:
            return f"as a share, above 0 and up to {self.most:g}"
        return f"above 0 {self.unit}".strip()

    def can_be_target(self, target: float) -> bool:
        """Whether this is a figure that some models have and others have not."""
        if self.name == "r2":
            return target <= self.most
        return 0 < target <= self.most

    def is_better(self, figure: float, other: float) -> bool:
        """Whether the first figure is strictly better than the second."""
        return figure < other if self.lower_is_better else figure > other

    def reaches(self, figure: float, target: float) -> bool:
        """Whether the figure is as good as the target, or better."""
        return figure <= target if self.lower_is_better else figure >= target


def measured(measure: Measure, figure: float, title: str = "") -> str:
    """A figure with its title or else the name of its measure, and the unit, such as "accuracy 95.83 %" or "RMSE 5290"."""
    unit = " %" if measure.scale == PERCENT else ""
    return f"{title or measure.label} {measure.text(figure)}{unit}"


ACCURACY = Measure("accuracy", "accuracy", "in %", scale=PERCENT, most=1.0, decimals=2)
RMSE = Measure("rmse", "RMSE", TARGET_UNITS, lower_is_better=True)
MEASURES: Mapping[str, Measure] = {
    measure.name: measure
    for measure in (
        ACCURACY,
        Measure("f1", "macro F1", "in %", scale=PERCENT, most=1.0, decimals=2),
        Measure("recall", "macro recall", "in %", scale=PERCENT, most=1.0, decimals=2),
        Measure("auc", "AUC", "", most=1.0, decimals=3),
        Measure("loss", "loss", "", lower_is_better=True, decimals=4),
        Measure("mse", "MSE", "in squared units of the target", lower_is_better=True),
        RMSE,
        Measure("mae", "MAE", TARGET_UNITS, lower_is_better=True),
        Measure("r2", "R2", "", most=1.0),
    )
}
OF_CLASSIFICATION: tuple[MeasureName, ...] = ("accuracy", "f1", "recall", "auc", "loss")
SHOWN_OF_REGRESSION: tuple[MeasureName, ...] = ("rmse", "mae", "r2")
OF_REGRESSION: tuple[MeasureName, ...] = (*SHOWN_OF_REGRESSION, "mse", "loss")


def main_measure(*, regression: bool) -> Measure:
    """The measure that tables show and targets are compared with, unless a scenario names another."""
    return RMSE if regression else ACCURACY


def kind_of_task(task: Mapping[str, Any]) -> Kind:
    """What a task, as plain data, asks for."""
    if task.get("anomalies") is not None:
        return "anomalies"
    if isinstance(task.get("target"), list | tuple):
        return "labels"
    return "values" if task.get("classes") is None else "classes"


def is_regression(task: Mapping[str, Any]) -> bool:
    """Whether a task, as plain data, has values and not classes as targets."""
    return task.get("classes") is None


def shown_measure(figures: Mapping[str, Any], wanted: str | None = None) -> Measure | None:
    """The first of these that the figures have: the wanted measure, accuracy, RMSE and MSE; None if they have none of them."""
    for name in (wanted, "accuracy", "rmse", "mse"):
        if name is not None and name in figures:
            return MEASURES[name]
    return None


def derived(figures: Mapping[str, Any]) -> dict[str, float]:
    """RMSE and R2 of one agent, from what it reports.

    Args:
        figures: `mse`, and for R2 the population `variance` of the agent's n test targets.

    Returns:
        `rmse`, the root of `mse`; `r2` = 1 - SSE / SST = 1 - (n * mse) / (n * variance). No `r2` if all targets are
        equal, for then it is undefined.
    """
    mse = figures["mse"]
    variance = figures.get("variance", 0.0)
    found = {"rmse": math.sqrt(mse)}
    if variance > 0:
        r2 = 1 - mse / variance
        if math.isfinite(r2):
            found["r2"] = r2
    return found


def pooled_r2(rows: Sequence[Mapping[str, Any]], amounts: Sequence[float]) -> float | None:
    """R2 on the test data of all agents together, from sums: 1 - SSE / SST.

    SSE is the sum of all squared errors, n_i * mse_i of agent i. SST is the sum of squared distances of all targets from
    their common mean m: n_i * (variance_i + (mean_i - m)^2) of agent i. The mean of the agents' own R2 is another
    figure, because each of these compares the model with the mean of that agent alone.

    Args:
        rows: `mse`, and `mean` and `variance` of the test targets, of each agent.
        amounts: what each agent weighs; its n gives the R2 of the pooled samples.

    Returns:
        None if an agent did not report mean and variance, or if all targets are equal.
    """
    if not all("mean" in row and "variance" in row for row in rows):
        return None
    total = math.fsum(amounts)
    weighted_means = [amount * row["mean"] for row, amount in zip(rows, amounts, strict=True)]
    mean = math.fsum(weighted_means) / total
    errors = []
    distances = []
    for row, amount in zip(rows, amounts, strict=True):
        offset = row["mean"] - mean
        errors.append(amount * row["mse"])
        distances.append(amount * (row["variance"] + offset**2))
    sse = math.fsum(errors)
    sst = math.fsum(distances)
    if not sst > 0:
        return None
    r2 = 1 - sse / sst
    return r2 if math.isfinite(r2) else None
