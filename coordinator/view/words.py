"""Parts of a run's state in a few words, for people: agents, faults, bytes, the privacy account."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_SINGLY = 12  # more clusters than these do not fit a line one by one
MINUTE_S = 60
HOUR_S = 3600
MODE_TITLES = {  # in the order of tables
    "server": "served",
    "delivered": "in use",
    "tuned": "fine-tuned",
    "last": "own last",
}
KINDS = {"client": "client-level", "signatures": "signatures", "local": "example-level"}


@dataclass(frozen=True)
class FleetCounts:
    """How many agents there are of each kind."""

    known: int = 0
    here: int = 0  # take part
    busy: int = 0
    offline: int = 0
    excluded: int = 0
    quarantined: int = 0
    silent: int = 0  # or failing: not invited for some rounds
    expected: int = 0  # that the run waits for at its start
    took_part: int = 0  # in a run that is over and had no broker


@dataclass(frozen=True)
class FaultCounts:
    """What went wrong in the run so far."""

    missing: int = 0  # reports that never came
    void: int = 0  # attempts that came to nothing
    set_aside: int = 0  # reports that made a fold fail
    quarantined: int = 0  # times that an agent was put in quarantine
    failed: int = 0  # agents whose newest report holds no work
    refused: int = 0  # messages that broke a rule


def epsilons(account: Mapping[str, Any] | None) -> str:
    """Epsilon at delta for each kind of privacy that an account has; empty without an account."""
    if not account:
        return ""
    shown = []
    for kind, name in KINDS.items():
        bound = _bound(account.get(kind))
        if bound:
            shown.append(f"{name} {bound}")
    return "; ".join(shown)


def _bound(of_kind: Any) -> str:
    """One kind's epsilon; empty without an account, or for one that makes no sense (a broker may have sent it)."""
    if not isinstance(of_kind, Mapping):
        return ""
    match of_kind.get("epsilon"), of_kind.get("delta"):
        case None, _:
            return "no bound"
        case int() | float() as epsilon, int() | float() as delta:
            return f"ε {epsilon:.2f} at δ {delta:g}"
    return ""


def fleet_words(fleet: FleetCounts) -> str:
    """How many agents are here, and why others are not."""
    if fleet.took_part:
        return f"{fleet.took_part} took part"
    here = f"{fleet.here} of {max(fleet.known, fleet.expected)} are here"
    others = away_words(fleet)
    return f"{here}, {others}" if others else here


def away_words(fleet: FleetCounts) -> str:
    """How many agents do not take part, by reason; empty if all do."""
    counts = {
        "offline": fleet.offline,
        "excluded": fleet.excluded,
        "in quarantine": fleet.quarantined,
        "silent or failing": fleet.silent,
    }
    return _listed(counts)


def _listed(counts: Mapping[str, int]) -> str:
    """The kinds that occur, with their numbers."""
    return ", ".join([f"{count} {kind}" for kind, count in counts.items() if count])


def faults_words(faults: FaultCounts) -> str:
    """The kinds of faults that happened, with their numbers."""
    counts = {
        "missing reports": faults.missing,
        "void attempts": faults.void,
        "reports set aside": faults.set_aside,
        "quarantines": faults.quarantined,
        "agents failed": faults.failed,
    }
    return _listed(counts) or "none"


def trouble_words(faults: FaultCounts) -> str:
    """The faults besides missing reports, for little room."""
    counts = {"void": faults.void, "set aside": faults.set_aside, "failed": faults.failed}
    return _listed(counts) or "no step was repeated"


def bytes_text(count: float) -> str:
    """A number of bytes in the unit that suits it."""
    amount = count
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} GB"


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


def duration_text(seconds: float) -> str:
    """About how long, in one unit: "40 s", "12 min", "3.5 h"."""
    if seconds < 1.5 * MINUTE_S:
        return f"{max(round(seconds), 1)} s"
    if seconds < 1.5 * HOUR_S:
        return f"{round(seconds / MINUTE_S)} min"
    return f"{seconds / HOUR_S:.1f} h"
