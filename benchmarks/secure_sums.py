"""What secure sums cost next to plain ones: bytes of an agent, processor seconds of an agent, the coordinator, an aggregator.

    python -m benchmarks.secure_sums [--out benchmarks/results/secure_sums.json] [--table]

One group of each fleet is measured, in the pure machines of both sides: each member joins, one in ten vanishes after the
list, and t members answer. Three agents mask a vector of full length; the other vectors are zeros, which take the
coordinator as long. Groups have at most 128 members. The plain side is a model down and up in float32, and the
coordinator's exact sum of the same number of reports. An aggregator checks the digest of each masked vector and adds it up,
which the coordinator does without one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from benchmarks.measuring import foreign_load, record_options, resumed
from covey.extras.secure import coordinator as co
from covey.extras.secure.agent_state import MakeMasked, SendAnswer, SendJoin, SendMasked
from covey.extras.secure.integers import Integers, add_masks, digest_of
from covey.extras.secure.messages import Introduction, Terms
from covey.extras.secure.parameters import USUAL_GROUP, groups
from covey.extras.secure.tests.group import Device, Site, devices, terms_of
from covey.shared.numerics.accumulator import Accumulator
from covey.shared.numerics.vectors import Vector

T = TypeVar("T")
SAMPLE = 3  # agents that are measured
MISSING = 0.1
CASES = [(agents, values) for values in (44_426, 11_000_000) for agents in (10, 100, 500)]


@dataclass(frozen=True)
class Cell:
    agents: int
    values: int

    @property
    def key(self) -> str:
        return f"{self.agents} agents, {self.values} values"


class Timer:
    """Processor seconds of what it calls."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        began = time.process_time()
        try:
            return function(*arguments, **named)
        finally:
            self.seconds += time.process_time() - began


def measured(cell: Cell) -> dict[str, Any]:
    names = [f"{i}" for i in range(cell.agents)]
    drawn = groups(names, USUAL_GROUP)
    count = max(map(len, drawn))
    with foreign_load() as foreign:
        found = of_group(count, cell.values)
    plain = 2 * 4 * cell.values
    return {
        "groups": len(drawn),
        "members": count,
        **found,
        "coordinator_s": found["coordinator_s"] * len(drawn),
        "aggregator_s": summing_seconds(cell.agents, masked(cell.values), digest_of),
        "plain_coordinator_s": summing_seconds(cell.agents, plain_vector(cell.values)),
        "bytes": plain + found["added_bytes"],
        "ratio_of_bytes": (plain + found["added_bytes"]) / plain,
        **foreign,
    }


def of_group(count: int, values: int) -> dict[str, Any]:
    members = sorted(devices(count), key=lambda member: member.name)
    device, server = Timer(), Timer()
    terms: Terms = terms_of(members, vectors={"model": values})
    here = Site(members, terms)
    zeros = np.zeros(terms.length, np.uint32)
    total = zeros.copy()
    sent = {"box": len(shown_by(members[0])), "terms": len(here.content)}
    for place, member in enumerate(members, start=1):
        timed = device if place <= SAMPLE else Timer()
        [join] = timed(member.join, here.content, here.begun)
        assert isinstance(join, SendJoin)
        sent["join"] = len(join.content)
        server(here.receive, [join], place)
    server(lambda: here.take(here.machine.joins_closed(here.state)))
    sent["list"], sent["inbox"] = len(here.state.listing), len(here.inbox(1))
    for place in here.state.listed[: count - round(MISSING * count)]:
        member, is_sampled = members[place - 1], place <= SAMPLE
        timed = device if is_sampled else Timer()
        head, vector = timed(report_of, member, here, zeros, is_sampled)
        sent["head"] = len(head)
        server(add_report, here, head, vector, total)
    server(lambda: here.take(here.machine.reports_closed(here.state, count, is_last_call=True)))
    sent["unmask"] = len(here.state.unmask)
    for place in here.state.reported:
        timed = device if place <= SAMPLE else Timer()
        [answer] = timed(members[place - 1].unmask, here.state.unmask)
        assert isinstance(answer, SendAnswer)
        sent["answer"] = len(answer.content)
        server(here.receive, [answer], place)
    assert isinstance(here.end, co.Opened)
    server(add_masks, total, here.end.streams)
    return {
        "missing": count - len(here.state.reported),
        "device_s": device.seconds / SAMPLE,
        "coordinator_s": server.seconds,
        "messages_bytes": sent,
        "added_bytes": sum(sent.values()) + 4 * 2,
    }


def shown_by(member: Device) -> bytes:
    """What an agent sends before a sum."""
    assert member.box is not None
    return Introduction(
        entry=member.machine.entry, box=member.box, start=bytes(32), expelled=b""
    ).to_bytes()


def report_of(
    member: Device, here: Site, zeros: Integers, is_sampled: bool
) -> tuple[bytes, Integers]:
    """The head and the masked vector of a report; without masks for an agent that is not measured."""
    machine, digest = member.machine, digest_of(zeros) if is_sampled else bytes(32)
    state = machine.made(member.state, here.begun.digest, digest, here.terms.scale).state
    inbox = here.inbox(here.members.index(member) + 1)
    step = machine.listed(state, here.state.listing, inbox)
    [mask] = [effect for effect in step.then if isinstance(effect, MakeMasked)]
    vector = zeros.copy() if is_sampled else zeros
    if is_sampled:
        add_masks(vector, mask.streams)
    last = machine.masked(step.state, mask.terms, digest_of(vector) if is_sampled else bytes(32))
    member.state = last.state
    [report] = [effect for effect in last.then if isinstance(effect, SendMasked)]
    return report.content, vector


def add_report(here: Site, head: bytes, vector: Integers, total: Integers) -> None:
    digest_of(vector)
    here.take(here.machine.reported(here.state, head))
    np.add(total, vector, out=total)


def plain_vector(values: int) -> Vector:
    return np.random.default_rng(0).normal(0, 0.1, values).astype(np.float32)


def masked(values: int) -> Integers:
    return np.random.default_rng(0).integers(0, 2**32, values, dtype=np.uint32)


def summing_seconds(agents: int, vector: Any, check: Callable[[Any], object] = len) -> float:
    """Processor seconds of the exact sum of that number of reports, each checked; measured with ten, if there are more."""
    sums, timer, times = Accumulator(), Timer(), min(agents, 10)
    sums.add("0", vector, 10.0)  # the first one makes the sum's arrays
    for _ in range(times):
        timer(check, vector)
        timer(sums.add, "0", vector, 10.0)
    return timer.seconds * agents / times


def main() -> None:
    out = Path("benchmarks/results/secure_sums.json")
    options = record_options(__doc__, out, ()).parse_args()
    cells = [Cell(*case) for case in CASES]
    found = resumed(
        options,
        {cell.key: partial(measured, cell) for cell in cells},
        {"missing": MISSING, "sample": SAMPLE},
    )
    for key, one in found.items():
        print(
            f"{key}: {one['device_s']:.3g} s at an agent, {one['coordinator_s']:.3g} s at the coordinator "
            f"({one['plain_coordinator_s']:.3g} s without), {one['aggregator_s']:.3g} s at aggregators, "
            f"{one['ratio_of_bytes']:.2f} x the bytes"
        )


if __name__ == "__main__":
    main()
