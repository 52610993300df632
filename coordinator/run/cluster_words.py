"""Clusters in words, for lines of a terminal."""

from __future__ import annotations

from collections.abc import Mapping

MAX_SINGLY = 12  # more clusters than these do not fit a line one by one


def sizes_text(sizes: Mapping[str, int]) -> str:
    """The sizes of all clusters, such as "5+5+10"; of many clusters how many there are, the smallest and the largest size.

    Args:
        sizes: agents by cluster id; empty gives an empty text.
    """
    if len(sizes) <= MAX_SINGLY:
        return "+".join(str(size) for size in sizes.values())
    smallest = min(sizes.values())
    largest = max(sizes.values())
    between = f"{smallest}" if smallest == largest else f"{smallest} to {largest}"
    noun = "agent" if largest == 1 else "agents"
    return f"{len(sizes)} of {between} {noun}"
