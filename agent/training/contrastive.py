"""The contrastive clustering loss of two views.

Tang et al. 2024, equation 1, as Li et al. 2021 (Contrastive Clustering) have it. Our deviation from the print: we read
the 1/tau outside of exp and the index that occurs twice as slips, because as printed tau would cancel.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from covey.shared.strategies.base import Contrast


def contrastive_loss(first: Tensor, second: Tensor, contrast: Contrast) -> Tensor:
    """The loss () of two views of the same samples.

    Args:
        first: soft assignments (B, K) of the first view; rows sum to 1.
        second: soft assignments (B, K) of the same B samples in the second view.
        contrast: temperature, weight of the entropy term, and whose signatures are compared.
    """
    loss = _discrimination(first, second, contrast)
    if contrast.kappa:
        entropy_loss = contrast.kappa * (_entropy_gap(first) + _entropy_gap(second))
        loss = loss + entropy_loss
    return loss


def _discrimination(first: Tensor, second: Tensor, contrast: Contrast) -> Tensor:
    """Cross-entropy of finding each signature's partner in the other view, among all other signatures of both views."""
    pair = [first, second]
    if contrast.by == "columns":  # a cluster's signature: how strongly each sample belongs to it
        pair = [first.T, second.T]
    both_views = torch.cat(pair)
    signatures = functional.normalize(both_views, dim=1)
    count = len(signatures)
    device = signatures.device
    cosine = signatures @ signatures.T
    similarity = cosine / contrast.temperature
    # a signature is no candidate for its own partner
    itself = torch.eye(count, dtype=torch.bool, device=device)
    candidates = similarity.masked_fill(itself, -math.inf)
    # signature i of one view belongs to signature i of the other, half the list further on
    partner = torch.arange(count, device=device).roll(len(pair[0]))
    return functional.cross_entropy(candidates, partner)


def _entropy_gap(assigned: Tensor) -> Tensor:
    """ln K minus the entropy of the mean assignment: 0 if all clusters are used equally."""
    smallest = torch.finfo(assigned.dtype).tiny  # ln 0 would be infinite
    share = assigned.mean(dim=0).clamp(min=smallest)
    clusters = assigned.shape[1]
    terms = share * share.log()
    negative_entropy = terms.sum()
    return math.log(clusters) + negative_entropy
