"""Differential privacy: the scenario's `privacy` section, and the sums that become private by clipping and noise.

What is protected, against whom, and what is not, is written in docs/privacy.md. Sources: McMahan et al. 2018, Learning
Differentially Private Recurrent Language Models (clipped updates, noised sums); Andrew et al. 2021, Differentially
Private Learning with Adaptive Clipping (noised counts next to noised sums); Abadi et al. 2016, Deep Learning with
Differential Privacy (DP-SGD).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from covey.shared.numerics.averages import step_norm
from covey.shared.numerics.vectors import Vector, release
from covey.shared.privacy.noise import Noise

LOCAL = "epsilon"  # in a report's numbers: what the agent's DP-SGD has spent so far
COUNT_NOISE = 2.0  # noise on a count, in multiples of the noise on a sum: see docs/privacy.md
CERTAIN = 3.0  # standard deviations: a noised count below so many may be that of an empty cluster


class _Section(BaseModel):
    """A part of a scenario: frozen, unknown keys refused, numbers finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class SignaturePrivacy(_Section):
    """Noise that agents add to what they send once for clustering (FedClust, PACFL, FeSEM's warm-up)."""

    clip: float = Field(
        1.0, gt=0, description="norm to which a signature is shortened before noise is added"
    )
    noise_multiplier: float = Field(
        1.0,
        ge=0,
        description="standard deviation of the noise on each value, in multiples of clip; 0: clip only",
    )
    delta: float = Field(
        1e-5, gt=0, lt=1, description="of the account where there is no client section"
    )


class ClientPrivacy(_Section):
    """Client-level privacy: the released models hide what any one agent has sent in the whole run."""

    clip: float = Field(
        1.0, gt=0, description="norm to which each agent's change of the model is shortened"
    )
    noise_multiplier: float = Field(
        1.0,
        ge=0,
        description="standard deviation of the noise on each cluster's sum, in multiples of clip; 0: none",
    )
    delta: float = Field(
        1e-5, gt=0, lt=1, description="of the account; well below 1 / number of agents"
    )


class LocalPrivacy(_Section):
    """Example-level privacy on the device: DP-SGD, so that what an agent sends hides any one of its examples."""

    noise_multiplier: float | None = Field(
        None,
        gt=0,
        description="standard deviation of a step's noise, in multiples of max_grad_norm",
    )
    target_epsilon: float | None = Field(
        None,
        gt=0,
        description="epsilon that no agent exceeds in the run; each finds its own noise_multiplier for it",
    )
    max_grad_norm: float = Field(
        1.0, gt=0, description="norm to which each example's gradient is shortened"
    )
    delta: float = Field(
        1e-5, gt=0, lt=1, description="of the account; below 1 / examples of an agent"
    )

    @model_validator(mode="after")
    def _one_amount_of_noise(self) -> Self:
        if (self.noise_multiplier is None) == (self.target_epsilon is None):
            raise ValueError("give either noise_multiplier or target_epsilon")
        return self


class Privacy(_Section):
    """Which differential privacy the run keeps. Noise of a simulated fleet repeats with the seed and hides nothing."""

    signatures: SignaturePrivacy | None = Field(
        None, description="noise on signatures, added by the agents"
    )
    client: ClientPrivacy | None = Field(
        None, description="client-level privacy, added by the coordinator"
    )
    local: LocalPrivacy | None = Field(
        None, description="example-level privacy (DP-SGD), added by the agents"
    )

    def for_agents(self, rounds: int) -> dict[str, Any]:
        """What an order says of it: all but the coordinator's own part."""
        own = self.model_dump(mode="json", include={"signatures", "local"})
        return {**own, "rounds": rounds}


@dataclass(frozen=True)
class AgentPrivacy:
    """What an order asks an agent to do for privacy. `rounds` are those of the run, which share a target epsilon."""

    signatures: SignaturePrivacy | None
    local: LocalPrivacy | None
    rounds: int

    @classmethod
    def from_wire(cls, wire: dict[str, Any] | None) -> AgentPrivacy:
        """Raises pydantic's ValidationError for anything that is no such section."""
        both = Privacy.model_validate(
            {name: (wire or {}).get(name) for name in ("signatures", "local")}
        )
        return cls(both.signatures, both.local, int((wire or {}).get("rounds", 1)))


def noised(vector: Vector, base: Vector, settings: SignaturePrivacy, noise: Noise) -> Vector:
    """A signature whose step from `base` (what an agent without data would send) is clipped and noised, float32 (d,).

    Without noise nothing hides, but the clip bounds what a single signature can do.
    """
    step = vector.astype(np.float64) - base
    step *= _share(vector, base, settings.clip)
    if settings.noise_multiplier:
        step += settings.clip * settings.noise_multiplier * noise.normal(step.size)
    return (base + step).astype(np.float32)


def clipped_sum(vectors: Sequence[Vector], base: Vector, clip: float) -> npt.NDArray[np.float64]:
    """The sum (d,) of the vectors' steps from `base`, each shortened to norm `clip`, in float64.

    One vector more or less changes the sum by at most `clip`: that is what noise is measured by.
    """
    total = np.zeros(base.size, np.float64)
    start = base.astype(np.float64)
    for vector in vectors:
        total += (vector - start) * _share(vector, base, clip)
        release(vector)
    return total


def _share(vector: Vector, base: Vector, clip: float) -> float:
    """What remains of a step so that its norm is at most `clip`."""
    norm = step_norm(vector, base)
    return 1.0 if norm <= clip else clip / norm


def combined_multiplier(noise_multiplier: float) -> float:
    """The noise multiplier of a sum and its noised count together: what the account counts for such a round."""
    return noise_multiplier / math.sqrt(1.0 + COUNT_NOISE**-2)


def noised_count(count: int, noise_multiplier: float, noise: Noise) -> float | None:
    """A count for dividing by, or None where the noised one is too small to be told from that of an empty cluster."""
    spread = COUNT_NOISE * noise_multiplier
    seen = count + spread * float(noise.normal(1)[0])
    return seen if seen >= max(CERTAIN * spread, 1.0) else None
