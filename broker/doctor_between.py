"""Do several addresses lead to one broker? Tests what crosses from each to each."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from covey.broker.doctor import BrokerCheck
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.mqtt.crossing import UNSHARED, Crossing, crossing

CHECK = "between the addresses"
ONE_WAY = "agents hear the coordinator or it hears them, not both; bridge covey/# in both directions, or in none"
AGAIN = "a node may be down or starting; examine them again"


@dataclass(frozen=True)
class Between:
    """The relation of several addresses to each other."""

    findings: list[BrokerCheck]
    groups: list[list[str]]  # addresses that lead to one broker, or to bridged ones


async def examine_between(
    urls: Sequence[BrokerUrl], *, patience_s: float = 5.0, federation: str = ""
) -> Between:
    """Test all pairs of addresses at once. It leaves nothing behind.

    Args:
        urls: at least two, which can be reached.
        patience_s: a message that has not crossed after this time (s) never does.
        federation: of the user; empty: any.
    """
    base = f"covey/{federation}/" if federation else "covey/"
    prefix = f"{base}doctor-{uuid.uuid4().hex[:8]}"
    count = len(urls)
    arrows = [(start, end) for start in range(count) for end in range(count) if start != end]
    tests = [
        crossing(urls[start], urls[end], f"{prefix}/{start}-{end}", patience_s)
        for start, end in arrows
    ]
    seen = await asyncio.gather(*tests)
    return judged([str(url) for url in urls], dict(zip(arrows, seen, strict=True)))


def judged(names: Sequence[str], crossings: dict[tuple[int, int], Crossing]) -> Between:
    """What the crossings mean.

    Args:
        names: the addresses, for people.
        crossings: by the numbers of two addresses, from and to; every pair in both directions.
    """
    findings: list[BrokerCheck] = []
    groups: list[list[int]] = []
    for number in range(len(names)):
        own = [group for group in groups if crossings[group[0], number] is not Crossing.NOTHING]
        if own:
            own[0].append(number)
        else:
            groups.append([number])
    for start in range(len(names)):
        for end in range(start + 1, len(names)):
            findings += _faults(names, crossings, start, end)
    named = [[names[number] for number in group] for group in groups]
    if not findings:
        findings.append(_summary(named))
    return Between(findings, named)


def _faults(
    names: Sequence[str], crossings: dict[tuple[int, int], Crossing], start: int, end: int
) -> list[BrokerCheck]:
    pair = f"{names[start]} and {names[end]}"
    both = {crossings[start, end], crossings[end, start]}
    if Crossing.UNKNOWN in both:
        return [BrokerCheck(CHECK, "missing", f"{pair}: {Crossing.UNKNOWN.value}", AGAIN)]
    if Crossing.LIVE in both:
        return [BrokerCheck(CHECK, "missing", f"{pair}: {Crossing.LIVE.value}", UNSHARED)]
    if len(both) == 2:
        return [
            BrokerCheck(CHECK, "missing", f"{pair}: messages cross in one direction only", ONE_WAY)
        ]
    return []


def _summary(groups: Sequence[Sequence[str]]) -> BrokerCheck:
    addresses = sum(len(group) for group in groups)
    if len(groups) == 1:
        return BrokerCheck(
            CHECK,
            "ok",
            f"one broker, or bridged ones: all {addresses} addresses share live and retained messages",
            "agents may use any of them; give all of them to `coordinator run --cluster`",
        )
    if len(groups) == addresses:
        return BrokerCheck(
            CHECK,
            "ok",
            f"{addresses} independent brokers (shards): nothing crosses",
            "list all of them under `brokers` in the scenario, and enroll each agent at one",
        )
    sets = "; ".join(" = ".join(group) for group in groups)
    return BrokerCheck(
        CHECK,
        "ok",
        f"{len(groups)} independent brokers (shards), some with several addresses: {sets}",
        "list one address of each under `brokers` in the scenario",
    )
