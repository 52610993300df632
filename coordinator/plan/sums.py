"""What secure sums add to the phases of a run: messages, bytes, seconds, and the chance that too few members are left.

Sizes are those of messages made of zeros. Seconds were measured on one core of a server; a Raspberry Pi 4 takes about eight
times as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from covey.coordinator.plan.cost import PhaseCost
from covey.coordinator.plan.prices import AGENT, Prices
from covey.shared.privacy.settings import SecureSettings
from covey.shared.secure import messages
from covey.shared.secure.parameters import Group, group_of
from covey.shared.strategies.base import MODEL, Numbers, Report, Strategy

GONE = (0.1, 0.2, 0.3)  # shares of members
CHECKED_S = 0.75e-3  # for each other member: signatures, cells and keys of one sum
MASKED_S = 1.5e-9  # for each value of one mask
WORD = 4  # bytes
EXCHANGES = 4  # an order and a report each: box, join, report, answer
KEY, SIGNATURE, SECONDS = bytes(32), bytes(64), 1 << 30
ENTRY = messages.Entry(
    federation="covey",
    agent=AGENT,
    serial=1,
    key=KEY,
    since=SECONDS,
    until=SECONDS,
    signature=SIGNATURE,
)


@dataclass(frozen=True)
class SumsPlan:
    """The sums of a round."""

    groups: int
    members: int  # of the largest group
    threshold: int  # that must answer
    messages: int  # of each agent, both ways, without parts
    device_s: float  # of each agent, besides its training
    coordinator_s: float  # without drop-outs
    void: Mapping[str, float]  # chance that too few are left, by the share of members that are gone

    def rows(self) -> list[tuple[str, str]]:
        """Label and text of each line of a table."""
        size = f"{self.groups} of up to {self.members} agents, of whom {self.threshold} must answer"
        work = f"{self.device_s:.2g} s at a device, {self.coordinator_s:.2g} s at the coordinator"
        chances = ", ".join(
            f"{chance:.2g} if {gone} are gone" for gone, chance in self.void.items()
        )
        return [
            ("secure sums, a round", f"{size}; {self.messages} messages of an agent; {work}"),
            ("chance of a void", chances),
        ]


def sums_of_round(
    settings: SecureSettings, agents: int, clusters: int, values: int, exchanges: int
) -> SumsPlan | None:
    """The sums of a round, with clusters of equal size; None for clusters that are too small for a sum.

    Args:
        settings: of the scenario.
        agents: in a round.
        clusters: that they are in.
        values: length of an update.
        exchanges: phases of the round whose updates are summed.
    """
    of_cluster = -(-agents // clusters)
    groups = -(-of_cluster // settings.group)
    try:
        group = _group(settings, -(-of_cluster // groups))
    except ValueError:
        return None
    mask_s = MASKED_S * values
    count = groups * clusters
    return SumsPlan(
        groups=count,
        members=group.members,
        threshold=group.threshold,
        messages=exchanges * 2 * EXCHANGES,
        device_s=exchanges * group.members * (CHECKED_S + mask_s),
        coordinator_s=exchanges * count * group.members * (CHECKED_S + mask_s),
        void={f"{gone:.0%}": group.void_chance(gone) for gone in GONE},
    )


def _group(settings: SecureSettings, members: int) -> Group:
    return group_of(members, settings.colluders, settings.threshold, settings.least)


def has_updates(strategy: Strategy[Any], phase: PhaseCost) -> bool:
    """Whether agents send updates in a phase, which are summed under masks."""
    clear = () if strategy.sealed is None else strategy.sealed.clear
    return phase.up_values > 0 and phase.name not in clear


def with_sums(phase: PhaseCost, sums: SumsPlan, prices: Prices) -> list[PhaseCost]:
    """The phases of a sum around one in which agents send updates."""
    n = sums.members
    box = messages.Box(number=1, key=KEY, signature=SIGNATURE)
    member = messages.Member.of(ENTRY, box)
    terms = messages.Terms(
        federation="covey",
        run="run",
        step=1,
        sum=bytes(16),
        cluster="0",
        number=0,
        start=KEY,
        vectors={MODEL: 1 << 20},
        clip=1.0,
        cap=1,
        levels=1,
        deviation=0.0,
        multiplier=0.0,
        threshold=sums.threshold,
        colluders=0,
        least=sums.threshold,
        seconds=1.0,
        members=[member] * n,
    )
    row = messages.ListRow(place=n, mask_key=KEY, commitment=KEY, signature=SIGNATURE)
    answered = messages.UnmaskRow(place=n, signature=SIGNATURE)
    cells = bytes(messages.PAIR_BYTES * (n - 1))
    join = messages.Join(
        terms=KEY, place=n, mask_key=KEY, seed=KEY, cells=cells, signature=SIGNATURE
    )
    head = messages.ReportHead(
        terms=KEY, listing=KEY, place=n, vector=KEY, lacking=[], row=SIGNATURE, signature=SIGNATURE
    )
    answer = messages.Answer(
        unmask=KEY, place=n, keys=bytes(32 * (n - 1)), share=bytes(33), signature=SIGNATURE
    )
    inbox = messages.CellInbox(listing=KEY, cells=cells)
    listing = messages.JoinList(terms=KEY, rows=[row] * n)
    unmask = messages.UnmaskList(listing=KEY, rows=[answered] * n)

    def sent(numbers: Numbers | None = None, **sizes: int) -> int:
        vectors = {name: np.broadcast_to(np.float32(0), (size,)) for name, size in sizes.items()}
        return prices.report(Report(vectors, examples=1, numbers=numbers or {}), None)

    def published(size: int) -> int:
        return prices.model("secure-0-unmask", _words(size))

    def step(name: str, shared: int, up: int) -> PhaseCost:
        return replace(
            phase,
            name=name,
            down_bytes=shared,
            up_bytes=up,
            down_values=0,
            up_values=0,
            published_bytes=shared * sums.groups,
            idle_bytes=0,
            ends_round=False,
        )

    lists, own = published(len(listing.to_bytes())), published(len(inbox.to_bytes()))
    masked = replace(
        phase,
        down_bytes=phase.down_bytes + lists + own,
        up_bytes=sent(
            {"head": [1 << 31] * _words(len(head.to_bytes()))}, masked=phase.up_values + 2
        ),
        published_bytes=phase.published_bytes + lists * sums.groups + own * phase.invited,
        ends_round=False,
    )
    shown = messages.Introduction(entry=ENTRY, box=box, start=bytes(32), expelled=b"")
    answers = step(
        "secure-unmask",
        published(len(unmask.to_bytes())),
        sent(secure=_words(len(answer.to_bytes()))),
    )
    return [
        step("secure-box", 0, sent(secure=_words(len(shown.to_bytes())))),
        step(
            "secure-join",
            published(len(terms.to_bytes())),
            sent(secure=_words(len(join.to_bytes()))),
        ),
        masked,
        replace(answers, ends_round=phase.ends_round),
    ]


def _words(size: int) -> int:
    """Integers of four bytes in a message, with its length."""
    return 1 + -(-size // WORD)
