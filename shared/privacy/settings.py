"""Differential privacy: the scenario's `privacy` section, and sums that become private by clipping and noise.

docs/privacy.md describes what is protected, against whom, and what is not. Sources: McMahan et al. 2018, Learning
Differentially Private Recurrent Language Models (clipped updates, noised sums); Andrew et al. 2021, Differentially
Private Learning with Adaptive Clipping (noised counts next to noised sums); Abadi et al. 2016, Deep Learning with
Differential Privacy (DP-SGD).

Gaussian noise comes from a key, so only a holder of the key can repeat it. Bits come from SHAKE-256, a cryptographic generator, and become normal numbers by the method of Box and Muller. A key is
secret on a device and at a real coordinator. A simulation derives it from the scenario's seed, so that runs repeat.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from covey.shared.numerics.averages import step_norm
from covey.shared.numerics.vectors import Vector, blocks, release
from covey.shared.seeds import entropy
from covey.shared.written import FIRST

KEY_BYTES = 32
SIMULATED_KEY_BYTES = 16
COUNTER_BYTES = 8
UNUSED_BITS = np.uint64(11)  # of 64 random bits: a float64 has 53
UNIT = 2.0**-53  # the distance of neighbouring numbers of `uniform`

Float64 = npt.NDArray[np.float64]
Bits = npt.NDArray[np.uint64]


def new_key() -> bytes:
    """A secret key from the operating system."""
    return secrets.token_bytes(KEY_BYTES)


class Noise:
    """A stream of random numbers. Streams with the same key give the same numbers in the same order."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._drawn = 0  # blocks of bits so far: each is generated from the key and its number

    def __repr__(self) -> str:
        return f"Noise(secret key, {self._drawn} blocks drawn)"

    @classmethod
    def secret(cls) -> Noise:
        """A stream that cannot be repeated: its key comes from the operating system and is not stored."""
        return cls(new_key())

    @classmethod
    def simulated(cls, seed: int, purpose: str, *keys: str | int) -> Noise:
        """A stream for simulations. It protects nothing: anyone who knows the seed can repeat it."""
        return cls(entropy(seed, purpose, *keys).to_bytes(SIMULATED_KEY_BYTES, "little"))

    def uniform(self, count: int) -> Float64:
        """Numbers in [0, 1), float64 (count,)."""
        return (self._bits(count) >> UNUSED_BITS).astype(np.float64) * UNIT

    def chosen(self, count: int, rate: float) -> npt.NDArray[np.int64]:
        """Which of `count` samples a step uses: each with this probability, independently. May be empty."""
        return np.flatnonzero(self.uniform(count) < rate)

    def normal(self, count: int) -> Float64:
        """Standard normal numbers, float64 (count,)."""
        result = np.empty(count, np.float64)
        for span in blocks(count):
            result[span] = self._normal_block(span.stop - span.start)
        return result

    def _normal_block(self, width: int) -> Float64:
        """Box and Muller: two uniform numbers become two independent normal ones."""
        pairs = -(-width // 2)  # rounded up: the last number of an odd block is dropped
        logarithm = np.log1p(-self.uniform(pairs))
        radius = np.sqrt(-2.0 * logarithm)
        angle = 2.0 * math.pi * self.uniform(pairs)
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:width]

    def _bits(self, count: int) -> Bits:
        """64 random bits for each of `count` numbers, never used before."""
        self._drawn += 1
        stream = hashlib.shake_256(self._key + self._drawn.to_bytes(COUNTER_BYTES, "little"))
        return np.frombuffer(stream.digest(8 * count), "<u8").astype(np.uint64)


LOCAL = "epsilon"  # in a report's numbers: the epsilon that the agent's DP-SGD has spent so far
COUNT_NOISE = 2.0  # noise on a count, in multiples of the noise on a sum: see docs/privacy.md
CERTAIN = 3.0  # standard deviations: a smaller noised count may be that of an empty cluster


class _Section(BaseModel):
    """A part of a scenario. It is frozen, refuses unknown keys and accepts finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _norm(description: str) -> Any:
    """The field of a Euclidean norm to which a vector is shortened."""
    return Field(1.0, gt=0, description=description, json_schema_extra=FIRST)


def _multiplier(description: str) -> Any:
    """The field of a standard deviation in multiples of the norm."""
    return Field(1.0, ge=0, description=description, json_schema_extra=FIRST)


def _delta(description: str) -> Any:
    """The field of a privacy account's delta."""
    return Field(1e-5, gt=0, lt=1, description=description)


class ClippedNoise(_Section):
    """Gaussian noise on steps that are clipped: the noise is in proportion to the longest step there can be.

    The description of a field states what is clipped, and what the noise is added to.
    """

    clip: float
    noise_multiplier: float
    delta: float

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on each value."""
        return self.clip * self.noise_multiplier


class SignaturePrivacy(ClippedNoise):
    """Noise that agents add to their signatures, which they send once for clustering (FedClust, PACFL, FeSEM)."""

    clip: float = _norm(
        "Euclidean norm to which a signature's step is shortened before noise is added."
    )
    noise_multiplier: float = _multiplier(
        "Standard deviation of the noise on each value, in multiples of clip. 0: clip only, which hides nothing."
    )
    delta: float = _delta(
        "Delta of the privacy account if there is no client section. Choose it well below 1 / number of agents."
    )


class ClientPrivacy(ClippedNoise):
    """Client-level privacy: the released models hide everything that any one agent sends in the whole run."""

    clip: float = _norm("Euclidean norm to which each agent's change of the model is shortened.")
    noise_multiplier: float = _multiplier(
        "Standard deviation of the noise on each cluster's sum, in multiples of clip. 0: no noise, for comparison."
    )
    delta: float = _delta(
        "Delta of the privacy account. Choose it well below 1 / number of agents."
    )


class LocalPrivacy(_Section):
    """Example-level privacy on the device: DP-SGD hides any one of an agent's examples in what it sends."""

    noise_multiplier: float | None = Field(
        None,
        gt=0,
        description="Standard deviation of a step's noise, in multiples of max_grad_norm. null: target_epsilon determines it.",
    )
    target_epsilon: float | None = Field(
        None,
        gt=0,
        json_schema_extra=FIRST,
        description="Epsilon that no agent exceeds in the run. Each agent computes its own noise_multiplier from it. null: noise_multiplier is given.",
    )
    max_grad_norm: float = _norm("Euclidean norm to which each example's gradient is shortened.")
    delta: float = _delta(
        "Delta of the privacy account. Choose it below 1 / number of examples of an agent."
    )

    @model_validator(mode="after")
    def _one_amount_of_noise(self) -> Self:
        if (self.noise_multiplier is None) == (self.target_epsilon is None):
            raise ValueError("set either noise_multiplier or target_epsilon, and not both")
        return self


class SecureSettings(_Section):
    """Secure sums: agents mask their updates, and the coordinator learns the sum of a group alone."""

    colluders: float = Field(
        0.2, ge=0, lt=1, description="Share of a group's members that may work for the coordinator."
    )
    threshold: int | None = Field(
        None,
        ge=3,
        description="Members that must answer before a sum can be read. null: the smallest number that protects.",
    )
    least: int | None = Field(
        None, ge=3, description="Members that a sum must have. null: the threshold."
    )
    group: int = Field(128, ge=3, le=512, description="The most members of a group.")
    clip: float = _norm("Euclidean norm to which each agent's change of the model is shortened.")
    cap: int = Field(
        10_000, ge=1, lt=2**22, description="The most examples with which an agent counts."
    )
    seconds: float = Field(
        3600.0, gt=0, description="Seconds after which an agent forgets a sum that it joined."
    )


class Privacy(_Section):
    """The differential privacy of the run. The noise of a simulated fleet repeats with the seed and hides nothing."""

    signatures: SignaturePrivacy | None = Field(
        None, description="Noise on signatures, added by the agents. null: none."
    )
    client: ClientPrivacy | None = Field(
        None,
        json_schema_extra=FIRST,
        description="Client-level privacy, with noise added by the coordinator. null: none.",
    )
    local: LocalPrivacy | None = Field(
        None,
        json_schema_extra=FIRST,
        description="Example-level privacy (DP-SGD), with noise added by the agents. null: none.",
    )

    secure: SecureSettings | None = Field(
        None,
        json_schema_extra=FIRST,
        description="Secure sums: the coordinator learns sums of updates and no single one. null: it sees each report.",
    )

    @model_serializer(mode="wrap")
    def _without_unused_sums(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave `secure` out if it is not used: the section keeps the digest that its runs have stored."""
        section: dict[str, Any] = dump(self)
        if self.secure is None:
            section.pop("secure", None)
        return section

    @property
    def has_noise(self) -> bool:
        """Whether a part of the section adds noise, of which an account is kept."""
        return (self.signatures or self.client or self.local) is not None

    @property
    def adds_up(self) -> bool:
        """Whether reports may be added up as they arrive: masked ones, of which the coordinator changes none."""
        return self.secure is not None and self.signatures is None

    def for_agents(self, rounds: int) -> dict[str, Any]:
        """The section in an order: everything except the coordinator's own part, and the number of rounds."""
        parts = {"signatures", "local", "secure"}
        return {**self.model_dump(mode="json", include=parts), "rounds": rounds}


@dataclass(frozen=True)
class Trainings:
    """The trainings of a method whose results leave the device: they share the target epsilon of `privacy.local`."""

    trainings: int = 1  # in a round, each of `training.epochs`
    first_epochs: int | None = (
        0  # of the one before the rounds, or at an entry; None: `training.epochs`
    )
    first_steps: int | None = None  # the same in steps of SGD; None: `first_epochs` counts


@dataclass(frozen=True)
class Budget:
    """What a target epsilon must last for, and how far the run is."""

    facet: Trainings
    rounds: int  # of the run
    round: int  # rounds that are complete
    is_round: bool = True  # False for a training before the rounds, or at an entry


@dataclass(frozen=True)
class AgentPrivacy:
    """The privacy that an order asks of an agent."""

    signatures: SignaturePrivacy | None
    local: LocalPrivacy | None
    rounds: int  # of the run, which share a target epsilon

    @classmethod
    def from_wire(cls, wire: dict[str, Any] | None) -> AgentPrivacy:
        """From the field of an order. Raises pydantic's ValidationError if it is no such section."""
        fields = wire or {}
        section = Privacy.model_validate(
            {"signatures": fields.get("signatures"), "local": fields.get("local")}
        )
        return cls(section.signatures, section.local, int(fields.get("rounds", 1)))


def noised(vector: Vector, base: Vector, settings: SignaturePrivacy, noise: Noise) -> Vector:
    """A signature with a clipped step and noise.

    Without noise nothing is hidden, but clipping limits the influence of a single signature.

    Args:
        vector: the signature, float32 (d,).
        base: what an agent without data would send, (d,). The step is the difference to it.
        settings: the norm and the noise.
        noise: drawn from unless the multiplier is 0.

    Returns:
        float32 (d,).
    """
    step = vector.astype(np.float64) - base
    step *= _clip_factor(vector, base, settings.clip)
    if settings.deviation:
        step += settings.deviation * noise.normal(step.size)
    return (base + step).astype(np.float32)


def clipped_sum(vectors: Sequence[Vector], base: Vector, clip: float) -> npt.NDArray[np.float64]:
    """The sum (d,) of the vectors' steps from `base`, each shortened to norm `clip`, in float64.

    One vector more or less changes the sum by at most `clip`; noise is measured in multiples of it.
    """
    total = np.zeros(base.size, np.float64)
    start = base.astype(np.float64)
    for vector in vectors:
        total += (vector - start) * _clip_factor(vector, base, clip)
        release(vector)
    return total


def _clip_factor(vector: Vector, base: Vector, clip: float) -> float:
    """The factor, at most 1, that shortens the step from `base` to a norm of at most `clip`."""
    norm = step_norm(vector, base)
    if norm <= clip:
        return 1.0
    return clip / norm


def combined_multiplier(noise_multiplier: float) -> float:
    """The noise multiplier of a sum together with its noised count, for the privacy account of such a round."""
    return noise_multiplier / math.sqrt(1.0 + COUNT_NOISE**-2)


def noised_count(count: int, noise_multiplier: float, noise: Noise) -> float | None:
    """A count to divide by, with noise.

    Returns:
        None if the noised count is so small that the cluster may be empty.
    """
    spread = COUNT_NOISE * noise_multiplier
    seen = count + spread * float(noise.normal(1)[0])
    if seen < max(CERTAIN * spread, 1.0):
        return None
    return seen
