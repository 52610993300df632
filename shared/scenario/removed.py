"""Keys that scenarios had once, and what to use instead. A file that still has one is refused with that advice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from covey.shared.scenario.yaml_source import Path

# By dots. A key of a method is `method.NAME.key`, also in a comparison; one of a partition rule is `partition.NAME.key`.
REMOVED: dict[str, str] = {
    "aggregation.clip.norm": "a step is shortened to a multiple of the usual one: set times_median",
    "aggregation.eps": "the geometric median stops at a change of 1e-4; leave it out",
    "aggregation.iterations": "the geometric median takes at most 50 iterations; leave it out",
    "aggregation.max_samples.absolute": "a claim is capped at a multiple of the usual one: set times_median",
    "compare.methods.local_last": "lower rounds.count and raise evaluation.tune_epochs in a scenario of its own",
    "fleet.durations.per": "each order has a time of its own; leave it out",
    "partition.by_group.test_share": "set fleet.test_share",
    "rounds.absence_s": "moved to rounds.timing.absence_s",
    "rounds.first_work_s": "moved to rounds.timing.first_work_s",
    "rounds.refill": "the slot of an agent that disconnects always goes to another one; leave it out",
    "rounds.rollcall_s": "moved to rounds.timing.rollcall_s",
    "rounds.start_wait_s": "moved to rounds.timing.start_wait_s",
    "rounds.void_limit": "moved to rounds.timing.void_limit",
    "task.model.adapters.train_a": "A has the same values on all agents and does not train; leave it out",
}

# sections whose `name` chooses what other keys they have
NAMED = {
    ("strategy",): "method",
    ("compare", "methods"): "method",
    ("compare", "methods", "strategy"): "method",
    ("fleet", "partition"): "partition",
    ("compare", "partitions"): "partition",
    ("compare", "partitions", "partition"): "partition",
}


def advice_on(path: Path, data: Any) -> str:
    """What to use instead of the key at a path; empty if no scenario has ever had it.

    Args:
        path: of a key that no section has today.
        data: the whole scenario, as its file has it.
    """
    return next((REMOVED[name] for name in _names(path, data) if name in REMOVED), "")


def _names(path: Path, data: Any) -> Iterator[str]:
    """The names in the table that a key may have."""
    words = [str(key) for key in path if not isinstance(key, int)]
    yield ".".join(words)
    for depth, key in enumerate(path):
        data = data[key]
        kind = NAMED.get(tuple(word for word in path[: depth + 1] if not isinstance(word, int)))
        if kind is not None and isinstance(data, dict) and "name" in data:
            below = [str(word) for word in path[depth + 1 :]]
            yield ".".join([kind, str(data["name"]), *below])
