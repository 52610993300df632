"""Clusters in words, for lines of a terminal."""

from __future__ import annotations

from collections.abc import Mapping

MAX_SINGLY = 12  # more clusters than these do not fit a line one by one


def sizes_text(sizes: Mapping[str, int]) -> str:
    """The sizes of all clusters, such as "5+5+10"; of one or of many, how many there are and the smallest and largest size.

    Args:
        sizes: agents by cluster id; empty gives an empty text.
    """
    clusters = len(sizes)
    agents = sizes.values()
    if clusters != 1 and clusters <= MAX_SINGLY:
        texts = map(str, agents)
        return "+".join(texts)
    smallest = min(agents)
    largest = max(agents)
    if largest == 1:
        return f"{clusters} of 1 agent"
    if smallest == largest:
        return f"{clusters} of {largest} agents"
    return f"{clusters} of {smallest} to {largest} agents"
