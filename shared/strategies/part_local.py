"""Training and measuring where only a part of the model travels: a method sees that part as its model.

The coordinator divides the initial models (`divided`) and adds the key `OWN` to the orders of agents that have no values of
their own yet (`with_own`). On an agent, `PartLocal` stands between a method and the data: it completes every model by the
agent's own values before it is trained or measured. The agent's state holds whole models under `LAST_MODEL`: kept and frozen
values are read from it. It changes with an accepted report, as all of the state does.

Each training of an order begins with the kept values of the one before. Trainings of an evaluation leave no trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.shared.errors import DataError, PublicError
from covey.shared.numerics.split import Mask, Split
from covey.shared.numerics.vectors import Vector
from covey.shared.strategies.base import ClientId, Order, Setup, Strategy
from covey.shared.strategies.client_half import (
    AS_ORDERED,
    LAST_MODEL,
    ClientState,
    DataSplit,
    Drill,
    GradientCorrection,
    Local,
    Mixture,
    SampleIndices,
    TrainingResult,
)
from covey.shared.wire.messages import BASE, OWN

# client state: these values, of an agent that has trained no model yet
REST = "split/rest"


# -- the coordinator -----------------------------------------------------------------------------------


def divided(setup: Setup, split: Split | None, strategy: Strategy[Any]) -> Setup:
    """The setup of a method that sees the shared part of a model alone.

    Args:
        setup: with whole models.
        split: which part travels; None: all of it.
        strategy: the method.

    Raises:
        PublicError: the method cannot work with this split.
    """
    if split is None:
        return setup
    if why := strategy.refuses(split):
        name = getattr(strategy, "name", type(strategy).__name__)
        raise PublicError(
            f"the split of the model is not for {name}: {why}; change task.keep, or choose another method"
        )
    return replace(
        setup,
        starts=tuple(split.share_of(start) for start in setup.starts),
        layout=split.shared,
        split=split,
        rest=split.rest_of(setup.starts[0]),
    )


def with_own(order: Order, setup: Setup, *, owns: bool) -> Order:
    """The order with the initial values of what does not travel, unless its client has values of its own."""
    if setup.rest is None or owns:
        return order
    own = () if setup.own is None else (OWN,)
    base = () if setup.base is None else (BASE,)
    return replace(order, models=(*order.models, *own, *base))


def model_of(strategy: Strategy[Any], state: Any, key: str, setup: Setup) -> Vector:
    """The vector of a key in an order."""
    if key == OWN and setup.own is not None:
        return setup.own
    if key == BASE and setup.base is not None:
        return setup.base
    return strategy.model(state, key)


def whole_models(strategy: Strategy[Any], state: Any, setup: Setup) -> tuple[Vector, ...]:
    """The models (d,) to export, one per cluster: what does not travel has its initial values."""
    models = strategy.clusters(state)
    if setup.split is None or setup.rest is None:
        return models
    return tuple(setup.split.joined(model, setup.rest) for model in models)


def initial_rest(split: Split, initial: Mapping[str, Vector]) -> Vector | None:
    """The initial values of what does not travel (d - d_s,), from what an order brings of them; None for nothing.

    Args:
        split: which part travels.
        initial: by `OWN` and `BASE`.

    Raises:
        DataError: the base lacks values, and the order does not bring as many.
    """
    own = initial.get(OWN)
    if BASE not in initial:
        return own
    rest = split.rest_of(initial[BASE])
    lacking = np.isnan(rest)
    if np.count_nonzero(lacking) != (0 if own is None else own.size):
        fault = "the base does not have the values that this order expects of it"
        raise DataError(fault, public=fault)
    if own is not None:
        rest[lacking] = own
    return rest


# -- an agent ------------------------------------------------------------------------------------------


class PartLocal:
    """A `Local` whose models are the shared part of those of another one, for one order.

    Args:
        local: trains and measures whole models.
        split: which part travels.
        state: of the client, with whole models.
        own: the initial values of what does not travel, if the order brought them.
        client: the agent's id.
    """

    def __init__(
        self, local: Local, split: Split, state: ClientState, own: Vector | None, client: ClientId
    ) -> None:
        self.local = local
        self.split = split
        self._client = client
        self._has_noise = False  # the newest values were trained with DP-SGD
        self._rest = own  # of the newest training; None: it is missing
        if LAST_MODEL in state:
            self._rest = split.rest_of(state[LAST_MODEL])
        elif REST in state:
            self._rest = state[REST]

    def __repr__(self) -> str:
        return f"<PartLocal: {self.split.shared.size} of {self.split.whole.size} values>"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.local, name)

    @property
    def examples(self) -> int:
        return self.local.examples

    @property
    def rest(self) -> Vector | None:
        """The values (d - d_s,) of what does not travel, after the newest training."""
        return self._rest

    def take_rest(self, rest: Vector) -> None:
        """Continue with these values, which another process has trained."""
        self._rest = rest

    # -- models

    def whole(self, model: Vector) -> Vector:
        """The model (d,) of a shared part (d_s,).

        Raises:
            DataError: the agent has taken part before, but its own values are missing.
        """
        if self._rest is None:
            raise DataError(
                f"agent {self._client} has trained in this run but the values that it keeps are missing: was its folder "
                "deleted?",
                public="the values that this agent keeps are missing",
            )
        return self.split.joined(model, self._rest)

    def whole_mixture(self, mixture: Mixture) -> Mixture:
        """A mixture of whole models."""
        return tuple((weight, self.whole(model)) for weight, model in mixture)

    def seen(self, state: ClientState) -> ClientState:
        """The client's state as a method sees it: its last model is the shared part."""
        seen = {key: state[key] for key in state if key not in (LAST_MODEL, REST)}
        if LAST_MODEL in state:
            seen[LAST_MODEL] = self.split.share_of(state[LAST_MODEL])
        return seen

    def stored(self, after: ClientState, seen: ClientState, before: ClientState) -> ClientState:
        """The client's state as it is stored.

        Args:
            after: what the method's work left.
            seen: what it began with.
            before: the stored state behind that.
        """
        if after is seen and (LAST_MODEL in before or REST in before or self._rest is None):
            return before
        stored = dict(after)
        if LAST_MODEL in after:
            stored[LAST_MODEL] = self.whole(after[LAST_MODEL])
        elif self._rest is not None:
            stored[REST] = self._rest
        return stored

    # -- what a method calls

    def loss(self, model: Vector) -> float:
        return self.local.loss(self.whole(model))

    def losses(self, model: Vector) -> npt.NDArray[np.float32]:
        return self.local.losses(self.whole(model))

    def predict(self, model: Vector, split: DataSplit) -> npt.NDArray[np.float32]:
        return self.local.predict(self.whole(model), split)

    def memberships(self, model: Vector, clusters: int) -> npt.NDArray[np.int64]:
        return self.local.memberships(self.whole(model), clusters)

    def gradient(
        self, model: Vector, *, batch: int | None = None, rows: SampleIndices | None = None
    ) -> Vector:
        return self.split.share_of(self.local.gradient(self.whole(model), batch=batch, rows=rows))

    def train(self, start: Vector, drill: Drill = AS_ORDERED) -> TrainingResult:
        """LocalTrain of the shared part together with what the agent keeps. A correction concerns the shared part alone.

        Values that trained with noise stay, whatever trains at home without it: the next report starts from them.
        """
        correction, trained = self._of_whole(drill.correction), self._trained(drill.trained)
        of_whole = replace(drill, correction=correction, trained=trained)
        result = self.local.train(self.whole(start), of_whole)
        if not (drill.at_home and self._has_noise):
            self._rest = self.split.rest_of(result.end)
        self._has_noise |= not drill.at_home and getattr(self.local, "ledger", None) is not None
        return replace(result, end=self.split.share_of(result.end))

    def _trained(self, trained: Mask | None) -> Mask | None:
        """What trains of the whole model (d,)."""
        split = self.split
        if trained is None:
            return split.trains
        if trained.size == split.whole.size:
            return trained
        mask = split.is_kept.copy()
        mask[split.is_shared] = trained
        return mask

    def _of_whole(self, correction: GradientCorrection) -> GradientCorrection:
        """A correction of the shared part, as one of the whole model."""
        split = self.split
        if correction.anchor is None and correction.drift is None:
            return correction
        return GradientCorrection(
            anchor=None if correction.anchor is None else split.padded(correction.anchor),
            mu=correction.mu,
            drift=None if correction.drift is None else split.padded(correction.drift),
            on=split.is_shared,
        )


def on_part(
    local: Local, split: Split, state: ClientState, own: Vector | None, client: ClientId
) -> Local:
    """A `PartLocal` as the `Local` that a method gets."""
    part: Any = PartLocal(local, split, state, own, client)
    return part  # type: ignore[no-any-return]


def of_whole(local: Local | PartLocal) -> Local:
    """The `Local` of whole models."""
    return local.local if isinstance(local, PartLocal) else local


def tuned(local: Local, mixture: Mixture, epochs: int, split: Split | None) -> Mixture:
    """Whole models (d,) after fine-tuning on whole models, which changes nothing that is frozen."""
    drill = Drill(epochs=epochs, trained=None if split is None else split.trains)
    return tuple((weight, local.train(model, drill).end) for weight, model in mixture)
