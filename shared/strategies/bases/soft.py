"""What soft-clustered methods share: memberships of clients, known and unknown."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

import numpy as np

from covey.shared.strategies.base import ClientId, View

T = TypeVar("T")

# why such a method refuses a rule that picks whole reports
SOFT = "it picks whole reports, and here each report counts in part in every group"


def merged(before: Mapping[ClientId, T], news: Mapping[ClientId, T]) -> dict[ClientId, T]:
    """The newest value of each client, in ascending order of client id."""
    newest = dict(before)
    newest.update(news)
    in_order = sorted(newest.items())
    return dict(in_order)


def unknown(
    known: Collection[ClientId], asked: Collection[ClientId], view: View
) -> tuple[ClientId, ...]:
    """The clients to ask: present, not known, and not asked since the last complete round.

    Args:
        known: clients whose memberships are known.
        asked: clients that were asked since the last complete round and did not answer.
        view: who is present.
    """
    clients = set(view.present)
    clients.difference_update(known)
    clients.difference_update(asked)
    in_order = sorted(clients)
    return tuple(in_order)


def dominant(memberships: Mapping[ClientId, Sequence[float]], client: ClientId) -> int | None:
    """The cluster with the client's largest share, ties to the lowest; None for an unknown client."""
    shares = memberships.get(client)
    if shares is None:
        return None
    return int(np.argmax(shares))
