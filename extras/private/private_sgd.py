"""DP-SGD with Opacus: per-example gradients clipped to a norm, noise on their sum, Poisson samples, an accountant.

Abadi et al. 2016, Deep Learning with Differential Privacy; the accountant is Opacus' RDP accountant (Mironov 2017;
Mironov, Talwar, Zhang 2019). Opacus computes and clips the gradients. Samples and noise come from
`shared.privacy.noise`, so that a device draws both from the operating system's randomness and a simulated agent from
the scenario's seed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from covey.agent.kept.privacy_account import DeviceAccount
from covey.agent.policy import PolicyError
from covey.shared.errors import PublicError, install
from covey.shared.privacy.settings import Budget, LocalPrivacy, Noise
from covey.shared.scenario.adapters import B
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import SampleIndices

INSTALL = f"privacy.local trains with Opacus, which is not installed here: {install('privacy')}"
RAISED = (
    1.0,
    1.1,
    1.25,
    1.5,
    2.0,
)  # the noise over the planned one, where trainings had to be repeated
TOLERANCE = 1.001  # of a target epsilon: the search for its noise stops within a thousandth

Ledger = npt.NDArray[np.float64]  # (rows, 3): noise multiplier, sampling rate, steps


class PrivateSgd:
    """The private part of one agent's training. Construct it before the module's parameters become views.

    Args:
        privacy: the scenario's section `privacy.local`.
        module: on its device. Opacus adds hooks to it.
        examples: n_i, the number of training samples.
        training: batch size and epochs.
        budget: what a target epsilon must last for.
        noise: draws samples and noise.
        ledger: what earlier orders have spent; None for nothing.
        account: of this device over all runs; None: none is kept.

    Raises:
        PublicError: Opacus is missing, or no noise reaches the target.
    """

    rate: float  # probability with which a step uses an example
    noise_multiplier: (
        float  # standard deviation of a step's noise over max_grad_norm; `spend` sets it
    )
    ledger: Ledger  # one row per kind of step in the whole run; never shrinks

    def __init__(
        self,
        privacy: LocalPrivacy,
        module: nn.Module,
        examples: int,
        training: Training,
        *,
        budget: Budget,
        noise: Noise,
        ledger: Ledger | None,
        account: DeviceAccount | None = None,
    ) -> None:
        opacus = _opacus()
        self._privacy = privacy
        self._noise = noise
        self._account = account
        self._examples = examples
        self._batch = min(training.batch, examples)  # expected size of a Poisson sample
        self.rate = self._batch / examples
        self.ledger = np.empty((0, 3)) if ledger is None else ledger
        self.noise_multiplier = privacy.noise_multiplier or math.inf
        facet = budget.facet
        training_steps = self.steps(training.epochs)
        first = facet.first_steps
        if first is None:
            epochs = training.epochs if facet.first_epochs is None else facet.first_epochs
            first = self.steps(epochs)
        in_round = facet.trainings * training_steps
        # one training in reserve: for an attempt of a round that is repeated, or a second entry
        self._planned = first + budget.rounds * in_round + training_steps
        self._ahead = (budget.rounds - budget.round) * in_round
        if not budget.is_round:
            self._ahead += first
        self._module = opacus.GradSampleModule(module, loss_reduction="sum")
        parameters = [one for one in module.parameters() if one.requires_grad]
        self._optimizer = opacus.optimizers.DPOptimizer(
            torch.optim.SGD(parameters, lr=1.0),  # never steps: our own SGD does
            noise_multiplier=0.0,  # `gradients` adds noise from our own source
            max_grad_norm=privacy.max_grad_norm,
            expected_batch_size=self._batch,
        )
        self._parameters = parameters

    def __repr__(self) -> str:
        steps = int(self.ledger[:, 2].sum())
        return f"<PrivateSgd: noise {self.noise_multiplier:g}, rate {self.rate:g}, {steps} steps>"

    def steps(self, epochs: int) -> int:
        """Steps in this number of epochs: each example is used once per epoch on average."""
        steps_per_epoch = -(-self._examples // self._batch)
        return epochs * steps_per_epoch

    def spend(self, steps: int) -> None:
        """Choose the noise of steps and enter them into the ledger, before they are made.

        Raises:
            PublicError: they, and what is planned after them, exceed a target epsilon.
        """
        target = self._privacy.target_epsilon
        if target is not None:
            self.noise_multiplier = self._noise_within(target, max(self._ahead, steps))
        if self._account is not None:
            self._enter(self._account, steps)
        self._ahead = max(self._ahead - steps, 0)
        self.ledger = self._with(self.noise_multiplier, steps)

    def _enter(self, account: DeviceAccount, steps: int) -> None:
        """Enter steps into the account of the device, before they are made. PublicError if they exceed its bound."""
        rows = np.array([*account.rows(), (self.noise_multiplier, self.rate, steps)])
        ledger = _merged(rows)
        if account.epsilon is not None:
            spent = epsilon_of(ledger, account.delta)
            if spent > account.epsilon * TOLERANCE:
                raise PolicyError(
                    f"policy of this device: privacy.local_epsilon: this training would bring epsilon to {spent:.2f} over all "
                    f"runs, at most {account.epsilon:g} is allowed"
                )
        account.write([(noise, rate, int(count)) for noise, rate, count in ledger.tolist()])

    def _noise_within(self, target: float, steps: int) -> float:
        """The planned noise, or more where earlier orders have spent more than planned."""
        delta = self._privacy.delta
        planned = _multiplier_for(target, delta, self.rate, self._planned)
        for raised in RAISED:
            after = epsilon_of(self._with(planned * raised, steps), delta)
            if after <= target * TOLERANCE:
                return planned * raised
        raise PolicyError(
            f"privacy.local: even with {RAISED[-1]:g} times the planned noise, the trainings that are left would bring "
            f"epsilon to {after:.2f}, the target is {target:g}; the agent trains no more in this run"
        )

    def _with(self, multiplier: float, steps: int) -> Ledger:
        """The ledger with further steps."""
        row = np.array([[multiplier, self.rate, float(steps)]])
        return _merged(np.concatenate([self.ledger, row]))

    def spent(self) -> float:
        """Epsilon of the ledger at the section's delta."""
        return epsilon_of(self.ledger, self._privacy.delta)

    def sample(self) -> SampleIndices:
        """SampleIndices of a Poisson sample: each example with the sampling rate, independently. May be empty."""
        return self._noise.chosen(self._examples, self.rate)

    def gradients(
        self,
        loss: Callable[[Tensor], Tensor],
        inputs: Tensor,
        fixed: Sequence[Tensor] | None = None,
    ) -> list[Tensor]:
        """For each parameter the noised sum of clipped gradients, divided by the expected size of a batch.

        Args:
            loss: the summed loss () from the outputs for `inputs`.
            inputs: (B, *features); B may be 0, which gives noise alone.
            fixed: for each parameter, which of its values do not train (bool): they do not count in the norm of a gradient.
                None: all train.
        """
        optimizer = self._optimizer
        if len(inputs):
            optimizer.zero_grad(set_to_none=True)
            with _without_warnings():  # torch remarks that data needs no gradient
                loss(self._module(inputs)).backward()  # type: ignore[no-untyped-call]
            for parameter, mask in zip(self._parameters, fixed or (), strict=bool(fixed)):
                parameter.grad_sample.masked_fill_(mask, 0)  # type: ignore[attr-defined]
            _drop_not_finite([parameter.grad_sample for parameter in self._parameters])  # type: ignore[attr-defined]
            optimizer.clip_and_accumulate()
            sums = [parameter.summed_grad for parameter in self._parameters]  # type: ignore[attr-defined]
        else:
            sums = [torch.zeros_like(parameter) for parameter in self._parameters]
        spread = self.noise_multiplier * self._privacy.max_grad_norm
        noised: list[Tensor] = []
        for clipped_sum in sums:
            noise = spread * self._normal(clipped_sum)
            noised.append((clipped_sum + noise) / self._batch)
        return noised

    def _normal(self, like: Tensor) -> Tensor:
        """Standard normal float32 numbers of a tensor's shape, on its device."""
        drawn = self._noise.normal(like.numel()).astype(np.float32)
        return torch.from_numpy(drawn).to(like.device).view_as(like)


def _drop_not_finite(gradients: Sequence[Tensor]) -> None:
    """Let samples count as zero whose gradient (B, ...) is not finite: clipping would make NaN of the whole sum, and so tell
    without noise that there is such a sample."""
    finite = torch.stack([one.flatten(1).isfinite().all(dim=1) for one in gradients]).all(dim=0)
    for one in gradients:
        one.masked_fill_(~finite.view(-1, *(1,) * (one.dim() - 1)), 0)


def _opacus() -> Any:
    """The package, loaded when it is needed first. Raises PublicError if it is not installed."""
    try:
        with _without_warnings():
            import opacus
            import opacus.accountants
            import opacus.optimizers
    except ImportError:
        raise PublicError(INSTALL) from None
    return opacus


@contextmanager
def _without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def check_layers(module: nn.Module, *, mixes: bool = False) -> None:
    """Raises PublicError for a model that mixes the examples of a batch, and for layers that Opacus does not know."""
    _opacus()
    if any(name.rpartition(".")[2] == B for name, _ in module.named_parameters()):
        raise PublicError(
            "privacy.local: adapters have no gradient of each example; remove task.model.adapters and train the head alone "
            "(task.share), or remove privacy.local"
        )
    if mixes:
        norms = [
            f"layer {name} is {type(layer).__name__}, which"
            for name, layer in module.named_modules()
            if isinstance(layer, _BatchNorm)
        ]
        raise PublicError(
            f"privacy.local: {norms[0] if norms else 'task.model'} mixes the examples of a batch, so that no example has a "
            "gradient of its own; use a model with group normalisation (nn.GroupNorm), or without normalisation"
        )
    from opacus.validators import ModuleValidator

    mistakes = ModuleValidator.validate(module, strict=False)
    if mistakes:
        raise PublicError(f"privacy.local: Opacus cannot train this model: {mistakes[0]}")


def _merged(ledger: Ledger) -> Ledger:
    """One row for each pair of noise multiplier and sampling rate, with the steps of all such rows."""
    kinds, places = np.unique(ledger[:, :2], axis=0, return_inverse=True)
    return np.column_stack([kinds, np.bincount(places.ravel(), weights=ledger[:, 2])])


def epsilon_of(ledger: Ledger, delta: float) -> float:
    """Epsilon of all the steps together; 0 for none."""
    if not len(ledger):
        return 0.0
    analysis = _opacus().accountants.analysis.rdp
    spent = sum(
        _divergence(multiplier, rate) * int(steps) for multiplier, rate, steps in ledger.tolist()
    )
    # Opacus warns when the best order is at the end of its range: epsilon is valid, only less tight
    with _without_warnings():
        return float(analysis.get_privacy_spent(orders=_orders(), rdp=spent, delta=delta)[0])


def _orders() -> list[float]:
    """The orders at which Opacus' accountant computes."""
    orders: list[float] = _opacus().accountants.RDPAccountant.DEFAULT_ALPHAS
    return orders


@lru_cache(maxsize=64)
def _divergence(multiplier: float, rate: float) -> npt.NDArray[np.float64]:
    """The Renyi divergence of one step at each order. It takes most of the time of an account, and steps of a kind share it."""
    found: npt.NDArray[np.float64] = _opacus().accountants.analysis.rdp.compute_rdp(
        q=rate, noise_multiplier=multiplier, steps=1, orders=_orders()
    )
    found.flags.writeable = False
    return found


@lru_cache(maxsize=64)
def _multiplier_for(target: float, delta: float, rate: float, steps: int) -> float:
    """The least noise that keeps this number of steps below the target. Raises PublicError if no noise does."""
    _opacus()
    from opacus.accountants.utils import get_noise_multiplier

    try:
        with _without_warnings():
            found = get_noise_multiplier(
                target_epsilon=target,
                target_delta=delta,
                sample_rate=rate,
                steps=steps,
                accountant="rdp",
                epsilon_tolerance=target / 1000,
            )
    except ValueError:
        raise PolicyError(
            f"privacy.local.target_epsilon {target:g} cannot be reached with any noise; raise it"
        ) from None
    return float(found)
