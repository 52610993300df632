"""The server's optimiser: the mean of the reports is a direction, and the server takes a step of its own.

Papers. Reddi et al. 2021, Adaptive Federated Optimization, algorithm 2; Hsu et al. 2019, Measuring the Effects of
Non-Identical Data Distribution (FedAvgM, which is sgd with momentum). With x the model of a cluster and Delta the way from
it to the mean of the reports:

    sgd       m = momentum * m + Delta                           x += lr * m
    others    m = momentum * m + (1 - momentum) * Delta          x += lr * m / (sqrt(v) + tau)
    adagrad   v += Delta^2
    yogi      v -= (1 - beta2) * Delta^2 * sign(v - Delta^2)
    adam      v = beta2 * v + (1 - beta2) * Delta^2              m begins with 0, and v with tau^2; beta2 is 0.99, tau 0.001

Our deviations. Buffers (statistics of normalisation) take the mean, because a step of Adam can make a variance negative.
Moments belong to a model: one that was made in another way, such as a hypothesis that was seeded again, begins without.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from covey.shared.numerics.averages import Average
from covey.shared.numerics.vectors import Vector, blocks
from covey.shared.strategies.sums import Sums

# of each key: first and second moment, and the model that they led to, (d,) each
Moments = dict[str, tuple[Vector, Vector, Vector]]
USUAL_LR = {"sgd": 1.0}
TAU = 1e-3  # the least size of a coordinate's usual step
BETA_2 = 0.99  # the share of the second moment that stays
USUAL_MOMENTUM = {"adam": 0.9, "yogi": 0.9}


class Server(BaseModel):
    """How the server moves a model to the mean of the reports. With sgd, lr 1 and no momentum it takes the mean."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: Literal["sgd", "adam", "yogi", "adagrad"] = Field(
        "sgd",
        description="The optimiser. sgd with momentum is FedAvgM, the others are FedAdam, FedYogi and FedAdagrad.",
    )
    lr: float = Field(
        1.0,
        gt=0,
        description="The learning rate of the server. The default is 1 for sgd, and 0.01 for the others.",
    )
    momentum: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="The share of the last direction that is repeated. The default is 0.9 for adam and yogi, and 0 for "
        "the others.",
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_name(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        name = data.get("name", "sgd")
        return {"lr": USUAL_LR.get(name, 0.01), "momentum": USUAL_MOMENTUM.get(name, 0.0), **data}

    @property
    def takes_the_mean(self) -> bool:
        """Whether a step is the mean itself."""
        return self.name == "sgd" and self.lr == 1 and self.momentum == 0

    def step(
        self, start: Vector, target: Vector, m: Vector, v: Vector
    ) -> tuple[Vector, Vector, Vector]:
        """The model (d,) after a step from `start` towards `target`, and the moments (d,) after it."""
        model = np.empty_like(start)
        first = np.empty_like(m)
        second = np.empty_like(v)  # of sgd: (0,)
        for span in blocks(start.size):
            x = start[span].astype(np.float64)
            delta = target[span] - x
            moment = self.momentum * m[span].astype(np.float64)
            if self.name == "sgd":
                moment += delta
                model[span] = x + self.lr * moment
            else:
                moment += (1 - self.momentum) * delta
                spread = self._second(v[span].astype(np.float64), delta * delta)
                second[span] = spread
                model[span] = x + self.lr * moment / (np.sqrt(spread) + TAU)
            first[span] = moment
        return model, first, second

    def _second(self, v: Any, square: Any) -> Any:
        match self.name:
            case "adagrad":
                return v + square
            case "yogi":
                return v - (1 - BETA_2) * square * np.sign(v - square)
            case _:
                return BETA_2 * v + (1 - BETA_2) * square

    def at_rest(self, size: int) -> tuple[Vector, Vector]:
        """The moments (d,) of a model that has not moved yet."""
        if self.name == "sgd":
            return np.zeros(size, np.float32), np.zeros(0, np.float32)
        return np.zeros(size, np.float32), np.full(size, TAU**2, np.float32)


@dataclass(frozen=True)
class Moving:
    """A state whose models the server's optimiser can move."""

    moments: Moments = field(default_factory=dict, kw_only=True)


class Served:
    """Sums whose averages the server's optimiser has turned into its steps.

    Only sums under the index of a cluster are models ("0", "1", ...). Others stay as they are.

    Args:
        sums: as they were made.
        server: the optimiser.
        before: the moments of the state that is folded.
        parameters: P, the values at the front of a model that are trained; None: all of them.
    """

    def __init__(
        self, sums: Sums, server: Server, before: Moments, parameters: int | None = None
    ) -> None:
        self._sums = sums
        self._server = server
        self._before = before
        self._trained = slice(0, parameters)
        self.moments = dict(before)  # after the fold

    @property
    def average(self) -> Average:
        return self._sums.average

    def mean(self, key: str, otherwise: Vector) -> Vector:
        return self._stepped(key, otherwise, self._sums.mean(key, otherwise))

    def moved(self, key: str, start: Vector, share: float) -> Vector:
        return self._stepped(key, start, self._sums.moved(key, start, share))

    def weight(self, key: str) -> float:
        return self._sums.weight(key)

    def count(self, key: str) -> int:
        return self._sums.count(key)

    def _stepped(self, key: str, start: Vector, target: Vector) -> Vector:
        if not key.isdecimal() or not self.weight(key):
            return target
        x = start[self._trained]
        m, v = self._server.at_rest(x.size)
        if key in self._before:
            first, second, led_to = self._before[key]
            if np.array_equal(led_to, start):
                m, v = first, second
        model = target.copy()
        model[self._trained], m, v = self._server.step(x, target[self._trained], m, v)
        self.moments[key] = (m, v, model)
        return model
