"""DP-SGD with Opacus: per-example gradients, each shortened to a norm, noise on their sum, Poisson samples, an account.

Abadi et al. 2016, Deep Learning with Differential Privacy; the account is Opacus' RDP accountant (Mironov 2017;
Mironov, Talwar, Zhang 2019). Opacus computes and clips the gradients; samples and noise come from `shared.noise`, so that
a device draws both from the operating system's randomness and a simulated agent from the scenario's seed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from covey.agent.training.models import BATCH_NORMS
from covey.shared.errors import PublicError
from covey.shared.privacy.noise import Noise
from covey.shared.privacy.settings import LocalPrivacy
from covey.shared.strategies.base import SampleIndices, Training

INSTALL = (
    "privacy.local trains with Opacus, which is not installed here: pip install 'covey[privacy]'"
)
TOLERANCE = 1.001  # of a target epsilon: finding the noise for it ends within a thousandth

Ledger = npt.NDArray[np.float64]


class PrivateSgd:
    """The private part of one agent's training. Must see the module before its parameters become views.

    `ledger` has a row (noise multiplier, sampling rate, steps) for each kind of step in the whole run. Raises PublicError
    where Opacus is missing or the model cannot be trained this way.
    """

    def __init__(
        self,
        privacy: LocalPrivacy,
        module: nn.Module,
        examples: int,
        training: Training,
        *,
        rounds: int,
        noise: Noise,
        ledger: Ledger | None,
    ) -> None:
        opacus = _opacus()
        _check_layers(module)
        self._privacy, self._noise = privacy, noise
        self._examples = examples
        self._batch = min(training.batch, examples)
        self.rate = self._batch / examples
        self.ledger: Ledger = np.empty((0, 3)) if ledger is None else ledger
        most_steps = (rounds + 1) * self.steps(
            training.epochs
        )  # one more: a phase before the rounds
        self.noise_multiplier = privacy.noise_multiplier or _multiplier_for(
            float(privacy.target_epsilon or 0.0), privacy.delta, self.rate, most_steps
        )
        self._module = opacus.GradSampleModule(module, loss_reduction="sum")
        parameters = [one for one in module.parameters() if one.requires_grad]
        self._optimizer = opacus.optimizers.DPOptimizer(
            torch.optim.SGD(parameters, lr=1.0),  # never steps: its place is taken by our own
            noise_multiplier=0.0,  # noise is added below, from our own source
            max_grad_norm=privacy.max_grad_norm,
            expected_batch_size=self._batch,
        )
        self._parameters = parameters

    def steps(self, epochs: int) -> int:
        """Steps of so many epochs: an example is in each with the sampling rate, once per epoch on average."""
        return epochs * -(-self._examples // self._batch)

    def spend(self, steps: int) -> None:
        """Enter steps into the ledger, before they are done. Raises PublicError where that exceeds a target epsilon."""
        row = np.array([[self.noise_multiplier, self.rate, float(steps)]])
        ledger = _merged(np.concatenate([self.ledger, row]))
        target = self._privacy.target_epsilon
        if (
            target is not None
            and (after := _epsilon(ledger, self._privacy.delta)) > target * TOLERANCE
        ):
            raise PublicError(
                f"privacy.local: this training would bring epsilon to {after:.2f}, the target is {target:g}; the "
                "agent trains no more in this run"
            )
        self.ledger = ledger

    def spent(self) -> float:
        """Epsilon of the ledger at the section's delta."""
        return _epsilon(self.ledger, self._privacy.delta)

    def sample(self) -> SampleIndices:
        """A Poisson sample: every example with the sampling rate, on its own. May be empty."""
        chosen = self._noise.uniform(self._examples) < self.rate
        return np.flatnonzero(chosen)

    def gradients(self, loss: Callable[[Tensor], Tensor], inputs: Tensor) -> list[Tensor]:
        """For each parameter the noised sum of clipped gradients, over the expected size of a batch."""
        optimizer = self._optimizer
        if len(inputs):
            optimizer.zero_grad(set_to_none=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch remarks that data needs no gradient
                loss(self._module(inputs)).backward()  # type: ignore[no-untyped-call]
            optimizer.clip_and_accumulate()
            sums = [parameter.summed_grad for parameter in self._parameters]  # type: ignore[attr-defined]
        else:
            sums = [torch.zeros_like(parameter) for parameter in self._parameters]
        spread = self.noise_multiplier * self._privacy.max_grad_norm
        return [(one + spread * self._normal(one)) / self._batch for one in sums]

    def _normal(self, like: Tensor) -> Tensor:
        drawn = self._noise.normal(like.numel()).astype(np.float32)
        return torch.from_numpy(drawn).to(like.device).view_as(like)


def _opacus() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import opacus
            import opacus.accountants
            import opacus.optimizers
    except ImportError:
        raise PublicError(INSTALL) from None
    return opacus


def _check_layers(module: nn.Module) -> None:
    """Raises PublicError for layers that mix the examples of a batch, and for others that Opacus does not know."""
    for name, layer in module.named_modules():
        if isinstance(layer, BATCH_NORMS):
            raise PublicError(
                f"privacy.local: layer {name} is {type(layer).__name__}, which mixes the examples of a batch, so that no "
                "example has a gradient of its own; use a model with group normalisation (nn.GroupNorm), or without any"
            )
    from opacus.validators import ModuleValidator

    mistakes = ModuleValidator.validate(module, strict=False)
    if mistakes:
        raise PublicError(f"privacy.local: Opacus cannot train this model: {mistakes[0]}")


def _merged(ledger: Ledger) -> Ledger:
    """Rows of the same kind become one."""
    kinds, places = np.unique(ledger[:, :2], axis=0, return_inverse=True)
    steps = np.bincount(places.ravel(), weights=ledger[:, 2])
    return np.column_stack([kinds, steps])


def _epsilon(ledger: Ledger, delta: float) -> float:
    """Epsilon of all the steps together; 0 for none."""
    if not len(ledger):
        return 0.0
    accountant = _opacus().accountants.RDPAccountant()
    accountant.history = [
        (multiplier, rate, int(steps)) for multiplier, rate, steps in ledger.tolist()
    ]
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # that the best order is at the end of its range: epsilon is only less tight
        return float(accountant.get_epsilon(delta))


@lru_cache(maxsize=64)
def _multiplier_for(target: float, delta: float, rate: float, steps: int) -> float:
    """The least noise with which so many steps stay below the target. Raises PublicError where no noise is enough."""
    _opacus()
    from opacus.accountants.utils import get_noise_multiplier

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = get_noise_multiplier(
                target_epsilon=target,
                target_delta=delta,
                sample_rate=rate,
                steps=steps,
                accountant="rdp",
                epsilon_tolerance=target / 1000,
            )
    except ValueError:
        raise PublicError(
            f"privacy.local.target_epsilon {target:g} cannot be reached with any noise; raise it"
        ) from None
    return float(found)
