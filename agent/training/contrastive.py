"""The contrastive clustering loss of two views.

Tang et al. 2024, equation 1, as Li et al. 2021 (Contrastive Clustering) have it: the printed 1/tau outside of exp and
the index that stands twice are read as slips, for as printed tau would cancel.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from covey.shared.strategies.base import Contrast


def contrastive_loss(first: Tensor, second: Tensor, contrast: Contrast) -> Tensor:
    """Loss of the soft assignments (B, K) of the same B samples in two views; rows sum to 1."""
    loss = _told_apart(first, second, contrast)
    if contrast.kappa:
        loss = loss + contrast.kappa * (_missing_entropy(first) + _missing_entropy(second))
    return loss


def _told_apart(first: Tensor, second: Tensor, contrast: Contrast) -> Tensor:
    """Each signature should be nearest to its own in the other view, among all of both views but itself."""
    pair = [first.T, second.T] if contrast.by == "columns" else [first, second]
    signatures = functional.normalize(torch.cat(pair), dim=1)
    itself = torch.eye(len(signatures), dtype=torch.bool, device=signatures.device)
    similar = (signatures @ signatures.T / contrast.temperature).masked_fill(itself, -math.inf)
    partner = torch.arange(len(signatures), device=signatures.device).roll(len(pair[0]))
    return functional.cross_entropy(similar, partner)


def _missing_entropy(assigned: Tensor) -> Tensor:
    """ln K minus the entropy of the mean assignment: 0 where all clusters are used alike."""
    share = assigned.mean(dim=0).clamp(min=torch.finfo(assigned.dtype).tiny)
    return math.log(assigned.shape[1]) + (share * share.log()).sum()
