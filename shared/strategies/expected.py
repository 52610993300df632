"""The form of numbers in reports and orders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LARGEST = 1e100  # no honest number of a report is larger; sums of such numbers stay finite


@dataclass(frozen=True)
class Expected:
    """The form of a number, or of a list of numbers, in a report or an order.

    The coordinator refuses a report without a required number, or with one that does not have
    this form; agents refuse such an order. All numbers are finite.
    """

    length: int | None = None  # None: one number; n: a list of n numbers; -n: a list of 1 to n
    least: float = 0.0
    most: float | None = None  # None: the report's number of examples, or 1 if it has none
    whole: bool = False  # integers only
    required: bool = True
    words: tuple[str, ...] = ()  # no number, but one of these

    def fault(self, value: Any, examples: float = 1.0) -> str:
        """How the value should have been; empty if it has this form."""
        most = examples if self.most is None else self.most
        if self.words:
            what, right = " or ".join(self.words), value in self.words
            return "" if right else f"is {value!r:.60}; expected {what}"
        if self.length is None:
            what, right = "a number", is_number(value, self.least, most, whole=self.whole)
        else:
            what = f"{self.length} numbers" if self.length >= 0 else f"1 to {-self.length} numbers"
            right = is_list(value, self.length, self.least, most, whole=self.whole)
        if right:
            return ""
        return f"is {value!r:.60}; expected {what} from {self.least:g} to {most:g}"


def is_list(value: Any, length: int, least: float, most: float, *, whole: bool) -> bool:
    """Whether it is a list of numbers. A negative length is the most that it may have."""
    if not isinstance(value, list):
        return False
    shortest = length if length >= 0 else 1
    if not shortest <= len(value) <= abs(length):
        return False
    return all(is_number(one, least, most, whole=whole) for one in value)


def is_number(value: Any, least: float, most: float, *, whole: bool = False) -> bool:
    """Messages hold no other numbers than finite ones; a bool is no number."""
    kinds = int if whole else int | float
    if isinstance(value, bool):
        return False
    if not isinstance(value, kinds):
        return False
    return least <= value <= most


# forms of numbers in orders
ASKED = Expected(least=1, most=1, whole=True)  # the number is there, or it is not
A_COUNT = Expected(least=1, most=2**31, whole=True)  # of epochs, steps or samples
STRENGTH = Expected(most=LARGEST)  # of a step or a pull
A_MODEL = Expected(most=1023, whole=True)  # by its place among those of an order
SHARES = Expected(-1024, most=1.0)  # one for each of some models
