"""LG-FedAvg: the lower layers are a client's own, the last ones are shared.

Paper. Liang et al. 2020, Think Locally, Act Globally: Federated Learning with Local and Global
Representations.

Our deviations.
- The shared part is averaged by samples and reaches a client when it next takes part, as in a
  public suite. The authors' code averages uniformly and sends it to all at once.
- All agents start from the common initial model. The authors start from a model that FedAvg has
  trained.
- The last layers are shared, as in the paper. Another widely used library shares the first layers
  under the same name.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from covey.shared.numerics.split import Split, last_modules
from covey.shared.numerics.vectors import Layout
from covey.shared.strategies.bases.single import AveragedOnly


class LgFedAvg(AveragedOnly):
    """For clients whose inputs differ more than their task does."""

    summary: ClassVar[str] = "own lower layers, shared last layers; only the shared ones travel"
    source: ClassVar[str] = "Liang et al. 2020"

    name: Literal["lg"] = "lg"
    shared_layers: int = Field(
        2,
        ge=1,
        description="The number of layers that are shared, counted from the last. Only modules "
        "with parameters count.",
    )

    def split(self, layout: Layout) -> Split:
        shared = last_modules(layout, self.shared_layers, "strategy.lg.shared_layers")
        return Split.keeping(layout, {tensor.module for tensor in layout.tensors} - {*shared})
