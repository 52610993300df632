"""The client half around a strategy: an order and its models in, a report and the new client state out.

The worker of a device and the in-process driver call the same function, so that both make the same bytes.
Besides the phases of the strategy it knows those of the run: "moments" (federated standardisation) and "evaluate".

Keys of its own in a client's state: "held", the model after the latest local training of any phase (mode E-last), which a strategy
may read and may set itself; and "codec/<vector>", what topk still owes, which it never sees.
"held" costs an agent 4 bytes per value of the model, from the first phase in which it trains.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter, ValidationError

from covey.shared.errors import DecodeError, PublicError
from covey.shared.numerics.metrics import accuracy, macro_f1
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.privacy.noise import Noise
from covey.shared.privacy.settings import LOCAL, AgentPrivacy, noised
from covey.shared.seeds import generator
from covey.shared.strategies.base import (
    LAST_MODEL,
    MODEL,
    ClientState,
    Job,
    Local,
    Mixture,
    Report,
    Strategy,
    Training,
    TrainingResult,
)
from covey.shared.strategies.registry import AnyStrategy
from covey.shared.wire.codec import Codec, decode, encode
from covey.shared.wire.messages import Encoded, ModelContent, OrderMessage, ReportContent, Work

ERROR_FEEDBACK = "codec/"
PRIVACY_LEDGER = "privacy/ledger"  # client state: what DP-SGD has done so far, a row per kind of step (noise multiplier, rate, steps)

_strategy: TypeAdapter[Strategy[Any]] = TypeAdapter(AnyStrategy)


class Sums(Protocol):
    """Per channel (channels,): number of values, their sum, the sum of their squares."""

    @property
    def count(self) -> npt.NDArray[np.float64]: ...
    @property
    def total(self) -> npt.NDArray[np.float64]: ...
    @property
    def square(self) -> npt.NDArray[np.float64]: ...


@runtime_checkable
class Measured(Protocol):
    """A `Local` that can be summed per channel, for federated standardisation."""

    def moments(self) -> Sums:
        """Sums over the training features."""


@runtime_checkable
class Private(Protocol):
    """A `Local` that trains with DP-SGD and keeps an account of it."""

    @property
    def ledger(self) -> npt.NDArray[np.float64] | None:
        """Rows of (noise multiplier, sampling rate, steps) of the whole run; None where it trains without noise."""

    def spent(self) -> float:
        """Epsilon of the ledger at the order's delta."""


def simulated_noise(work: Work, client: str) -> Noise:
    """The noise of a simulated agent: anyone who knows the scenario's seed can repeat it."""
    return Noise.simulated(work.seed, "privacy", client, work.round, work.phase)


def shuffle(work: Work, client: str) -> np.random.Generator:
    """The generator of a client's local training in one phase: made anew for each job."""
    return generator(work.seed, "shuffle", client, work.round, work.phase)


def execute_order(
    order: OrderMessage,
    models: Sequence[Vector],
    local: Local,
    client_state: ClientState,
    *,
    client: str,
    clock: Callable[[], float] = time.perf_counter,
    noise: Noise | None = None,
) -> tuple[ReportContent, ClientState]:
    """Do what the order says. `models` (d,) are those of `order.work.models`, in its order.

    `noise` hides signatures where the order asks for it; None: noise that nobody can repeat.
    The returned state replaces the old one once the report is accepted; it is `client_state` itself where nothing is
    new. Raises PublicError where the training
    diverged, ValueError for an order without work.
    """
    work = order.work
    if work is None:
        raise ValueError(f"order {order.step} of run {order.run} has no work")
    strategy, training = settings_of(work)
    job = Job(
        phase=work.phase,
        round=work.round,
        client=client,
        seed=work.seed,
        models=tuple(models),
        numbers=work.numbers,
        cluster=work.cluster,
        layout=Layout.from_wire(work.layout),
        training=training,
    )
    began = clock()
    match work.phase:
        case "moments":
            report, kept = _moments(local), client_state
        case "evaluate":
            report, kept = (
                _evaluate(strategy, job, local, client_state, work.evaluation),
                client_state,
            )
        case _:
            report, kept = _train(strategy, job, local, client_state, work.evaluation)
            report = _hidden(strategy, job, report, work, noise or Noise.secret())
            report, kept = _accounted(local, report, kept)
    seconds = clock() - began
    vectors, owed = _encode(report, job, work, client_state)
    loss = _finite(report.loss, client)
    content = ReportContent(
        run=order.run,
        step=order.step,
        client=client,
        examples=report.examples,
        steps=report.steps,
        loss=loss,
        numbers=_plain(report.numbers),
        seconds=seconds,
        vectors=vectors,
    )
    return content, {**kept, **owed} if owed else kept


def settings_of(work: Work) -> tuple[Strategy[Any], Training]:
    """The method with its hyper-parameters, and how it trains. PublicError where either is none of ours."""
    try:
        return _strategy.validate_python(work.strategy), Training.model_validate(work.training)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise PublicError(
            f"the order's {error.title} is not valid: {where}: {first['msg']}"
        ) from None


def encode_model(
    vector: Vector, layout_digest: str, codec: Codec, rng: np.random.Generator
) -> bytes:
    """A model (d,), or a part of one, as the bytes that the parts of a model topic make."""
    encoded, _ = encode(vector, codec, base=None, base_digest=b"", error=None, rng=rng)
    return ModelContent(layout=layout_digest, vector=encoded).to_bytes()


def decode_model(content: bytes, layout: Layout) -> Vector:
    """The model (d,) in a content, or the part of one that a method sends: which, its client half knows.

    Raises DecodeError for another layout, for more values than the layout has, and for anything else that is wrong.
    """
    message = ModelContent.from_bytes(content)
    if message.layout != layout.digest:
        raise DecodeError(
            "layout", f"the model has layout {message.layout}, the order names {layout.digest}"
        )
    return decode(message.vector, length=-layout.size)


def _hidden(strategy: Strategy[Any], job: Job, report: Report, work: Work, noise: Noise) -> Report:
    """The report with noise on its signature, where it is one and the order asks for it."""
    settings = AgentPrivacy.from_wire(work.privacy).signatures
    if settings is None or job.phase not in strategy.signature_phases:
        return report
    framed = strategy.framed(job, report)
    [(name, vector)] = framed.vectors.items()
    base = strategy.signature_base(job, vector)
    hidden = noised(vector, base, settings, noise)
    return replace(
        framed, vectors={name: hidden}, steps=0, loss=0.0
    )  # a loss is a figure of the data too


def _accounted(local: Local, report: Report, kept: ClientState) -> tuple[Report, ClientState]:
    """After DP-SGD: the report says what it has cost, and nothing of the data but the model; the client state keeps the account."""
    if not isinstance(local, Private) or local.ledger is None:
        return report, kept
    numbers = {LOCAL: local.spent()}
    return replace(report, numbers=numbers, steps=0, loss=0.0), {
        **kept,
        PRIVACY_LEDGER: local.ledger,
    }


class _TrainingRecorder:
    """A `Local` that remembers where its latest local training ended; everything else it passes on."""

    def __init__(self, local: Local) -> None:
        self._local = local
        self.trained: Vector | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._local, name)

    def train(self, start: Vector, *arguments: Any, **options: Any) -> TrainingResult:
        done = self._local.train(start, *arguments, **options)
        self.trained = done.end
        return done


def _train(
    strategy: Strategy[Any],
    job: Job,
    local: Local,
    client_state: ClientState,
    evaluation: Mapping[str, Any],
) -> tuple[Report, ClientState]:
    own = {key: value for key, value in client_state.items() if not key.startswith(ERROR_FEEDBACK)}
    recorder = _TrainingRecorder(local)
    report, kept = strategy.work(job, cast(Local, recorder), own)
    if kept is own:
        kept = client_state
    set_by_strategy = kept.get(LAST_MODEL) is not client_state.get(LAST_MODEL)
    trained = _trained_model(job, report, recorder)
    if trained is not None and not set_by_strategy:
        kept = {**kept, LAST_MODEL: trained}
    if evaluation.get("track") and kept.get(LAST_MODEL) is not client_state.get(LAST_MODEL):
        track = _measure(((1.0, kept[LAST_MODEL]),), local)
        report = replace(report, numbers={**report.numbers, "track": track})
    return report, _with_owed(kept, client_state)


def _trained_model(job: Job, report: Report, recorder: _TrainingRecorder) -> Vector | None:
    """The whole model (d,) that a phase's local training made, whatever the phase is called; None if it trained none.

    A whole model in the report comes first: who trains several models (Ditto) sends the one that stands for the phase,
    and who steps by hand (Per-FedAvg) calls no `train`. A signature is a part of the model: there the training counts.
    """
    sent = report.vectors.get(MODEL)
    if sent is not None and sent.size == job.layout.size:
        return sent
    return recorder.trained


def _with_owed(kept: ClientState, before: ClientState) -> ClientState:
    """What a codec owes for a vector that this phase does not send stays owed."""
    owed = {
        key: value
        for key, value in before.items()
        if key.startswith(ERROR_FEEDBACK) and key not in kept
    }
    return {**kept, **owed} if owed else kept


def _moments(local: Local) -> Report:
    if not isinstance(local, Measured):
        raise PublicError("federated standardisation needs features that can be summed per channel")
    sums = local.moments()
    return Report(
        {}, local.examples, {"count": sums.count, "sum": sums.total, "square": sums.square}
    )


def _evaluate(
    strategy: Strategy[Any],
    job: Job,
    local: Local,
    client_state: ClientState,
    evaluation: Mapping[str, Any],
) -> Report:
    """Modes E-server, E-tuned and E-last."""
    own = {key: value for key, value in client_state.items() if not key.startswith(ERROR_FEEDBACK)}
    mixture = strategy.personal(job, local, own)
    numbers = {"server": _measure(mixture, local)}
    epochs = int(evaluation.get("tune_epochs", 0))
    if epochs > 0:
        tuned = tuple((weight, local.train(model, epochs=epochs).end) for weight, model in mixture)
        numbers["tuned"] = _measure(tuned, local)
    if LAST_MODEL in client_state:
        numbers["last"] = _measure(((1.0, client_state[LAST_MODEL]),), local)
    return Report({}, local.examples, numbers)


def _measure(mixture: Mixture, local: Local) -> dict[str, Any]:
    """Test figures of a mixture: correct, n, accuracy, f1 and loss, or mse and loss for a regression task."""
    truth = local.targets("test")
    if not len(truth):
        return {"n": 0}
    if truth.dtype.kind == "f":
        values = _mix(
            [(weight, local.predict(model, "test").astype(np.float64)) for weight, model in mixture]
        )
        mse = float(np.mean((values[:, 0] - truth) ** 2))
        return {"n": len(truth), "mse": mse, "loss": mse}
    chances = _mix([(weight, _softmax(local.predict(model, "test"))) for weight, model in mixture])
    guesses = chances.argmax(axis=1)
    own = np.maximum(chances[np.arange(len(truth)), truth], np.finfo(np.float64).tiny)
    return {
        "n": len(truth),
        "correct": int(np.count_nonzero(guesses == truth)),
        "accuracy": accuracy(truth, guesses),
        "f1": macro_f1(truth, guesses),
        "loss": float(-np.mean(np.log(own))),
    }


def _mix(parts: Sequence[tuple[float, npt.NDArray[np.float64]]]) -> npt.NDArray[np.float64]:
    total = math.fsum(weight for weight, _ in parts)
    return sum((weight / total * values for weight, values in parts), np.zeros_like(parts[0][1]))


def _softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    powers = np.exp(shifted)
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _encode(
    report: Report, job: Job, work: Work, client_state: ClientState
) -> tuple[dict[str, Encoded], dict[str, Vector]]:
    codec = Codec.from_wire(work.codec)
    vectors: dict[str, Encoded] = {}
    owed: dict[str, Vector] = {}
    for name, vector in sorted(report.vectors.items()):
        index = report.bases.get(name)
        base, base_digest = (
            (None, b"") if index is None else (job.models[index], work.models[index].digest)
        )
        rng = generator(work.seed, "codec", job.client, work.round, work.phase, name)
        error = client_state.get(ERROR_FEEDBACK + name)
        if not np.isfinite(vector).all():
            raise PublicError(
                f"{job.client}: the training diverged: {name!r} is not finite; lower training.lr"
            )
        vectors[name], left = encode(
            vector, codec, base=base, base_digest=base_digest, error=error, rng=rng
        )
        if left is not None:
            owed[ERROR_FEEDBACK + name] = left
    return vectors, owed


def _finite(loss: float, client: str) -> float:
    if not math.isfinite(loss):
        raise PublicError(
            f"{client}: the training diverged: its mean loss is {loss}; lower training.lr"
        )
    return float(loss)


def _plain(value: Any) -> Any:
    """Numpy's numbers and arrays as Python's, which is what the wire takes."""
    match value:
        case np.ndarray() | np.generic():
            return value.tolist()
        case Mapping():
            return {key: _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
    return value
