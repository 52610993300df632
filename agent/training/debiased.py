"""The terms of `Debias` while a torch module trains: an offset before its last layer, and a pull of mean features."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from covey.shared.strategies.base import Debias


class Debiased:
    """The offset that the last layer reads, and the term of the loss.

    Args:
        debias: the terms.
        last: the last layer, which is linear.
        device: where the module computes.
    """

    def __init__(self, debias: Debias, last: nn.Module, device: torch.device) -> None:
        self.own = torch.from_numpy(debias.own.copy()).to(device).requires_grad_()
        self._debias = debias
        self._last = last
        self._consensus = torch.from_numpy(debias.mean.copy()).to(device)
        self._batch: Tensor  # mean features (width,) of the latest forward pass
        self._running: Tensor | None = None  # without gradient; None before the first batch

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The offset is in effect."""
        hook = self._last.register_forward_pre_hook(self._shifted)
        try:
            yield
        finally:
            hook.remove()

    def _shifted(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        self._batch = inputs[0].float().mean(dim=0)
        return (inputs[0] + self.own,)

    def term(self) -> Tensor:
        """The term of the latest batch, which enters the running mean."""
        self.own.grad = None  # of the step before
        mean = self._batch
        if self._running is not None:
            mean = self._running + self._debias.momentum * (mean - self._running)
        self._running = mean.detach()
        return self._debias.kappa / 2 * (mean - self._consensus).square().mean()

    def step(self, rate: float) -> None:
        """Change the offset by its gradient."""
        assert self.own.grad is not None  # noqa: S101 - the last layer reads it in each pass
        with torch.no_grad():
            self.own -= rate * self.own.grad
