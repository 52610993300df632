"""FedBN and SiloBN: layers that normalise stay on the agents, all others are averaged.

Papers. Li, Jiang, Zhang, Kamp, Dou 2021, FedBN: Federated Learning on Non-IID Features via Local
Batch Normalization, algorithm 1. Andreux, du Terrail, Beguier, Tramel 2020, Siloed Federated
Learning for Multi-Centric Histopathology Datasets (SiloBN): only the running statistics stay.

Our deviations.
- The average counts samples. FedBN's algorithm averages uniformly.
- Layers with group, layer or instance normalisation stay too: they have a scale and a shift per
  channel, but no statistics that could be averaged wrongly.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from covey.shared.errors import PublicError
from covey.shared.numerics.split import Split, is_statistic, norms
from covey.shared.numerics.vectors import Layout
from covey.shared.strategies.bases.single import AveragedOnly


class FedBn(AveragedOnly):
    """For agents whose inputs differ in style: other sensors, other light, other scanners."""

    summary: ClassVar[str] = "FedAvg whose normalisation layers stay on the agents"
    source: ClassVar[str] = "Li et al. 2021"

    name: Literal["fedbn"] = "fedbn"
    keeps: Literal["layers", "statistics"] = Field(
        "layers",
        description="What stays on an agent. layers: scale, shift and statistics of each "
        "normalisation layer. statistics: the running statistics of batch norm alone (SiloBN).",
    )

    def split(self, layout: Layout) -> Split:
        if self.keeps == "layers":
            split = Split.keeping(layout, norms(layout))
        else:
            kept = ["keep" if is_statistic(tensor) else "share" for tensor in layout.tensors]
            split = Split(layout, tuple(kept))  # type: ignore[arg-type]
        if not split.keeps:
            what = "normalisation layers" if self.keeps == "layers" else "batch norm"
            raise PublicError(
                f"strategy.fedbn: the model has no {what}, only the modules {', '.join(layout.modules)}; choose a model "
                "with them, or fedavg"
            )
        return split
