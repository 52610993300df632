"""Clusters in words, for lines of a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from covey.shared.numerics.votes import Vote

MAX_SINGLY = 12  # more clusters than these do not fit a line one by one


def fell_back(vote: Vote, left: int, cluster: int) -> str:
    """Why an agent has another model than that of its cluster, without the agent's name."""
    where = f"has left cluster {left} and trains alone, as cluster {cluster}"
    if left == cluster:
        where = f"has an earlier model of cluster {cluster}, which is its own, again"
    losses = f"{vote.loss:.3g} under the model of its cluster, {vote.other:.3g} under the other"
    return f"{where}: loss {losses}, on {vote.n} samples that it holds back"


def sizes_text(sizes: Mapping[str, int]) -> str:
    """The sizes of all clusters, such as "5+5+10"; of one or of many, how many there are and the smallest and largest size.

    Args:
        sizes: agents by cluster id; empty gives an empty text.
    """
    clusters = len(sizes)
    agents = sizes.values()
    if clusters != 1 and clusters <= MAX_SINGLY:
        return "+".join(map(str, agents))
    smallest = min(agents)
    largest = max(agents)
    if largest == 1:
        return f"{clusters} of 1 agent"
    if smallest == largest:
        return f"{clusters} of {largest} agents"
    return f"{clusters} of {smallest} to {largest} agents"
