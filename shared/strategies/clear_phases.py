"""What a report shows of one agent under secure sums, in a phase that the coordinator sees in the clear.

It is shortened whatever the method: losses have two digits, and what was trained is no more than a quarter of its values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt

from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.strategies.client_half import Numbers, Report
from covey.shared.strategies.facts import Shows
from covey.shared.strategies.phase_names import CARD

PART = 4  # a vector that was made of a trained model has at most one of this number of its values
DIGITS = 2  # of a loss


def shortened(length: int, layout: Layout) -> int:
    """The length of a vector that is made of a trained model of this layout, so that no model can be computed from it."""
    return min(length, max(layout.size // PART, 1))


def told(report: Report, what: Shows, layout: Layout, trained: Vector | None) -> Report:
    """The report as it may be shown.

    Args:
        report: of the method.
        what: it shows.
        layout: of the part of the model that travels.
        trained: the model that was trained for the report; None: none was.
    """
    vectors = {
        name: vector
        if trained is None or name == CARD
        else vector[: shortened(vector.size, layout)]
        for name, vector in report.vectors.items()
    }
    numbers: Numbers = report.numbers
    if what != "signature":
        numbers = {name: rounded(number) for name, number in numbers.items()}
    return replace(report, vectors=vectors, numbers=numbers, steps=0, loss=0.0, bases={})


def rounded(number: Any) -> Any:
    if isinstance(number, list):
        return [rounded(one) for one in number]
    return number if isinstance(number, int) else float(f"{number:.{DIGITS - 1}e}")


def packed(report: Report) -> dict[str, npt.NDArray[Any]]:
    """A report as it is kept to be shown again."""
    numbers = msgpack.packb(
        [report.examples, dict(report.numbers)], default=lambda one: one.tolist()
    )
    return {
        "numbers": np.frombuffer(numbers, np.uint8),
        **{f"vector {name}": one for name, one in report.vectors.items()},
    }


def unpacked(arrays: Mapping[str, npt.NDArray[Any]]) -> Report:
    """What `packed` has kept."""
    examples, numbers = msgpack.unpackb(arrays["numbers"].tobytes())
    kind = "vector "
    vectors = {
        name.removeprefix(kind): one for name, one in arrays.items() if name.startswith(kind)
    }
    return Report(vectors, examples, numbers)
