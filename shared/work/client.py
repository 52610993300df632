"""The client half of a phase: run one order, with its models and the agent's data, and make the report.

The worker of a device and the in-process driver call the same function, `execute_order`, so both produce the same
bytes. Besides the phases of the strategy, a run has two of its own: `MOMENTS` (sums for federated standardisation) and
`EVALUATE`.

The state of a client is a mapping of arrays that it keeps between orders. Its keys belong to the strategy, except:

- `LAST_MODEL`: the model after the latest local training of any phase, for mode E-last. A strategy may read it and may
  set it itself. It takes 4 bytes per value of the model, from the first phase in which the agent trains.
- `ERROR_FEEDBACK` + the name of a vector: what the codec topk has not sent yet. A strategy never sees these keys.
- `PRIVACY_LEDGER`: the training steps with noise so far.
- those of the judge (`judge.MEMORY`), which a strategy never sees either.

Where only a part of the model travels, `part_local` stands between the strategy and the data.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from covey.shared.errors import DecodeError, PublicError
from covey.shared.numerics.figures import (
    Figures,
    answers,
    baseline_figures,
    figures_of,
    kind_of,
    or_diverged,
    weighted_mean,
)
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.privacy.noise import Noise
from covey.shared.privacy.settings import LOCAL, AgentPrivacy, noised
from covey.shared.scenario.base import base_vector
from covey.shared.seeds import generator
from covey.shared.strategies.base import (
    EVALUATE,
    LAST_MODEL,
    MODEL,
    MOMENTS,
    TRAIN,
    ClientState,
    DataSplit,
    Fold,
    Job,
    Local,
    Mixture,
    Report,
    Strategy,
    Training,
    TrainingResult,
    Works,
)
from covey.shared.strategies.bases.hard import ManyModels
from covey.shared.strategies.part_local import PartLocal, initial_rest, of_whole, on_part, tuned
from covey.shared.strategies.phase_names import EXCHANGES, OF_THE_RUN
from covey.shared.wire.codec import WORDS, Codec, decode, encode
from covey.shared.wire.messages import (
    INITIAL,
    Encoded,
    ModelContent,
    OrderMessage,
    ReportContent,
    Work,
    is_base,
)
from covey.shared.work.candidates import BeforeHome, Candidate, Make, made, with_models
from covey.shared.work.judge import MEMORY, Judgement, fleet_of, forgotten, has_judge, only_served
from covey.shared.work.label_prior import Prior, prior_of, served, with_prior
from covey.shared.work.order_settings import check_order, layout_of, settings_of, split_of, task_of

ERROR_FEEDBACK = "codec/"
MOST_WORDS = 1 << 18  # of a message of secure sums
MESSAGES = 2  # of a secure sum, which follow the models of an order to evaluate
PRIVACY_LEDGER = "privacy/ledger"  # rows of (noise multiplier, sampling rate, steps), float64


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


@runtime_checkable
class Measured(Protocol):
    """A `Local` whose data only its own training knows: it gives figures of test data, and not outputs."""

    def figures(self, mixture: Mixture) -> Figures:
        """Figures of a mixture of models on the test part."""


def simulated_noise(work: Work, client: str) -> Noise:
    """The noise of a simulated agent. It protects nothing: anyone who knows the scenario's seed can repeat it."""
    return Noise.simulated(work.seed, "privacy", client, work.round, work.phase)


def shuffle(work: Work, client: str) -> np.random.Generator:
    """The generator of a client's local training in one phase. Every job gets a new one."""
    return generator(work.seed, "shuffle", client, work.round, work.phase)


# -- one order ---------------------------------------------------------------------------------------------------------


def execute_order(
    order: OrderMessage,
    models: Sequence[Vector],
    local: Local,
    client_state: ClientState,
    *,
    client: str,
    clock: Callable[[], float] = time.perf_counter,
    noise: Noise | None = None,
    held_back: Local | None = None,
    folds: Iterable[Fold] = (),
    others: Mapping[str, Make] = MappingProxyType({}),
    budget_s: float | None = None,
    secure: Any = None,
) -> tuple[ReportContent, ClientState]:
    """Run the work of one order.

    Args:
        order: an order with work.
        models: the vectors (d,) of `order.work.models`, in that order.
        local: the agent's data and training.
        client_state: the state after the latest accepted report.
        client: the agent's id.
        clock: seconds, to measure the work.
        noise: hides signatures if the order asks for it; None: noise that cannot be repeated.
        held_back: the samples on which the agent compares models in a vote; None: it abstains.
        folds: the agent's training samples, each time with another part of them as test part; on these it judges what it
            can answer with.
        others: makes further candidates of the samples that train, by name.
        budget_s: seconds for the training at home of the judge; None: as long as it takes.
        secure: a `SecureDevice` for orders with secure sums; None: such orders are refused.

    Returns:
        The report, and the state that replaces `client_state` once the report is accepted: the same object if
        nothing changed.

    Raises:
        PublicError: the training diverged, or the order's settings are invalid, or have something without a meaning.
        ValueError: the order has no work.
    """
    work = order.work
    if work is None:
        raise ValueError(f"order {order.step} of run {order.run} has no work")
    strategy, training = settings_of(work)
    check_order(strategy, work)
    job, local, prior = _job(
        work,
        client,
        models,
        training=training,
        local=local,
        client_state=client_state,
        held_back=held_back,
    )
    started = clock()
    worker: Works = strategy
    judging = None
    if has_judge(work):
        prepared = (replace(fold, local=with_prior(fold.local, prior)) for fold in folds)
        judging = _Judging(prepared, others, budget_s, clock)
    if (work.privacy or {}).get("secure") and (job.phase not in OF_THE_RUN or _is_summed(work)):
        if secure is None:
            raise PublicError("secure sums: this agent has no keys for them")
        evaluate = partial(_evaluated, strategy, work=work, judging=judging)
        from covey.shared.strategies.secured.agent import OnDevice

        worker = OnDevice(strategy, secure, work, models, evaluate)
    elif _is_summed(work):
        raise PublicError("an order to evaluate asks for a vector without secure sums")
    report, state = _run_phase(
        strategy,
        worker,
        job,
        local=local,
        client_state=client_state,
        work=work,
        noise=noise,
        judging=judging,
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
        numbers=_plain(report.numbers),
        seconds=seconds,
        vectors=vectors,
    )
    if unsent:
        state = {**state, **unsent}
    return content, state


def _job(
    work: Work,
    client: str,
    models: Sequence[Vector],
    *,
    training: Training,
    local: Local,
    client_state: ClientState,
    held_back: Local | None = None,
    for_use: bool = False,
) -> tuple[Job, Local, tuple[slice, Prior] | None]:
    """The order as the strategy gets it, the data that it trains on (whole models, or the part that travels), and the label
    prior that they have. `for_use`: without the messages of a secure sum."""
    split = split_of(work)
    layout = layout_of(work)
    prior = prior_of(work, local, layout)
    local = with_prior(local, prior)
    held_back = held_back and with_prior(held_back, prior)
    if split is not None and work.phase != MOMENTS:
        brought = {
            ref.key.partition(".")[0]: one for ref, one in zip(work.models, models, strict=True)
        }
        own = initial_rest(split, {key: brought[key] for key in INITIAL if key in brought})
        models = models[: len(models) - sum(key in brought for key in INITIAL)]
        local = on_part(local, split, client_state, own, client)
        if held_back is not None:
            held_back = on_part(held_back, split, client_state, own, client)
        layout = split.shared
    if for_use and _is_summed(work):
        models = models[:-MESSAGES]
    job = Job(
        phase=work.phase,
        round=work.round,
        client=client,
        seed=work.seed,
        models=tuple(models),
        numbers=work.numbers,
        cluster=work.cluster,
        layout=layout,
        training=training,
        held_back=held_back,
        split=split,
    )
    return job, local, prior


def _is_summed(work: Work) -> bool:
    """Whether the figures of an evaluation are the vector of a secure sum."""
    return work.phase == EVALUATE and bool(work.sizes)


@dataclass(frozen=True)
class _Judging:
    """What the judge on an agent needs besides the order."""

    folds: Iterable[Fold]
    others: Mapping[str, Make]
    budget_s: float | None
    clock: Callable[[], float]


def _run_phase(
    strategy: Strategy[Any],
    worker: Works,
    job: Job,
    *,
    local: Local,
    client_state: ClientState,
    work: Work,
    noise: Noise | None,
    judging: _Judging | None,
) -> tuple[Report, ClientState]:
    if job.phase == MOMENTS:
        if not isinstance(local, Surveyed):
            raise PublicError("the statistics of a fleet need data that can be summed")
        return Report({}, local.examples, local.statistics()), client_state
    if job.phase == EVALUATE and not _is_summed(work):
        return _evaluated(strategy, job, local, client_state, work=work, judging=judging)
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


# -- phases of the strategy --------------------------------------------------------------------------------------------


class _TrainingRecorder:
    """A `Local` that remembers the result of its latest local training and passes every call on."""

    def __init__(self, local: Local) -> None:
        self._local = local
        self.trained: Vector | None = None  # (d,); None before the first training
        self.is_idle = False  # trainings were asked for, and none of them made a step
        self._steps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._local, name)

    def train(self, start: Vector, *arguments: Any, **options: Any) -> TrainingResult:
        result = self._local.train(start, *arguments, **options)
        self.trained = result.end
        self._steps += result.steps
        asks = options.get("epochs") != 0 and options.get("steps") != 0
        self.is_idle = not self._steps and (asks or self.is_idle)
        return result


def _train(
    worker: Works, job: Job, local: Local, before: ClientState, *, track: bool
) -> tuple[Report, ClientState]:
    """The strategy's own work, and the model for mode E-last. `track`: measure that model too."""
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


def seen_by_methods(state: ClientState) -> ClientState:
    """What a strategy sees of the state."""
    visible = [key for key in state if not key.startswith((ERROR_FEEDBACK, MEMORY))]
    if len(visible) == len(state):
        return state  # not a copy: arrays on the disk are read only if the strategy wants them
    return {key: state[key] for key in visible}


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


# -- phases of the run -------------------------------------------------------------------------------------------------


def _evaluated(
    strategy: Strategy[Any],
    job: Job,
    local: Local,
    client_state: ClientState,
    *,
    work: Work,
    judging: _Judging | None,
) -> tuple[Report, ClientState]:
    """The report of an evaluation, and the client state after it."""
    if judging is None:
        return _evaluate(strategy, job, local, client_state, work=work), client_state
    return _judged(strategy, job, local, client_state=client_state, work=work, judging=judging)


def _evaluate(
    strategy: Strategy[Any], job: Job, local: Local, client_state: ClientState, *, work: Work
) -> Report:
    """Figures in the modes E-server, E-tuned and E-last, and those of the baseline."""
    evaluation = work.evaluation
    mixture = _served(strategy, job, local, client_state)
    on_whole = of_whole(local)
    numbers: dict[str, Any] = {"server": measure(mixture, on_whole)}
    epochs = int(evaluation.get("tune_epochs", 0))
    if epochs > 0:
        numbers["tuned"] = measure(tuned(on_whole, mixture, epochs, job.split), on_whole)
    if LAST_MODEL in client_state:
        numbers["last"] = measure(((1.0, client_state[LAST_MODEL]),), on_whole)
    if numbers["server"]["n"] and not isinstance(on_whole, Measured):
        numbers["baseline"] = baseline_figures(local.targets("train"), local.targets("test"))
    return Report({}, local.examples, numbers)


def _judged(
    strategy: Strategy[Any],
    job: Job,
    local: Local,
    *,
    client_state: ClientState,
    work: Work,
    judging: _Judging,
) -> tuple[Report, ClientState]:
    """The same of the last evaluation, with what the agent answers with from then on."""
    mixture = _served(strategy, job, local, client_state)
    on_whole = of_whole(local)
    if isinstance(on_whole, Measured) or work.task.get("anomalies") is not None:
        report = _evaluate(strategy, job, local, client_state, work=work)
        return replace(report, numbers=only_served(report.numbers)), client_state
    given = BeforeHome(mixture, task_of(work).outputs, split=job.split, others=judging.others)
    fleet, state = fleet_of(work.numbers), client_state
    known = Judgement.of_memory(client_state, mixture)
    candidates: Mapping[str, Candidate] = {}
    if known is None:
        report = _evaluate(strategy, job, local, client_state, work=work)
        known, candidates = Judgement.made(
            on_whole,
            given,
            judging.folds,
            _plain(report.numbers),
            measure=str(work.task.get("measure") or ""),
            budget_s=judging.budget_s,
            clock=judging.clock,
        )
        state = {**forgotten(client_state), **known.to_memory()}
    choice = known.choice_after(work)
    if not candidates:
        candidates = made(on_whole, given, known.snapshots, choice.weights)
    return Report({}, local.examples, known.numbers(choice, candidates, fleet, on_whole)), state


def serves_own(strategy: Strategy[Any]) -> bool:
    """Whether an agent is served by more than the models of its order: one that it keeps, or one that its data chooses."""
    return type(strategy).personal not in (Strategy.personal, ManyModels.personal)


def _served(strategy: Strategy[Any], job: Job, local: Local, client_state: ClientState) -> Mixture:
    """The mixture of whole models that the order of an evaluation serves the agent."""
    visible = seen_by_methods(client_state)
    if not isinstance(local, PartLocal):
        return strategy.personal(job, local, visible)
    return local.whole_mixture(strategy.personal(job, cast(Local, local), local.seen(visible)))


def measure(mixture: Mixture, local: Local) -> Figures:
    """Figures of a mixture of models on the test part; {"n": 0} without test data, no figures if it diverged."""
    if isinstance(local, Measured):
        return or_diverged(local.figures(mixture))
    truth = local.targets("test")
    if not len(truth):
        return {"n": 0}
    with np.errstate(all="ignore"):  # outputs that are not finite are reported as such
        return or_diverged(figures_of(truth, _outputs(mixture, local)))


def _outputs(mixture: Mixture, local: Local, split: DataSplit = "test") -> npt.NDArray[np.float64]:
    """The answers on a part of the data (n, ...)."""
    kind = kind_of(local.targets(split))
    return weighted_mean(
        [weight for weight, _ in mixture],
        [answers(local.predict(model, split), kind) for _, model in mixture],
    )


def model_for_use(
    order: OrderMessage,
    models: Sequence[Vector],
    local: Local,
    client_state: ClientState,
    *,
    client: str,
) -> Mixture | None:
    """The model that the agent can use for predictions after an order, as mode E-server would; None if it has none.

    An order of an evaluation gives the agent what the method serves it. An order to train names the same model if the
    method keeps no part of it on the agent and the order has no choice of models; a model without any training is of
    no use.

    Args:
        order: an order with work.
        models: the vectors (d,) of `order.work.models`, in that order.
        local: the agent's data and training.
        client_state: the state that the work began with.
        client: the agent's id.
    """
    work = order.work
    if work is None:
        return None
    strategy, training = settings_of(work)
    job, local, prior = _job(
        work,
        client,
        models,
        training=training,
        local=local,
        client_state=client_state,
        for_use=True,
    )
    if work.phase == EVALUATE:
        return served(_served(strategy, job, local, client_state), prior)
    is_trained = work.phase == TRAIN and work.round > 0
    if serves_own(strategy) or not is_trained or len(job.models) != 1:
        return None
    model = job.models[0]
    if model.size != job.layout.size:
        return None
    if not isinstance(local, PartLocal):
        return served(((1.0, model),), prior)
    if local.split.keeps and LAST_MODEL not in client_state:
        return None  # what the agent keeps has not trained yet
    return served(local.whole_mixture(((1.0, model),)), prior)


def candidates_for_use(
    order: OrderMessage,
    models: Sequence[Vector],
    local: Local,
    client_state: ClientState,
    *,
    client: str,
    others: Mapping[str, Make] = MappingProxyType({}),
) -> tuple[Mapping[str, float], dict[str, Candidate]]:
    """What the judge of an agent has chosen, the weights and the candidates by name; empty if it has judged nothing.

    Args:
        order, models, local, client, others: as `execute_order` takes them.
        client_state: the state that replaces the one with which the work began.
    """
    work = order.work
    if work is None or not has_judge(work):
        return {}, {}
    strategy, training = settings_of(work)
    job, local, prior = _job(
        work,
        client,
        models,
        training=training,
        local=local,
        client_state=client_state,
        for_use=True,
    )
    mixture = _served(strategy, job, local, client_state)
    known = Judgement.of_memory(client_state, mixture)
    if known is None:
        return {}, {}
    uses = known.choice_after(work).weights
    given = BeforeHome(mixture, task_of(work).outputs, split=job.split, others=others)
    found = made(of_whole(local), given, known.snapshots, uses)
    return uses, {
        name: with_models(one, partial(served, found=prior)) for name, one in found.items()
    }


# -- onto the wire -----------------------------------------------------------------------------------------------------


def encode_model(
    vector: Vector, layout_digest: str, codec: Codec, rng: np.random.Generator
) -> bytes:
    """A model (d,), or a part of one, as the content of a model topic."""
    encoded, _ = encode(vector, codec, base=None, base_digest=b"", error=None, rng=rng)
    return ModelContent(layout=layout_digest, vector=encoded).to_bytes()


def decode_named(key: str, content: bytes, layout: Layout) -> Vector:
    """The vector that an order names by a key: as `decode_model`, and (d,) of a base, which is a file as it is."""
    return base_vector(content, layout) if is_base(key) else decode_model(content, layout)


def decode_model(content: bytes, layout: Layout, *, verified: bool = False) -> Vector:
    """The model (d,) in the content of a model topic, or the part of one that a method sends.

    Args:
        content: as it travelled.
        layout: of the whole model.
        verified: the caller has compared the digest of the content.

    Raises:
        DecodeError: the content has another layout or more values than the layout, or is damaged.
    """
    message = ModelContent.from_bytes(content, verified=verified)
    if message.layout != layout.digest:
        raise DecodeError(
            "layout", f"the model has layout {message.layout}, expected {layout.digest}"
        )
    most = max(layout.size, MOST_WORDS) if message.vector.codec == WORDS else layout.size
    return decode(message.vector, length=-most)


def _encode_vectors(
    report: Report, job: Job, work: Work, client_state: ClientState
) -> tuple[dict[str, Encoded], dict[str, Vector]]:
    """The encoded vectors by name, and what topk has not sent of them, by key of the client state."""
    codec = Codec.from_wire(work.codec)
    vectors: dict[str, Encoded] = {}
    unsent: dict[str, Vector] = {}
    for name, vector in sorted(report.vectors.items()):
        if not np.isfinite(vector).all():
            raise PublicError(
                f"{job.client}: the training diverged: {name!r} is not finite; lower training.lr"
            )
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


def _plain(value: Any) -> Any:
    """Numpy's numbers and arrays as Python's own, which msgpack accepts."""
    match value:
        case np.ndarray() | np.generic():
            return value.tolist()
        case Mapping():
            return {key: _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
    return value
