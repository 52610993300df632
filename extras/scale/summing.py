"""What an aggregator does with the reports of one step: check, fold, offer. Pure: time is an argument, in seconds.

A report is checked exactly as the coordinator would check it, and then added to the exact sum of its cluster; it is not
kept. A sum is offered as soon as no other report is awaited, or a short time after its first report. It is offered again until
the coordinator's order settles it. Nothing is lost with this process but time: an agent sends its report again until the
coordinator, which has the sum on its disk then, accepts it.

The open step as an aggregator needs it, read from the coordinator's task.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covey.coordinator.checks import read_report
from covey.coordinator.disk.checkpoint import Checkpoint
from covey.coordinator.engine.step import phase_from_json
from covey.coordinator.fold import limits
from covey.coordinator.processes.launch import setup_of
from covey.shared.errors import DecodeError
from covey.shared.numerics.accumulator import Accumulator
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.own_code.consent import AllowedCode
from covey.shared.scenario.code import check_code
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import ClientId, Phase
from covey.shared.strategies.client_half import Report
from covey.shared.strategies.reading import is_whole
from covey.shared.strategies.sums import Terms, count
from covey.shared.wire.aggregates import (
    AggregatorOrder,
    AggregatorTask,
    FailedReport,
    PartialSum,
    RefusedReport,
    SummedReport,
)
from covey.shared.wire.codec import decode_model
from covey.shared.wire.messages import ReportContent, digest


@dataclass(frozen=True)
class OpenStep:
    """What checking and adding up the reports of one step takes."""

    run: str
    number: int
    scenario: Scenario
    phase: Phase
    state: Any  # the strategy's, with arrays mapped from a folder
    layout: Layout
    bases: Mapping[str, bytes]  # encoded models by digest in hexadecimal digits

    def base(self, wanted: bytes) -> Vector:
        """The model with this digest, as agents see it. Raises DecodeError where no order names it."""
        content = self.bases.get(wanted.hex())
        if content is None:
            raise DecodeError("no base", f"no model of this step has digest {wanted.hex()}")
        return decode_model(content, self.layout)


def read_task(task: AggregatorTask, folder: Path, allowed: AllowedCode) -> OpenStep:
    """The step that a task describes.

    Args:
        task: from the coordinator.
        folder: empty; arrays of the state are mapped from it.
        allowed: code of a user's own that this command line allows.

    Raises:
        ConsentError: the scenario names code that is not allowed here.
        UserError: the state is damaged.
        ValueError: something in the task is not what a coordinator of this version sends.
    """
    scenario = Scenario.model_validate(json.loads(task.scenario))
    check_code(scenario, allowed)
    strategy = scenario.method
    layout = Layout.from_wire(task.layout)
    # only the kind of the state matters here, so any models will do
    zeros = [np.zeros(layout.size, np.float32)] * strategy.starts
    fresh = strategy.init(setup_of(scenario, zeros, layout))
    checkpoint = Checkpoint(folder)
    checkpoint.import_state(task.state, task.arrays)
    return OpenStep(
        run=task.run,
        number=task.step,
        scenario=scenario,
        phase=phase_from_json(json.loads(task.phase)),
        state=checkpoint.state(fresh),
        layout=layout,
        bases=task.bases,
    )


HOLD_S = 2.0  # how long a report waits for others
MAX_OTHERS = 1000  # refusals, and reports that were not asked for, in one message
MAX_TEXT = 400  # characters of a refusal


class Summing:
    """The sums of the open step.

    Args:
        session: of this process.
        hold_s: how long the first report of a sum waits for others.
    """

    def __init__(self, session: str, hold_s: float = HOLD_S) -> None:
        self.session = session
        self.step: OpenStep | None = None
        self._run = ""  # of the newest step
        self.number = 0  # of the newest step
        self.sent = ""  # what the newest message holds, in words
        self._hold_s = hold_s
        self._serial = 0  # of the newest message
        self._samples: Mapping[ClientId, int | None] = {}  # of the agents that are awaited
        self._answered: set[ClientId] = set()  # whose report is in a sum, failed or was refused
        self._counted: set[ClientId] = set()  # those of them whose report is in a sum
        self._unable = ""  # why the step needs single reports
        self._distances: limits.Distances | None = None  # of the open step
        self._offered: dict[bytes, bytes] = {}  # messages of the step, by digest
        self._settled: Collection[bytes] = ()  # digests of those that the coordinator has
        self._clear()

    def __repr__(self) -> str:
        return f"<Summing of step {self.number}: {len(self._counted)} reports counted>"

    def _clear(self) -> None:
        """Begin another sum."""
        self._sums = Accumulator()
        self._reports: list[SummedReport] = []
        self._failures: list[FailedReport] = []
        self._refusals: list[RefusedReport] = []
        self._ignored: set[ClientId] = set()
        self._first_at: float | None = None  # when the first of these came

    # -- what the coordinator asks for -------------------------------------------------------------

    def begin(self, step: OpenStep | None) -> None:
        """Add up the reports of another step, or of none."""
        self.step = step
        if step is not None:
            self._run = step.run
            self.number = step.number
        self._samples = {}
        self._answered = set()
        self._counted = set()
        self._unable = ""
        self._distances = None
        if step is not None:
            self._distances = limits.Distances(step.scenario.method)
        self._offered = {}
        self._settled = ()
        self._clear()

    def decline(self, run: str, number: int, why: str, now: float) -> None:
        """A step that cannot be read here is left to the coordinator."""
        self.begin(None)
        self._run = run
        self.number = number
        self.give_up(why, now)

    def follow(self, order: AggregatorOrder) -> None:
        """Take over who is awaited in the open step, and which sums are settled.

        A coordinator that was put back to an earlier state has lost sums that were settled before: they are offered again.
        """
        self._samples = dict(order.agents)
        self._settled = frozenset(order.settled)

    def give_up(self, why: str, now: float) -> None:
        """This step needs single reports: forget what was added up, and let the coordinator know."""
        self._clear()
        self._counted = set()
        self._unable = why[:MAX_TEXT]
        self._first_at = now

    # -- what agents send --------------------------------------------------------------------------

    def expects(self, client: ClientId, now: float) -> bool:
        """Whether a report of this agent is of use. One that was not asked for is counted, and the coordinator answers it."""
        if self.step is None or self._unable or client in self._counted:
            return False
        if client in self._samples:
            return True
        if len(self._ignored) < MAX_OTHERS:
            self._ignored.add(client)
            self._touch(now)
        return False

    def accept(
        self, client: ClientId, content: bytes, now: float, content_digest: bytes = b""
    ) -> None:
        """Check a whole report of an agent, and add it up or note why not.

        `content_digest` is the digest of the content if the caller has compared it already.
        """
        if not self.expects(client, now):
            return
        self._touch(now)
        try:
            self._accept(client, content, content_digest or digest(content), now)
        except DecodeError as error:
            self.refuse(client, error, now)

    def refuse(self, client: ClientId, error: DecodeError, now: float) -> None:
        """Note a refusal for the coordinator, which counts it against the agent."""
        if self.step is None or len(self._refusals) >= MAX_OTHERS:
            return
        self._touch(now)
        self._answered.add(client)
        refused = RefusedReport(client=client, reason=error.reason, detail=error.detail[:MAX_TEXT])
        self._refusals.append(refused)

    def _accept(self, client: ClientId, content: bytes, content_digest: bytes, now: float) -> None:
        step = self.step
        assert step is not None  # noqa: S101 - the caller has looked at it
        report = ReportContent.from_bytes(content, verified=True)
        if report.run != step.run:
            raise DecodeError("other run", f"report of run {report.run}, this is {step.run}")
        if report.client != client:
            raise DecodeError("other sender", f"report of {report.client} came from {client}")
        if report.step != step.number:
            self._ignored.add(client)
            return
        if report.failure is not None:
            self._answered.add(client)
            self._failures.append(FailedReport(client=client, why=report.failure))
            return
        checked = read_report(
            report, step.phase, step.scenario, train_samples=self._samples[client], base=step.base
        )
        try:
            self._fold(step, client, report, checked, content_digest)
        except Exception as error:  # the coordinator's own fold finds out who is to blame
            self.give_up(f"{type(error).__name__}: {error}", now)

    def _fold(
        self,
        step: OpenStep,
        client: ClientId,
        content: ReportContent,
        report: Report,
        content_digest: bytes,
    ) -> None:
        """Add a checked report up. Raises ValueError where the fold needs the report itself."""
        terms, norms = self._seen(step, client, report)
        count(self._sums, terms, report.vectors)
        summed = SummedReport(
            client=client,
            digest=content_digest,
            work=content.work,
            examples=content.examples,
            steps=content.steps,
            loss=content.loss,
            numbers=content.numbers,
            seconds=content.seconds,
            client_state=content.client_state,
            device=content.device,
            norms=norms,
        )
        self._reports.append(summed)
        self._counted.add(client)
        self._answered.add(client)

    def _seen(
        self, step: OpenStep, client: ClientId, report: Report
    ) -> tuple[Terms, dict[str, float]]:
        """The report's terms, and how far its vectors lie from their models, where the scenario limits that."""
        phase, state = step.phase, step.state
        if not phase.sizes:
            return (), {}
        strategy = step.scenario.method
        order = strategy.order(state, phase, client)
        if is_whole(strategy, order):
            raise ValueError("the fold compares single reports")
        terms = strategy.terms(state, phase, client, report)
        if not limits.are_measured(step.scenario, phase):
            return terms, {}
        assert self._distances is not None  # noqa: S101 - a step is open
        steps = self._distances.of(state, phase, client, report=report, order=order, terms=terms)
        return terms, {one.name: one.norm for one in steps}

    def _touch(self, now: float) -> None:
        if self._first_at is None:
            self._first_at = now

    # -- what the coordinator gets -----------------------------------------------------------------

    @property
    def unsettled(self) -> list[bytes]:
        """Messages that were offered and not settled, in their order."""
        return [content for name, content in self._offered.items() if name not in self._settled]

    @property
    def wake_at(self) -> float | None:
        """When the next message is due; None: nothing waits."""
        if self._first_at is None:
            return None
        if self._unable or self._samples.keys() <= self._answered:
            return self._first_at
        return self._first_at + self._hold_s

    def take(self, now: float) -> bytes | None:
        """The next message, once it is due. It is offered until it is settled."""
        due = self.wake_at
        if due is None or now < due:
            return None
        self._serial += 1
        partial = PartialSum(
            run=self._run,
            step=self.number,
            session=self.session,
            serial=self._serial,
            reports=self._reports,
            failures=self._failures,
            refusals=self._refusals,
            ignored=sorted(self._ignored),
            unable=self._unable,
            sums=self._sums.to_bytes() if self._reports else b"",
        )
        content = partial.to_bytes()
        self._offered[digest(content)] = content
        self.sent = self._in_words()
        self._clear()
        return content

    def _in_words(self) -> str:
        """What the present message holds, for people."""
        if self._unable:
            return f"no sum: {self._unable}"
        count = len(self._reports)
        refused = len(self._refusals)
        return f"the sum of {count} reports ({len(self._failures)} failures, {refused} refusals)"
