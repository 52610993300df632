"""Is a new model good enough to replace the one in use? Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from covey.shared.numerics.measures import RMSE

DEFAULT_MARGIN = 0.05
# what models are compared by, the first that both have; 1: larger is better, -1: smaller is better
METRICS = (("accuracy", 1), ("mse", -1))

ROUNDING = 1e-9  # of a share

Figures = Mapping[str, Any]  # of one model on the device's test part; {"n": 0} without one
Figure = tuple[str, float]  # the one that models are compared by, with its metric


@dataclass(frozen=True)
class Verdict:
    """Whether a new model is taken over, and a sentence that gives the reason."""

    accepted: bool
    why: str


def judge(
    new: Figures, old: Figures | None, margin: float, accepted: Figures | None = None
) -> Verdict:
    """Compare a new model with the model in use, and with the one that a person accepted last.

    Without the second comparison many small losses, each within the margin, would add up.

    Args:
        new: figures of the new model.
        old: figures of the model in use on the same samples; None: no model is in use, or it solves another task.
        margin: how much worse the new model may be. An accuracy may be lower by `margin`; a mean squared error may be
            larger by the share `margin`. A single test sample never decides: an accuracy may always be lower by one.
        accepted: figures of the model that a person accepted last; None: there is none, or it solves another task.
    """
    if new.get("diverged"):
        return Verdict(False, "its outputs on the test samples are not finite")
    verdict = Verdict(True, "no model to compare with is in use")
    if old is not None:
        verdict = _against(new, old, margin, "the model so far")
    if verdict.accepted and accepted is not None:
        second = _against(new, accepted, margin, "the model that was accepted last")
        if old is None or not second.accepted:
            return second
    return verdict


def _against(new: Figures, old: Figures, margin: float, which: str) -> Verdict:
    samples = new.get("n", 0)
    if old.get("diverged"):
        return Verdict(True, f"the outputs of {which} are not finite")
    if not samples:
        return Verdict(True, "the device has no test samples to compare with")
    for metric, sign in METRICS:
        after = new.get(metric)
        before = old.get(metric)
        if after is not None and before is not None:
            name, shown = metric, (after, before)
            if metric == "mse":  # as the coordinator shows it
                name, shown = RMSE.label, (math.sqrt(after), math.sqrt(before))
            seen = f"{name} {shown[0]:.4g} on {samples} test samples"
            why = f"{seen}, {shown[1]:.4g} with {which}"
            worst = _worst(before, sign, margin, samples)
            return Verdict(after * sign >= worst * sign, why)
    return Verdict(True, f"{which} solves another task")


def _worst(before: float, sign: int, margin: float, samples: int) -> float:
    """The worst figure that is still accepted."""
    if sign > 0:
        one_sample = 1 / samples
        return before - max(margin, one_sample) - ROUNDING
    return before * (1 + margin)


def main_figure(figures: Figures) -> Figure | None:
    """The figure that a model is compared by; None without test samples, or if its outputs are not finite."""
    if not figures.get("n") or figures.get("diverged"):
        return None
    for metric, _ in METRICS:
        if metric in figures:
            return metric, figures[metric]
    return None


def is_better(one: Figure | None, other: Figure | None) -> bool:
    """Whether one model was clearly better than another on the device's test part. Different metrics cannot be compared."""
    if one is None or other is None or one[0] != other[0]:
        return False
    sign = dict(METRICS)[one[0]]
    return one[1] * sign > other[1] * sign
