"""FedDWS, also printed FedDist+WS: FedDist with weights by data size.

Paper. Long et al. 2023, a row of the FeSEM tables.

Our deviations. None from the formula, with the epsilon of FedDist; epsilon = 1 is FedAvg. The code
published for that row divides by the number of clients once more and uses a name that is never
defined, and its comments disagree about epsilon.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from covey.shared.strategies.feddist import PartOfTheWay


class FedDws(PartOfTheWay):
    """Each reporter counts by its samples."""

    summary: ClassVar[str] = "FedDist with weights by samples"
    source: ClassVar[str] = "Long et al. 2023"

    name: Literal["feddws"] = "feddws"
