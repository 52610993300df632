"""FedAvg: local SGD for E epochs, then the sample-weighted mean of the models.

McMahan et al. 2017, Communication-Efficient Learning of Deep Networks from Decentralized Data, algorithm 1.
Weights are training samples of those who reported; no difference from the paper.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from covey.shared.strategies.bases.single import AveragedOnly


class FedAvg(AveragedOnly):
    """The reference: one model for everybody. Both halves are the common ones of `single.py`."""

    summary: ClassVar[str] = "one model for all, mean of local models weighted by samples"
    source: ClassVar[str] = "McMahan et al. 2017"

    name: Literal["fedavg"] = "fedavg"
