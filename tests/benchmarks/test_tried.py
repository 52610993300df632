"""When `coordinator try` and the comparison of three seeds lead to the same decision."""

from __future__ import annotations

import pytest

from benchmarks.tried import agreement


@pytest.mark.parametrize(
    ("tried", "compared", "expected"),
    [
        ("worth it", "worth it", "yes"),
        ("worse", "not worth it", "yes"),
        ("not shown", "not shown", "yes"),
        ("worth it", "not shown", "open"),
        ("not shown", "worse", "open"),
        ("worth it", "worse", "no"),
        ("not worth it", "worth it", "no"),
    ],
)
def test_both_agree_if_they_advise_the_same(tried: str, compared: str, expected: str) -> None:
    assert agreement(tried, compared) == expected
