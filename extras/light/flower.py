"""Clients that were written for Flower (`get_parameters`, `fit`, `evaluate`), on the data that they load themselves.

Flower need not be installed: its `NumPyClient` and `Client` are known by their methods, and the values that they exchange by
their fields. Flower makes a client for each message; so does this module for each order.
"""

from __future__ import annotations

import inspect
import io
import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NoReturn, cast

import numpy as np
import numpy.typing as npt

from covey.agent.data.dataset import Array, Dataset
from covey.agent.data.local import Float32
from covey.agent.own_code import State
from covey.agent.policy import OwnersRules
from covey.extras.light.client_data import ClientData
from covey.extras.light.own_loop import SEEDS, LoopLearner, LoopLocal, OrderedTraining, start_of
from covey.shared.errors import PublicError
from covey.shared.numerics.figures import Figures
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.own_code.faults import own_code
from covey.shared.scenario.task import Task
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import Card, DataSplit, Drill, Mixture

Arrays = list[npt.NDArray[Any]]
Config = dict[str, Any]
Answer = tuple[Arrays, int, Mapping[str, Any]]  # parameters, samples, metrics
Judged = tuple[float, int, Mapping[str, Any]]  # loss, samples, metrics

METHODS = ("get_parameters", "fit", "evaluate")
LOSSES = ("loss", "train_loss")  # under which clients report the loss of a training
SHARES = ("accuracy", "f1", "recall", "auc")  # figures of classes that the coordinator reads
AMOUNTS = ("mse", "mae")  # the same of a regression

# -- what Flower passes, with the fields that its documentation names ------------------------------


@dataclass
class Context:
    """What `client_fn(context)` gets."""

    node_config: Config
    run_config: Config
    run_id: int = 0
    node_id: int = 0
    state: Config = field(default_factory=dict)  # empty at each order


@dataclass
class Parameters:
    """Arrays as files of NumPy."""

    tensors: list[bytes]
    tensor_type: str = "numpy.ndarray"


@dataclass
class GetParametersIns:
    config: Config


@dataclass
class FitIns:
    parameters: Parameters
    config: Config


@dataclass
class EvaluateIns:
    parameters: Parameters
    config: Config


def packed(arrays: Sequence[npt.NDArray[Any]]) -> Parameters:
    """Arrays as Flower's `Client` gets them."""
    tensors: list[bytes] = []
    for array in arrays:
        file = io.BytesIO()
        np.save(file, array, allow_pickle=False)
        tensors.append(file.getvalue())
    return Parameters(tensors)


def unpacked(parameters: Any) -> Arrays:
    """The arrays of Flower's `Parameters`."""
    return [np.load(io.BytesIO(tensor), allow_pickle=False) for tensor in parameters.tensors]


class TypedClient:
    """A `Client` of Flower, called as a `NumPyClient`."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def get_parameters(self, config: Config) -> Arrays:
        return unpacked(_right(self._client.get_parameters(GetParametersIns(config))).parameters)

    def fit(self, parameters: Arrays, config: Config) -> Answer:
        found = _right(self._client.fit(FitIns(packed(parameters), config)))
        return unpacked(found.parameters), found.num_examples, found.metrics

    def evaluate(self, parameters: Arrays, config: Config) -> Judged:
        found = _right(self._client.evaluate(EvaluateIns(packed(parameters), config)))
        return found.loss, found.num_examples, found.metrics


def _right(result: Any) -> Any:
    """A result of a `Client`. Raises PublicError for one whose status is an error."""
    status = getattr(result, "status", None)
    code = getattr(status, "code", 0)
    if getattr(code, "value", code) != 0:
        raise PublicError(f"task.model: the client answered with the status {code}")
    return result


def numpy_client(made: Any, name: str) -> Any:
    """What `client_fn` returned, as a `NumPyClient`. Raises PublicError for anything but a client."""
    made = getattr(made, "numpy_client", made)  # `to_client()` wraps one
    missing = [method for method in METHODS if not callable(getattr(made, method, None))]
    if missing:
        raise PublicError(
            f"task.model {name}: it returned {type(made).__name__} without {', '.join(missing)}; expected a NumPyClient or Client of "
            "Flower"
        )
    is_typed = len(inspect.signature(made.fit).parameters) == 1
    return TypedClient(made) if is_typed else made


# -- the client as a loop ----------------------------------------------------------------------------


def node_config(data: str) -> Config:
    """The value of `--data` as a configuration: pairs such as "partition-id=0 num-partitions=3", or a path, as `data-path`."""
    words = data.split()
    if not words or not all("=" in word for word in words):
        return {"data-path": data} if data else {}
    return {key: _value(text) for key, _, text in (word.partition("=") for word in words)}


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip("\"'")


def takes_cid(client_fn: Callable[..., Any]) -> bool:
    """Whether this is the older `client_fn(cid: str)`; by the rule of Flower's own `ClientApp`."""
    first = next(iter(inspect.signature(client_fn).parameters.values()), None)
    return first is not None and (first.annotation in (str, "str") or first.name == "cid")


@dataclass(frozen=True)
class FlowerLoop:
    """A `covey.learners.Loop` that calls a client. Its arrays get names, and travel as float32.

    Args:
        client_fn: makes the client.
        name: of the model, for messages.
        options: `task.model.options`, which the client finds in `context.run_config` and in each `config`.
        node: which device this is.
    """

    client_fn: Callable[..., Any]
    name: str
    options: Mapping[str, Any]
    node: str = ""

    def client(self, seed: int = 0) -> Any:
        """A new client. It draws the same each time it is made: its first model, or which of its samples test."""
        seeded(seed)
        config = {"partition-id": 0} | node_config(self.node)
        argument: Any = str(config["partition-id"])
        with own_code(f"task.model {self.name}: client_fn"):
            if not takes_cid(self.client_fn):
                argument = Context(config, dict(self.options))
            made = self.client_fn(argument)
        return numpy_client(made, self.name)

    def start(self, seed: int) -> State:
        """See `Loop.start`."""
        return named(self._parameters(self.client(seed)))

    def train(
        self, state: State, data: Any, settings: OrderedTraining
    ) -> tuple[State, int, Mapping[str, float]]:
        """See `Loop.train`. The client trains on data of its own, and not on these."""
        client = self.client()
        arrays = self._like_its_own(client, state)
        config = {key: value for key, value in asdict(settings).items() if value is not None}
        seeded(settings.seed)
        with own_code(f"task.model {self.name}: fit"):
            found = client.fit(arrays, config | dict(self.options))
        match found:
            case ([*arrays], count, {**metrics}) if isinstance(count, int | np.integer):
                pass
            case _:
                raise PublicError(
                    f"task.model {self.name}: fit returned {_kinds(found)}; expected a list of arrays, the number of samples and "
                    "metrics"
                )
        losses = [float(cast(Any, metrics[key])) for key in LOSSES if key in metrics]
        return named(arrays), int(count), {"loss": losses[0]} if losses else {}

    def evaluate(self, state: State, features: npt.NDArray[Any]) -> NoReturn:
        """Refuse: a client gives figures (`judged`), not outputs."""
        raise PublicError(
            f"task.model {self.name}: a client of Flower gives no outputs to predict with; choose a model that does"
        )

    def judged(self, state: State) -> Judged:
        """Loss, samples and metrics on the test data of the client."""
        client = self.client()
        arrays = self._like_its_own(client, state)
        seeded(0)
        with own_code(f"task.model {self.name}: evaluate"):
            found = client.evaluate(arrays, dict(self.options))
        match found:
            case (loss, count, {**metrics}) if isinstance(count, int | np.integer) and count >= 0:
                return float(loss), int(count), cast(Mapping[str, Any], metrics)
        raise PublicError(
            f"task.model {self.name}: evaluate returned {_kinds(found)}; expected the loss, the number of samples and metrics"
        )

    def _parameters(self, client: Any) -> Arrays:
        with own_code(f"task.model {self.name}: get_parameters"):
            found = client.get_parameters(dict(self.options))
        if not isinstance(found, list | tuple):
            raise PublicError(
                f"task.model {self.name}: get_parameters returned {_kinds(found)}; expected a list of arrays"
            )
        return [np.asarray(array) for array in found]

    def _like_its_own(self, client: Any, state: State) -> Arrays:
        """The values of a model (float32) in the types that the client has, such as int64 for a count of batches."""
        own = self._parameters(client)
        arrays: Arrays = []
        for value, like in zip(state.values(), own, strict=True):
            whole = np.rint(value) if like.dtype.kind in "biu" else value
            arrays.append(whole.astype(like.dtype))
        return arrays


def seeded(seed: int) -> None:
    """Set the generators that clients draw from, so that one order gives one result."""
    random.seed(seed)
    np.random.seed(seed % SEEDS)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)


def named(arrays: Sequence[Any]) -> dict[str, npt.NDArray[Any]]:
    """Arrays with names as layers have them: methods compare last layers, and Flower's lists have no names.

    A vector as long as an axis of the array before it is the bias of the same layer.
    """
    names: dict[str, npt.NDArray[Any]] = {}
    layer, weight = 0, np.empty(0)
    for array in map(np.asarray, arrays):
        is_bias = weight.ndim > 1 and array.ndim == 1 and len(array) in weight.shape
        if not is_bias:
            layer += 1
        names[f"layer{layer}.{'bias' if is_bias else 'weight'}"] = array
        weight = np.empty(0) if is_bias else array
    return names


def _kinds(found: Any) -> str:
    """The types of what a client returned, without a value of it."""
    if isinstance(found, tuple):
        return f"({', '.join(type(one).__name__ for one in found)})"
    return type(found).__name__


# -- the client as the data and the training of a device ---------------------------------------------


class FlowerLocal(LoopLocal):
    """A `shared.strategy.Local` whose data only the client knows."""

    _loop: FlowerLoop

    def loss(self, model: Vector) -> float:
        """The loss that the client's `evaluate` gives: it is asked for no other."""
        return self._loop.judged(self._named(model))[0]

    def figures(self, mixture: Mixture) -> Figures:
        """The figures that `evaluate` gives, by the names that the coordinator reads."""
        if len(mixture) != 1:
            self._refuse("the answers of several models together")
        [(_, model)] = mixture
        loss, count, metrics = self._loop.judged(self._named(model))
        if not count:
            return {"n": 0}
        is_classes = self._task.classes is not None
        needed = "accuracy" if is_classes else "mse"
        if needed not in metrics:
            raise PublicError(
                f"task.model {self._loop.name}: evaluate returned the metrics {sorted(map(str, metrics))}; expected {needed!r} among them"
            )
        known = [name for name in (SHARES if is_classes else AMOUNTS) if name in metrics]
        figures = {name: float(metrics[name]) for name in known}
        for name, figure in figures.items():
            if count and not 0 <= figure <= (1 if is_classes else math.inf):
                raise PublicError(
                    f"task.model {self._loop.name}: evaluate returned {figure:g} as {name}; expected a number from 0"
                    f"{' to 1' if is_classes else ''}"
                )
        return {"n": count, "loss": loss, **figures}

    def losses(self, model: Vector) -> NoReturn:
        self._refuse("the loss of each sample")

    def predict(self, model: Vector, split: DataSplit) -> NoReturn:
        self._refuse("outputs for its samples")

    def inputs(self) -> NoReturn:
        self._refuse("its samples")

    def targets(self, split: DataSplit) -> NoReturn:
        self._refuse("its labels")

    def batches(self, epochs: int | None = None) -> NoReturn:
        self._refuse("its batches")

    def card(self, seed: int, client: str, min_cell: int, blocks: int | None = None) -> Card:
        self._refuse("a card of its classes")

    def _weights(self, of_method: Float32 | None) -> Float32 | None:
        if self._training.weights != "none":
            self._refuse("weights of classes (training.weights)")
        return of_method

    def _last_inputs(self, model: Vector, features: Array) -> NoReturn:
        self._refuse("the inputs of its last layer")

    def _check_count(self, count: int, samples: int) -> None:
        if count < 1:
            raise PublicError(
                f"task.model {self._loop.name}: fit returned {count} samples; expected 1 or more"
            )


@dataclass(frozen=True)
class FlowerLearner(LoopLearner):
    """A `covey.agent.learning.Learner` of a client."""

    loop: FlowerLoop

    def local(
        self,
        dataset: Dataset,
        task: Task,
        layout: Layout,
        *,
        training: Training,
        rng: np.random.Generator,
        rules: OwnersRules,
    ) -> FlowerLocal:
        """See `Learner.local`. Raises PublicError for data that are not the client's own."""
        if not isinstance(dataset, ClientData):
            raise PublicError(
                f"task.model {self.loop.name}: a client loads its own data; start devices with agent start --learner {self.loop.name}"
            )
        loop = replace(self.loop, node=dataset.node)
        return FlowerLocal(
            loop, dataset, task, layout=layout, training=training, rng=rng, rules=rules
        )

    def counts(self, dataset: ClientData, task: Task, rules: OwnersRules) -> tuple[int, int]:
        """How many samples the client trains and tests on: a trial of all its functions, with one epoch.

        Raises:
            PublicError: the client does not fit the task.
            OwnCodeError: one of its functions failed.
        """
        state, layout = start_of(replace(self.loop, node=dataset.node), 0)
        start = layout.vector(state)
        rng = np.random.default_rng(0)
        local = self.local(dataset, task, layout, training=Training(), rng=rng, rules=rules)
        trained = local.train(start, Drill(epochs=1))
        tests = local.figures(((1.0, trained.end),))["n"]
        return local.examples, tests
