"""Versions of a model that a device keeps: what names them, and whether a new one is good enough to replace the one in use. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from covey.shared.numerics.measures import MEASURES, RMSE, plain
from covey.shared.storage.files import SUFFIX
from covey.shared.wire.topics import is_name

# -- whether a new model is good enough to replace the one in use ----------------------------------


DEFAULT_MARGIN = 0.05
# what models are compared by unless the task names another measure: the first that both have
METRICS = ("accuracy", "mse")
ON_DEVICES = {
    "rmse": "mse",
    "r2": "mse",
}  # figures of a device that order models as these measures do

ROUNDING = 1e-9  # of a share

Figures = Mapping[str, Any]  # of one model on the device's test part; {"n": 0} without one
Figure = tuple[str, float]  # the one that models are compared by, with its metric


@dataclass(frozen=True)
class VersionVerdict:
    """Whether a new model is taken over, and a sentence that gives the reason."""

    accepted: bool
    why: str


def judge(
    new: Figures,
    old: Figures | None,
    margin: float,
    accepted: Figures | None = None,
    measure: str | None = None,
) -> VersionVerdict:
    """Compare a new model with the model in use, and with the one that a person accepted last.

    Without the second comparison many small losses, each within the margin, would add up.

    Args:
        new: figures of the new model.
        old: figures of the model in use on the same samples; None: no model is in use, or it solves another task.
        margin: how much worse the new model may be. An accuracy may be lower by `margin`, and so may F1, recall and AUC; an
            error may be larger by the share `margin`. A single test sample never decides: an accuracy may always be lower by one.
        accepted: figures of the model that a person accepted last; None: there is none, or it solves another task.
        measure: of the task; None: the usual one.
    """
    if new.get("diverged"):
        return VersionVerdict(accepted=False, why="its outputs on the test samples are not finite")
    verdict = VersionVerdict(accepted=True, why="no model to compare with is in use")
    if old is not None:
        verdict = against(new, old, margin, "the model so far", measure)
    if verdict.accepted and accepted is not None:
        second = against(new, accepted, margin, "the model that was accepted last", measure)
        if old is None or not second.accepted:
            return second
    return verdict


def _metrics(measure: str | None) -> tuple[str, ...]:
    """The figures by which a device compares models, the preferred one first."""
    return (ON_DEVICES.get(measure, measure), *METRICS) if measure else METRICS


def against(
    new: Figures, old: Figures, margin: float, which: str, measure: str | None
) -> VersionVerdict:
    """Compare a new model with another one, or one model with what it was."""
    samples = new.get("n", 0)
    if old.get("diverged"):
        return VersionVerdict(accepted=True, why=f"the outputs of {which} are not finite")
    if not samples:
        return VersionVerdict(accepted=True, why="the device has no test samples to compare with")
    for metric in _metrics(measure):
        after = new.get(metric)
        before = old.get(metric)
        if after is not None and before is not None:
            name, shown = metric, (after, before)
            if metric == "mse":  # as the coordinator shows it
                name, shown = RMSE.label, (math.sqrt(after), math.sqrt(before))
            seen = f"{name} {plain(shown[0])} on {samples} test samples"
            why = f"{seen}, {plain(shown[1])} with {which}"
            worst = _worst(before, margin, samples, is_error=MEASURES[metric].lower_is_better)
            return VersionVerdict(not MEASURES[metric].is_better(worst, after), why)
    return VersionVerdict(accepted=True, why=f"{which} solves another task")


def _worst(before: float, margin: float, samples: int, *, is_error: bool) -> float:
    """The worst figure that is still accepted."""
    if is_error:
        return before * (1 + margin)
    return before - max(margin, 1 / samples) - ROUNDING


def main_figure(figures: Figures, measure: str | None = None) -> Figure | None:
    """The figure that a model is compared by; None without test samples, or if its outputs are not finite."""
    if not figures.get("n") or figures.get("diverged"):
        return None
    for metric in _metrics(measure):
        if metric in figures:
            return metric, figures[metric]
    return None


def shown_figure(figure: Figure | None) -> Figure | None:
    """The figure as people see it everywhere: an RMSE for a mean squared error. None without a finite one."""
    if figure is None or not math.isfinite(figure[1]):
        return None
    name, value = figure
    return (RMSE.name, math.sqrt(value)) if name == "mse" and value >= 0 else figure


def is_better(one: Figure | None, other: Figure | None) -> bool:
    """Whether one model was clearly better than another on the device's test part. Different metrics cannot be compared."""
    if one is None or other is None or one[0] != other[0]:
        return False
    return one[0] in MEASURES and MEASURES[one[0]].is_better(one[1], other[1])


# -- what names a model -----------------------------------------------------------------------------


ROUND_DIGITS = 5  # so that files of a run sort by round

Origin = Literal["order", "run", "operator"]
ORIGINS: tuple[Origin, ...] = ("order", "run", "operator")


@dataclass(frozen=True)
class Version:
    """One model of one run."""

    run: str
    round: int  # complete rounds that the model has been trained in
    cluster: int | None = None  # None: the method has no clusters, or mixes their models
    # order: the device got it to train or to test it; run: the finished run published it; operator: `promote` did
    origin: Origin = "order"
    uses: str = ""  # what the device mixes, for people; "": the served model
    name: str = ""  # for people, as its publication has it; "" before that has come

    @property
    def file(self) -> str:
        """The name of its file."""
        words = [self.run, "round", f"{self.round:0{ROUND_DIGITS}d}"]
        if self.cluster is not None:
            words += ["cluster", str(self.cluster)]
        return "-".join(words) + SUFFIX

    def __str__(self) -> str:
        return f"{self.title}: {self.uses}" if self.uses else self.title

    @property
    def title(self) -> str:
        """Which models it came with."""
        text = self.name or f"run {self.run}, round {self.round}"
        return text if self.cluster is None else f"{text}, group {self.cluster}"

    def is_same_model(self, other: Version | None) -> bool:
        """Whether both name the same round of the same run, wherever they came from."""
        if other is None:
            return False
        return (self.run, self.round) == (other.run, other.round)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`. Raises ValueError for anything else."""
        match dict(data):
            case {
                "run": str(run),
                "round": int(round_),
                "cluster": int() | None as cluster,
                "origin": str(origin),
            } if is_name(run) and round_ >= 0 and origin in ORIGINS:
                uses, name = str(data.get("uses", "")), str(data.get("name", ""))
                return cls(run, round_, cluster, origin=origin, uses=uses, name=name)
        raise ValueError("expected run, round, `cluster` and origin of a model")
