"""The client half of a phase: run one order, with its models and the agent's data, and make the report.

Besides the phases of the strategy, a run has two of its own: `MOMENTS` (sums for federated standardisation) and `EVALUATE`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from covey.shared import extras
from covey.shared.candidate_names import JUDGE, MEMORY
from covey.shared.errors import PublicError
from covey.shared.numerics.vectors import Vector
from covey.shared.privacy.settings import LOCAL, AgentPrivacy, Noise, noised
from covey.shared.seeds import generator
from covey.shared.strategies.base import EVALUATE, MODEL, Strategy
from covey.shared.strategies.client_half import (
    AS_ORDERED,
    LAST_MODEL,
    ClientState,
    Drill,
    Job,
    Local,
    Report,
    TrainingResult,
    Works,
    check_finite,
)
from covey.shared.strategies.part_local import PartLocal
from covey.shared.strategies.phase_names import EXCHANGES, MOMENTS, OF_THE_RUN
from covey.shared.wire.codec import Codec, encode
from covey.shared.wire.messages import INITIAL, Encoded, OrderMessage, ReportContent, Work
from covey.shared.work.at_hand import (
    ERROR_FEEDBACK,
    PRIVACY_LEDGER,
    AtHand,
    prepared,
    seen_by_methods,
)
from covey.shared.work.evaluate import evaluated, is_summed, measure, plain
from covey.shared.work.judging import Judge, forgotten, has_judge
from covey.shared.work.order_settings import settings_of

if TYPE_CHECKING:
    from covey.extras.secure.on_device import SecureDevice


Evaluate = Callable[[Job, Local, ClientState], tuple[Report, ClientState]]

MESSAGES = 2  # of a sum, after the models of the order of a masked report


@runtime_checkable
class Surveyed(Protocol):
    """Data that has all the statistics which a task asks the fleet for."""

    def statistics(self) -> Mapping[str, Any]:
        """The numbers of the report of phase `moments`."""


@runtime_checkable
class Private(Protocol):
    """A `Local` that trains with DP-SGD and keeps an account of it."""

    @property
    def ledger(self) -> npt.NDArray[np.float64] | None:
        """Rows of (noise multiplier, sampling rate, steps) of the whole run; None if it trains without noise."""

    def spent(self) -> float:
        """Epsilon of the ledger at the order's delta."""


def execute_order(
    order: OrderMessage,
    models: Sequence[Vector],
    at_hand: AtHand,
    client_state: ClientState,
    *,
    client: str,
    clock: Callable[[], float] = time.perf_counter,
    noise: Noise | None = None,
    secure: SecureDevice | None = None,
) -> tuple[ReportContent, ClientState]:
    """Run the work of one order.

    Args:
        order: an order with work.
        models: the vectors (d,) of `order.work.models`, in that order.
        at_hand: the agent's data, and all that it needs besides.
        client_state: the state after the latest accepted report.
        client: the agent's id.
        clock: seconds, to measure the work.
        noise: hides signatures if the order asks for it; None: noise that cannot be repeated.
        secure: for orders with secure sums; None: such orders are refused.

    Returns:
        The report, and the state that replaces `client_state` once the report is accepted: the same object if
        nothing changed.

    Raises:
        PublicError: the training diverged, or the order's settings are invalid.
        ValueError: the order has no work.
    """
    work = order.work
    if work is None:
        raise ValueError(f"order {order.step} of run {order.run} has no work")
    strategy, _ = settings_of(work)
    job, local, prior = prepared(work, models, at_hand, client_state, client=client)
    started = clock()
    evaluate: Evaluate = partial(evaluated, strategy, work=work)
    if has_judge(work):
        on_device = extras.part("judge", "on_device", f"numbers.{JUDGE}")
        judge: Judge = at_hand.judge or on_device.OnDevice()
        evaluate = partial(judge.evaluated, strategy, work=work, prior=prior, clock=clock)
    worker: Works = strategy
    if (work.privacy or {}).get("secure") and (job.phase not in OF_THE_RUN or is_summed(work)):
        if secure is None:
            raise PublicError("secure sums: this agent has no keys for them")
        OnDevice = extras.part("secure", "on_device").OnDevice

        worker = OnDevice(strategy, secure, work, models, evaluate)
    elif is_summed(work):
        raise PublicError("an order to evaluate asks for a vector without secure sums")
    report, state = _run_phase(
        strategy,
        worker,
        job,
        local=local,
        client_state=client_state,
        work=work,
        noise=noise,
        evaluate=evaluate,
    )
    seconds = clock() - started
    vectors, unsent = _encode_vectors(report, job, work, client_state)
    content = ReportContent(
        run=order.run,
        step=order.step,
        work=work.digest,
        client=client,
        examples=report.examples,
        steps=report.steps,
        loss=_finite_loss(report.loss, client),
        numbers=plain(report.numbers),
        seconds=seconds,
        vectors=vectors,
    )
    if unsent:
        state = {**state, **unsent}
    return content, state


def try_order(
    order: OrderMessage,
    models: Sequence[Vector],
    at_hand: AtHand,
    client_state: ClientState,
    *,
    client: str,
) -> None:
    """Do the work of an order without its sums, and forget what comes of it. Arguments and errors are those of `execute_order`.

    An order in which messages are exchanged needs no data.
    """
    work = order.work
    if work is None or work.phase in EXCHANGES:
        return
    strategy, _ = settings_of(work)
    privacy = dict(work.privacy or {})
    sealed = strategy.facts.sealed
    is_masked = privacy.pop("secure", None) and work.sizes and work.phase != MOMENTS
    if is_masked and not (sealed and work.phase in sealed.clear):
        own = sum(ref.key not in INITIAL for ref in work.models)
        if own < MESSAGES:
            return  # the sum refuses it
        told = slice(own - MESSAGES, own)
        refs, models = list(work.models), list(models)
        del refs[told], models[told]
        work = work.model_copy(update={"models": refs})
    sizes = {} if work.phase == EVALUATE else work.sizes
    plain_work = work.model_copy(update={"privacy": privacy or None, "sizes": sizes})
    without_sums = order.model_copy(update={"work": plain_work})
    execute_order(without_sums, models, at_hand, client_state, client=client)


def _run_phase(
    strategy: Strategy[Any],
    worker: Works,
    job: Job,
    *,
    local: Local,
    client_state: ClientState,
    work: Work,
    noise: Noise | None,
    evaluate: Evaluate,
) -> tuple[Report, ClientState]:
    if job.phase == MOMENTS:
        if not isinstance(local, Surveyed):
            raise PublicError("the statistics of a fleet need data that can be summed")
        return Report({}, local.examples, local.statistics()), client_state
    if job.phase == EVALUATE and not is_summed(work):
        return evaluate(job, local, client_state)
    if job.phase == EVALUATE:  # of its state what the judge keeps is new
        report, after = worker.work(job, local, client_state)
        kept = {key: after[key] for key in after if key.startswith(MEMORY)}
        return report, {**forgotten(client_state), **kept} if kept else client_state
    if job.phase in EXCHANGES:  # they leave nothing of the order with the agent
        return worker.work(job, local, client_state)[0], client_state
    track = bool(work.evaluation.get("track"))
    report, state = _train(worker, job, local, client_state, track=track)
    report = _with_signature_noise(strategy, job, report, work, noise or Noise.secret())
    return _with_privacy_account(local, report, state)


class _TrainingRecorder:
    """A `Local` that remembers the result of its latest local training and passes every call on."""

    def __init__(self, local: Local) -> None:
        self._local = local
        self.trained: Vector | None = None  # (d,); None before the first training
        self.is_idle = False  # trainings were asked for, and none of them made a step
        self._steps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._local, name)

    def train(self, start: Vector, drill: Drill = AS_ORDERED) -> TrainingResult:
        result = self._local.train(start, drill)
        self.trained = result.end
        self._steps += result.steps
        asks = drill.epochs != 0 and drill.steps != 0
        self.is_idle = not self._steps and (asks or self.is_idle)
        return result


def _train(
    worker: Works, job: Job, local: Local, before: ClientState, *, track: bool
) -> tuple[Report, ClientState]:
    """The strategy's own work, and the model for mode `last`. `track`: measure that model too."""
    if not isinstance(local, PartLocal):
        return _train_on(worker, job, local, before, track=track)
    seen = local.seen(before)
    report, state = _train_on(worker, job, cast(Local, local), seen, track=track)
    return report, local.stored(state, seen, before)


def _train_on(
    worker: Works, job: Job, local: Local, before: ClientState, *, track: bool
) -> tuple[Report, ClientState]:
    visible = seen_by_methods(before)
    recorder = _TrainingRecorder(local)
    report, state = worker.work(job, cast(Local, recorder), visible)
    if recorder.is_idle and job.training.epochs:
        raise PublicError(
            "the training made no step: this device has a single sample, on which task.model cannot train alone (batch norm has no "
            "variance then); give the device more data, or use a model without batch norm"
        )
    if state is visible:
        state = before  # nothing changed: keep the object, so that nothing is stored again
    set_by_strategy = state is not before and _differs(LAST_MODEL, state, before)
    trained = _trained_model(job, report, recorder)
    if trained is not None and not set_by_strategy:
        state = with_array(state, LAST_MODEL, trained)
    if track and _differs(LAST_MODEL, state, before):
        figures = measure(((1.0, state[LAST_MODEL]),), local)
        report = replace(report, numbers={**report.numbers, "track": figures})
    return report, _with_error_feedback(state, before)


def _differs(key: str, state: ClientState, before: ClientState) -> bool:
    """Whether the array of this key was set since."""
    return state.get(key) is not before.get(key)


def with_array(state: ClientState, key: str, array: Vector) -> ClientState:
    """The state with another array in the place of this key. The old one is not read: it may still lie on the disk."""
    changed = {name: array if name == key else state[name] for name in state}
    changed[key] = array
    return changed


def _trained_model(job: Job, report: Report, recorder: _TrainingRecorder) -> Vector | None:
    """The whole model (d,) that a phase's local training produced; None if it trained none.

    A whole model in the report comes first: a method that trains several models (Ditto) sends the one that stands for
    the phase, and a method that makes its own steps (Per-FedAvg) never calls `train`. A signature is only a part of a
    model; then the latest training counts.
    """
    sent = report.vectors.get(MODEL)
    if sent is not None and sent.size == job.layout.size:
        return sent
    return recorder.trained


def _with_error_feedback(state: ClientState, before: ClientState) -> ClientState:
    """Keep what is still unsent of vectors that this phase does not send."""
    unsent = {
        key: before[key] for key in before if key.startswith(ERROR_FEEDBACK) and key not in state
    }
    if not unsent:
        return state
    return {**state, **unsent}


def _with_signature_noise(
    strategy: Strategy[Any], job: Job, report: Report, work: Work, noise: Noise
) -> Report:
    """The report with noise on its signature, if it is one and the order asks for noise."""
    settings = AgentPrivacy.from_wire(work.privacy).signatures
    if settings is None or job.phase not in strategy.facts.signatures:
        return report
    facet = strategy.privacy
    framed = facet.framed(job, report) if facet.framed else replace(report, numbers={})
    [(name, vector)] = framed.vectors.items()
    assert facet.signature_base is not None  # noqa: S101 - a method with such phases has one
    signature = noised(vector, facet.signature_base(job, vector), settings, noise)
    # the number of steps and the loss depend on the data too, and have no noise: they are not sent
    return replace(framed, vectors={name: signature}, steps=0, loss=0.0)


def _with_privacy_account(
    local: Local, report: Report, state: ClientState
) -> tuple[Report, ClientState]:
    """After DP-SGD, report epsilon and nothing else about the data, and store the ledger."""
    if not isinstance(local, Private) or local.ledger is None:
        return report, state
    private_report = replace(report, numbers={LOCAL: local.spent()}, steps=0, loss=0.0)
    return private_report, {**state, PRIVACY_LEDGER: local.ledger}


def _encode_vectors(
    report: Report, job: Job, work: Work, client_state: ClientState
) -> tuple[dict[str, Encoded], dict[str, Vector]]:
    """The encoded vectors by name, and what topk has not sent of them, by key of the client state."""
    codec = Codec.from_wire(work.codec)
    vectors: dict[str, Encoded] = {}
    unsent: dict[str, Vector] = {}
    check_finite(report, job.client)
    for name, vector in sorted(report.vectors.items()):
        key = ERROR_FEEDBACK + name
        base, base_digest = _base_of(report, name, job, work)
        vectors[name], left = encode(
            vector,
            codec,
            base=base,
            base_digest=base_digest,
            error=client_state.get(key),
            rng=generator(work.seed, "codec", job.client, work.round, work.phase, name),
        )
        if left is not None:
            unsent[key] = left
    return vectors, unsent


def _base_of(report: Report, name: str, job: Job, work: Work) -> tuple[Vector | None, bytes]:
    """The model that a reported vector may be a difference to, and its digest."""
    index = report.bases.get(name)
    if index is None:
        return None, b""
    return job.models[index], work.models[index].digest


def _finite_loss(loss: float, client: str) -> float:
    if not math.isfinite(loss):
        raise PublicError(
            f"{client}: the training diverged: its mean loss is {loss}; lower training.lr"
        )
    return float(loss)
