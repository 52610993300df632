"""What soft-clustered methods have in common: memberships of clients that are known, and of those that are not."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

import numpy as np

from covey.shared.strategies.base import ClientId, View

T = TypeVar("T")
SOFT = "it picks whole reports, and here each report counts in part in every cluster"  # why a rule is refused


def merged(before: Mapping[ClientId, T], news: Mapping[ClientId, T]) -> dict[ClientId, T]:
    """The newest value of each client, in client-id order."""
    return dict(sorted({**before, **news}.items()))


def unknown(
    known: Collection[ClientId], asked: Collection[ClientId], view: View
) -> tuple[ClientId, ...]:
    """Those present of whom nothing is known and who were not asked in vain since the last folded round."""
    return tuple(sorted(set(view.present) - set(known) - set(asked)))


def dominant(memberships: Mapping[ClientId, Sequence[float]], client: ClientId) -> int | None:
    """The cluster with the client's largest share, ties to the lowest; None for a stranger."""
    return int(np.argmax(memberships[client])) if client in memberships else None
