"""The work of one order, from its files to its report. It is called wherever orders are worked on: a worker process for devices
and simulated agents, and the tests for their clients.

The memory that belongs to a report is written before the report, and both before the answer.
"""

from __future__ import annotations

import os
import platform
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from covey.agent.policy import SIGNATURES, PolicyError, values_of
from covey.agent.worker.memory_file import (
    DiskBroken,
    MemoryDamaged,
    ResultDoesNotFit,
    StoredMemory,
    save_memory,
    unwritten,
)
from covey.agent.worker.participant import Participant, is_named_by_digest
from covey.agent.worker.process import memory_limited
from covey.agent.worker.without_data import ROWS
from covey.shared import extras
from covey.shared.disclosures import (
    NUMBERS_OF_EVALUATION,
    NUMBERS_OF_TRAINING,
    SUMS,
    Promise,
    cleared,
)
from covey.shared.errors import CoveyError, PublicError
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.own_code.consent import framework_of
from covey.shared.own_code.faults import own_code
from covey.shared.scenario.base import base_vector, check_size
from covey.shared.storage.files import obstacle, write_atomically
from covey.shared.strategies.base import Strategy
from covey.shared.strategies.client_half import LAST_MODEL, ClientState
from covey.shared.strategies.part_local import REST
from covey.shared.strategies.phase_names import EVALUATE, MASKED, MOMENTS, WORDS
from covey.shared.wire.codec import decode_model
from covey.shared.wire.jobs import (
    BadDisk,
    BadMemory,
    BadModel,
    Failure,
    KeepPlace,
    ModelJudgement,
    OrderAnswer,
    Perform,
    Performed,
)
from covey.shared.wire.messages import (
    INITIAL,
    OrderMessage,
    ReportContent,
    Work,
    device_name,
    digest,
    is_base,
)
from covey.shared.work.at_hand import PRIVACY_LEDGER, TOLD, AtHand
from covey.shared.work.evaluate import plain
from covey.shared.work.execute import execute_order, try_order, with_array
from covey.shared.work.judging import forgotten, has_judge, is_last
from covey.shared.work.label_prior import asks_for_prior
from covey.shared.work.order_settings import check_order, layout_of, settings_of
from covey.shared.work.use import serves_own

MAX_LINE = 1000  # characters of an error in an answer or a report


class DamagedModel(Exception):  # noqa: N818 - the service fetches it again
    """The content of a model's file does not match the digest in its name.

    Attributes:
        digest: the digest in the file's name.
    """

    def __init__(self, digest: bytes) -> None:
        super().__init__(digest.hex())
        self.digest = digest


@dataclass(frozen=True, kw_only=True)
class Worked:
    """What came of the work of an order."""

    content: ReportContent
    memory: ClientState  # the very object with which it began if nothing changed
    kept: ModelJudgement | Failure | None = None  # what became of the order's model
    frozen_once: int = 0
    seal: bytes = b""  # of the memory's file; empty: it is as it was
    failed: str = ""  # why there is no result, for the device's own terminal


def perform(job: Perform, who: Participant, *, verbose: bool = False) -> OrderAnswer:
    """Do the work of an order and write its report. The report carries an error in the work to the coordinator.

    Args:
        job: what to do, and where to read and to write.
        who: does it.
        verbose: show the traceback of an error on stderr.
    """
    order = OrderMessage.from_bytes(job.order)
    try:
        done = _with_memory_saved(job, order, who, verbose=verbose)
        report = done.content.packed()
        _write(job.report_out, report, durable=job.durable)
    except MemoryDamaged:
        return BadMemory()
    except DamagedModel as error:
        return BadModel(digest=error.digest)
    except ResultDoesNotFit as error:
        return BadDisk(why=str(error), waits=True)
    except DiskBroken as error:
        return BadDisk(why=str(error), waits=False)
    return Performed(
        digest=digest(report),
        size=len(report),
        examples=done.content.examples,
        memory_digest=done.seal,
        failed=done.failed,
        kept=done.kept,
        frozen_once=done.frozen_once,
    )


def _with_memory_saved(
    job: Perform, order: OrderMessage, who: Participant, *, verbose: bool
) -> Worked:
    """The work, with its memory in its file; an error in it becomes a report that names it.

    Raises:
        DamagedModel, MemoryDamaged: a file that the work needs is damaged.
        ResultDoesNotFit, DiskBroken: the new memory could not be written.
    """
    try:
        with memory_limited(who.rules, who.threads), own_code():
            layout = _accepted(order, who)
            paths = list(job.models)
            named = _work_of(order).models
            base = [_base(paths.pop(), layout)] if named and is_base(named[-1].key) else []
            models = [*who.models(paths, layout, _model), *base]
            memory: ClientState = {}
            if job.memory is not None:
                memory = StoredMemory(job.memory, job.memory_digest)
            done = worked(
                order,
                models,
                memory,
                who,
                keep=job.keep,
                client_state=job.client_state,
                lost=job.lost,
            )
            if done.memory is memory:
                return done
            seal = save_memory(job.memory_out, done.memory, durable=job.durable)
            return replace(done, seal=seal)
    except (MemoryDamaged, DamagedModel, ResultDoesNotFit, DiskBroken):
        raise
    except Exception as error:
        if isinstance(error, OSError) and (why := obstacle(error, job.report_out.parent)):
            raise ResultDoesNotFit(why) from error
        content = ReportContent.failed(order, who.client, one_line(who.public(error)))
        return Worked(content=content, memory={}, failed=explained(error, verbose=verbose))


def worked(
    order: OrderMessage,
    models: Sequence[Vector],
    memory: ClientState,
    who: Participant,
    *,
    keep: KeepPlace | None = None,
    client_state: str = "whole",
    lost: str = "",
) -> Worked:
    """Do the work of an order with these models and this memory.

    If noise or a sum is demanded, no report depends on what goes wrong once the data are read (`without_data`).

    Args:
        order: which `who` accepts.
        models: the vectors (d,) that it names.
        memory: that came with the latest accepted report.
        who: does it.
        keep: where a model for the device's own use goes; None: none is kept.
        client_state: what became of the memory, for the report.
        lost: why the work cannot be done with the data; empty: it can.

    Raises:
        PolicyError: the method has not the noise that this device demands.
        PublicError, DataError: the work cannot be done, or went wrong.
    """
    work = _work_of(order)
    strategy, _ = settings_of(work)
    check_order(strategy, work)
    promises = _promises(who, work, strategy)
    _check_noise(who, work, strategy, promises)
    noise, layout = who.noise(work), layout_of(work)
    stated, _ = who.stated_samples(work) or (None, None)

    def done(at_hand: AtHand, memory: ClientState) -> tuple[ReportContent, ClientState]:
        content, new = execute_order(
            order,
            models,
            at_hand,
            memory,
            client=who.client,
            clock=who.clock,
            noise=noise,
            secure=who.keys(work),
        )
        kind = getattr(at_hand.local, "device", "cpu")  # which the training may have changed
        learner = who.rules.learner
        device = device_name(kind, platform.machine(), framework_of(learner) or learner)
        about: dict[str, Any] = {"client_state": client_state, "device": device}
        if stated is not None and content.vectors.keys().isdisjoint((MASKED, WORDS)):
            about["examples"] = stated
        told, news = memory.get(TOLD), None
        if NUMBERS_OF_TRAINING[SUMS].leaves(promises) and (news := at_hand.sums(told)):
            sums, told = news
            if work.phase != MOMENTS:
                about["numbers"] = {**content.numbers, SUMS: plain(sums)}
        if told is not None and (news or TOLD not in new):
            new = with_array(new, TOLD, told)
        return cleared(content.model_copy(update=about), work.phase, promises), new

    hides = who.rules.hides_failures(work) and not who.ahead
    # what a device keeps was made of its data, and decides no more than these do
    is_begun = LAST_MODEL in memory or REST in memory
    forms: ClientState = {LAST_MODEL: np.zeros(layout.size, np.float32)} if is_begun else {}
    if hides:
        try_order(order, models, who.without_data(work, layout, forms), forms, client=who.client)
    failed, at_hand = "", None
    try:
        if lost:
            raise PublicError(lost)
        at_hand = who.at_hand(work, layout, memory, noise)
        content, new = done(at_hand, memory)
    except Exception as error:
        if not hides or _is_no_secret(error):
            raise
        failed = f"{explained(error)}; the report does not depend on it"
        rows = stated or getattr(at_hand and at_hand.local, "examples", 0)
        at_hand = who.without_data(work, layout, memory, rows=rows or ROWS)
        content, blank = done(at_hand, forms)
        # a next order expects values of its own where this one began them
        new = {**memory, **blank} if blank and not forms else memory
        if (ledger := blank.get(PRIVACY_LEDGER)) is not None:  # the noise is spent
            new = {**new, PRIVACY_LEDGER: ledger}
    kept: ModelJudgement | Failure | None = None
    if keep is not None and not failed:
        judged = new if has_judge(work) else memory
        try:
            keep_of_order = extras.part("in_use", "keep").keep_of_order
            kept = keep_of_order(order, models, at_hand, judged, who, place=keep)
        except Exception as error:  # it must not cost the report
            kept = Failure(why=explained(error))
    if isinstance(kept, ModelJudgement):  # whether a status may have its figure and weights
        kept = replace(kept, tells=NUMBERS_OF_EVALUATION["delivered"].leaves(promises))
    if has_judge(work) and is_last(work):
        new = forgotten(new)
    frozen_once = getattr(at_hand.local, "frozen_once", 0)
    return Worked(content=content, memory=new, kept=kept, frozen_once=frozen_once, failed=failed)


def _is_no_secret(error: Exception) -> bool:
    """Whether the owner's rules or the disk stopped the work, which no cell of the data does."""
    of_disk = isinstance(error, OSError) and obstacle(error, Path())
    return bool(of_disk) or isinstance(
        error, PolicyError | MemoryDamaged | ResultDoesNotFit | DiskBroken
    )


def _work_of(order: OrderMessage) -> Work:
    if order.work is None:
        raise ValueError(f"order {order.step} has no work")
    return order.work


def _accepted(order: OrderMessage, who: Participant) -> Layout:
    """The layout of an order's models. Raises PolicyError if the rules of this device refuse the order."""
    refusal = who.rules.refuses(order, who.client)
    if refusal is not None:
        raise PolicyError(refusal)
    work = _work_of(order)
    settings_of(work)
    values_of(work.layout)  # raises PolicyError before anything is built from a malformed layout
    return layout_of(work)


# -- what the owner demands ------------------------------------------------------------------------


def _check_noise(
    who: Participant, work: Work, strategy: Strategy[Any], promises: set[Promise]
) -> None:
    """Raise PolicyError where this device demands noise, and the method's reports have none; or DP-SGD would not hide all."""
    demand = who.rules.policy.privacy
    method = work.strategy["name"]
    sealed = strategy.facts.sealed
    is_clear = sealed is not None and work.phase in sealed.clear
    if demand.secure_least is not None and not demand.secure_clear and is_clear:
        raise PolicyError(
            "policy of this device: privacy.secure_clear: the coordinator would see what this device is clustered by"
        )
    if Promise.NOISED in promises and asks_for_prior(work):
        raise PolicyError(
            "privacy.local: task.label_prior adds counts of this device's classes without noise; set it to off"
        )
    if (
        demand.local_epsilon is not None
        and work.phase != EVALUATE
        and strategy.privacy.local is None
    ):
        raise PolicyError(
            f"policy of this device: privacy.local_epsilon: {method}'s reports hold more than models of DP-SGD"
        )
    lacks_noise = work.phase in SIGNATURES and work.phase not in strategy.facts.signatures
    if demand.signatures is not None and lacks_noise:
        raise PolicyError(
            f"policy of this device: privacy.signatures: {method} adds no noise in the phase {work.phase}"
        )


def _promises(who: Participant, work: Work, strategy: Strategy[Any]) -> set[Promise]:
    """What keeps fields of the report of this work back: what the owner demands, and what the order promises."""
    policy = who.rules.policy
    found = set(policy.promises)
    if not who.hurries:  # nobody owns a simulated agent
        found.discard(Promise.UNASKED)
    asked = work.privacy or {}
    if asked.get("secure"):
        found.add(Promise.SUMMED)
    if asked.get("local"):
        found.add(Promise.NOISED)
    demand = policy.privacy
    may_be_clear = demand.secure_least is None or demand.secure_clear
    if (
        may_be_clear
        and strategy.facts.sealed is not None
        and work.phase in strategy.facts.sealed.clear
    ):
        found.discard(Promise.SUMMED)
    if Promise.NOISED in found and serves_own(
        strategy, sum(ref.key not in INITIAL for ref in work.models)
    ):
        found.add(Promise.AT_HOME)
    return found


# -- files -----------------------------------------------------------------------------------------


def _base(path: Path, layout: Layout) -> Vector:
    """The values of a base (d,). Raises DamagedModel if the file does not match the digest in its name."""
    check_size(path.stat().st_size, layout)
    return base_vector(model_content(path), layout)


def _model(path: Path, layout: Layout) -> Vector:
    """The model (d,) in a file. Raises DamagedModel if the file does not match the digest in its name."""
    return decode_model(model_content(path), layout, verified=is_named_by_digest(path))


def model_content(path: Path) -> bytes:
    """The content of a model's file. Raises DamagedModel if it does not match the digest in the name."""
    content = path.read_bytes()
    if is_named_by_digest(path) and digest(content).hex() != path.stem:
        raise DamagedModel(bytes.fromhex(path.stem))
    return content


def _write(path: Path, content: bytes | memoryview, *, durable: bool) -> None:
    """Write a file under a temporary name of this process, because another process may still work on the same step.

    Its name becomes durable with the state of the outbox, which lies in the same folder and names it before it is sent.

    Raises:
        ResultDoesNotFit: the disk has no room for it.
        DiskBroken: it cannot be written, and waiting does not help.
    """
    try:
        write_atomically(path, content, durable=durable, mark=str(os.getpid()), name_durable=False)
    except OSError as error:
        raise unwritten(error, path) from error


# -- errors in words -------------------------------------------------------------------------------


def explained(error: Exception, *, verbose: bool = False) -> str:
    """An error in one line for the device's own terminal; verbose: with its traceback on stderr."""
    if verbose:
        traceback.print_exception(error)
    text = str(error) if isinstance(error, CoveyError) else f"{type(error).__name__}: {error}"
    return one_line(text)


def one_line(text: str) -> str:
    """One line of at most MAX_LINE characters."""
    return " ".join(text.split())[:MAX_LINE]
