"""Partial sums of the open step: checked, kept on disk, and counted as the reports that they are made of.

An aggregator near a broker checks the reports of its agents, adds them up, and sends one sum per cluster with what else
the reports hold. Here this is compared with what the coordinator knows: the step, whom it invited, and what each report
counts for. A sum cannot be taken apart. If the fold turns out to need a report itself, or a sum does not fit, the step
becomes `direct`: its sums are forgotten, and its agents are asked for their reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from covey.coordinator.checks import check_peaks, checked_numbers
from covey.coordinator.disk.spool import Circumstances, Spool, SummedReport, SummedVectors
from covey.coordinator.engine.step import Step, order_of
from covey.coordinator.fold.folding import Arrived, Folding
from covey.shared.errors import DecodeError, UserError
from covey.shared.numerics.accumulator import Accumulator
from covey.shared.numerics.vectors import peaks
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import ClientId
from covey.shared.strategies.client_half import Report
from covey.shared.strategies.reading import is_whole
from covey.shared.strategies.sums import Terms
from covey.shared.wire.aggregates import PartialSum
from covey.shared.wire.messages import digest

WRONG: Final = "partial sum"  # the reason of a refusal


def check_aggregators(scenario: Scenario) -> None:
    """Raises UserError for a scenario whose reports cannot be added up on their way to the coordinator."""
    why = _needs_single_reports(scenario)
    if why:
        raise UserError(
            f"--aggregators: {why}, so the coordinator needs every report itself; omit --aggregators, or change that setting"
        )


def _needs_single_reports(scenario: Scenario) -> str:
    """Why a run cannot use aggregators; empty if it can."""
    strategy = scenario.strategy
    aggregation = scenario.aggregation
    if scenario.rounds.mode == "buffered":
        return "rounds.mode buffered compares each report with the version of the model that it started from"
    if strategy.facts.individual:
        return f"the rounds of strategy {strategy.name} are more than weighted means"
    if scenario.privacy is not None and not scenario.privacy.adds_up:
        return "the privacy section clips and counts single reports"
    if aggregation.average.single:
        return f"aggregation.rule {aggregation.rule} compares single reports"
    if aggregation.clips:
        return "aggregation.clip shortens single reports"
    if scenario.sketch:
        return "records.sketch stores a projection of each report"
    return ""


@dataclass(frozen=True)
class AggregatorAgents:
    """What the coordinator knows of the agents of one aggregator."""

    lives: Callable[[ClientId], bool]  # may this agent's reports come from the aggregator's broker?
    samples: Callable[[ClientId], int | None]  # training samples of an agent's status, if known


def is_summable(scenario: Scenario, step: Step, state: Any, keys: Sequence[str]) -> bool:
    """Whether the reports of a step may come as sums. `keys` are those of the models that its orders name."""
    phase = step.phase
    if min(phase.sizes.values(), default=1) < 1:
        return False  # an agent may choose the length
    has_own_models = any(key.startswith("@") for key in keys)
    if has_own_models and scenario.wire.delta:
        return False  # the aggregator would need the models of all agents
    if not phase.sizes:
        return True
    method = scenario.method
    return not any(
        is_whole(method, order_of(method, state, phase, client, step.asked))
        for client in step.cohort
    )


def count_sum(folding: Folding, spool: Spool, partial: PartialSum, state: Any) -> None:
    """Count a partial sum as the reports that it is made of. Raises DecodeError, and counts nothing, if it does not fit."""
    held: list[SummedReport] = []
    norms: dict[ClientId, Mapping[str, float]] = {}
    for summed in partial.reports:
        report = Report(
            vectors=SummedVectors(folding.phase.sizes),
            examples=summed.examples,
            numbers=checked_numbers(folding.phase, summed, folding.scenario),
            steps=summed.steps,
            loss=summed.loss,
        )
        about = (summed.seconds, summed.client_state, summed.device, summed.digest.hex())
        held.append((summed.client, report, Circumstances(*about)))
        norms[summed.client] = summed.norms
    sums = Accumulator.from_bytes(partial.sums)
    if not folding.is_added_up:
        raise DecodeError(WRONG, f"step {folding.number} is folded from single reports")
    arrived: dict[ClientId, Arrived] = {}
    for client, report, _ in held:
        arrived[client] = folding.seen(client, report, state, norms[client])
        if arrived[client].is_whole:
            raise DecodeError(WRONG, f"the fold needs the report of {client} itself")
    check_sums([one.terms for one in arrived.values()], folding.phase.sizes, sums)
    folding.merge(arrived, sums)
    spool.hold(folding.number, held)


def check_sums(reports: Sequence[Terms], sizes: Mapping[str, int], sums: Accumulator) -> None:
    """Compare sums with the terms of the reports that they are said to be of, whose vectors have these lengths.

    Raises:
        DecodeError: ("partial sum") number, length or weight under a key is another one, or a mean has implausible values.
            Nothing else of a sum can be known by others than its maker.
    """
    counts: dict[str, int] = {}
    weights: dict[str, Fraction] = {}
    lengths: dict[str, int] = {}
    for term in [term for terms in reports for term in terms]:
        counts[term.key] = counts.get(term.key, 0) + 1
        weights[term.key] = weights.get(term.key, Fraction(0)) + Fraction(term.weight)
        lengths[term.key] = term.size(sizes)
    if set(sums.keys) != counts.keys():
        seen = f"it has the groups {list(sums.keys)}, expected {sorted(counts)}"
        raise DecodeError(WRONG, seen)
    for key, number in counts.items():
        found = (sums.count(key), sums.exact_weight(key), sums.size(key))
        if found != (number, weights[key], lengths[key]):
            raise DecodeError(WRONG, f"the sum of {key} is not one of the {number} reports with it")
        if weights[key] > 0:
            check_peaks(key, peaks(sums.mean(key)))


def restore_sums(folding: Folding, spool: Spool, state: Any) -> None:
    """Count the sums that an earlier process accepted. If that fails, their agents are asked again."""
    try:
        for content_digest, content in sums_in(spool, folding.number).items():
            count_sum(folding, spool, PartialSum.from_bytes(content), state)
            folding.settled.append(content_digest)
    except DecodeError:
        folding.give_up()
        folding.is_direct = True


def clients_of(spool: Spool, step: int) -> list[ClientId]:
    """The agents whose reports are in the sums of a step that an earlier process accepted."""
    clients: list[ClientId] = []
    for content in sums_in(spool, step).values():
        clients += [report.client for report in PartialSum.from_bytes(content).reports]
    return clients


def sums_in(spool: Spool, step: int) -> dict[bytes, bytes]:
    """The sums of a step by their digests. A damaged one is removed and named in `spool.damaged`."""
    found: dict[bytes, bytes] = {}
    for path in spool.sum_files(step):
        content = path.read_bytes()
        content_digest = digest(content)
        if path.stem == content_digest.hex():
            found[content_digest] = content
            continue
        path.unlink()
        spool.damaged.append(f"{path}: the partial sum is damaged; its agents are asked again")
    return found
