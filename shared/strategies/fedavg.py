"""FedAvg: local SGD for E epochs, then the sample-weighted mean of the models.

Paper. McMahan et al. 2017, Communication-Efficient Learning of Deep Networks from Decentralized
Data, algorithm 1. The weights are the training samples n_i of those who reported.

Our deviations. None.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from covey.shared.strategies.bases.single import AveragedOnly


class FedAvg(AveragedOnly):
    """The reference: one model for all. Both halves are those of `bases.single`."""

    summary: ClassVar[str] = "one model for all, mean of local models weighted by samples"
    source: ClassVar[str] = "McMahan et al. 2017"

    name: Literal["fedavg"] = "fedavg"
