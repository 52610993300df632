"""What an agent has at hand for an order, and the order as its method sees it.

The state of a client is a mapping of arrays that it keeps between orders. Its keys belong to the strategy, except:

- `LAST_MODEL`: the model after the latest local training of any phase, for mode `last`. A strategy may read it and may
  set it itself. It takes 4 bytes per value of the model, from the first phase in which the agent trains.
- `ERROR_FEEDBACK` + the name of a vector: what the codec topk has not sent yet. A strategy never sees these keys.
- `PRIVACY_LEDGER`: the training steps with noise so far.
- those of the judge (`MEMORY`), which a strategy never sees either.

Where only a part of the model travels, `part_local` stands between the strategy and the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from covey.shared.candidate_names import MEMORY
from covey.shared.errors import PublicError
from covey.shared.numerics.vectors import Vector
from covey.shared.privacy.settings import Noise
from covey.shared.seeds import generator
from covey.shared.strategies.client_half import ClientState, Fold, Job, Local
from covey.shared.strategies.part_local import initial_rest, on_part
from covey.shared.strategies.phase_names import EXCHANGES, MOMENTS
from covey.shared.wire.messages import INITIAL, Work
from covey.shared.work.judging import Judge
from covey.shared.work.label_prior import Prior, prior_of, with_prior
from covey.shared.work.order_settings import layout_of, settings_of, split_of

ERROR_FEEDBACK = "codec/"
TOLD = "told"  # sums of the data that the fleet has: (3, columns), float64
PRIVACY_LEDGER = "privacy/ledger"  # rows of (noise multiplier, sampling rate, steps), float64


# of data, by what the fleet has of them: what it has not, and what it has then; None: nothing is new
Sums = Callable[[Vector | None], tuple[Mapping[str, Any], Vector] | None]


def no_sums(told: Vector | None) -> None:
    """The task asks the fleet for none."""


@dataclass(frozen=True)
class AtHand:
    """What an agent has at hand for an order."""

    local: Local  # its data and training
    held_back: Local | None = None  # samples on which it compares models; None: it has no vote
    # the training samples, each time with another part of them as test part: for the judge and a companion
    folds: Iterable[Fold] = ()
    judge: Judge | None = None  # decides what it answers with; None: one that has no more than this
    sums: Sums = no_sums


def simulated_noise(work: Work, client: str) -> Noise:
    """The noise of a simulated agent. It protects nothing: anyone who knows the scenario's seed can repeat it."""
    return Noise.simulated(work.seed, "privacy", client, work.round, work.phase)


def shuffle(work: Work, client: str) -> np.random.Generator:
    """The generator of a client's local training in one phase. Every job gets a new one."""
    return generator(work.seed, "shuffle", client, work.round, work.phase)


def prepared(
    work: Work, models: Sequence[Vector], at_hand: AtHand, client_state: ClientState, *, client: str
) -> tuple[Job, Local, tuple[slice, Prior] | None]:
    """The order as the strategy gets it, the data that it trains on (whole models, or the part that travels), and the label
    prior that they have."""
    local, held_back = at_hand.local, at_hand.held_back
    _, training = settings_of(work)
    split = split_of(work)
    layout = layout_of(work)
    prior = None if work.phase in EXCHANGES else prior_of(work, local, layout)
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
    job = Job(
        phase=work.phase,
        round=work.round,
        client=client,
        seed=work.seed,
        models=tuple(models),
        numbers=_Numbers(work.numbers),
        cluster=work.cluster,
        layout=layout,
        training=training,
        held_back=held_back,
        split=split,
        folds=at_hand.folds,
    )
    return job, local, prior


class _Numbers(dict[str, Any]):
    """The numbers of an order: one that is missing where a method needs it is a fault of the order, not of the device."""

    def __missing__(self, name: str) -> Any:
        raise PublicError(f"numbers.{name} is missing; the order is refused")


def seen_by_methods(state: ClientState) -> ClientState:
    """What a strategy sees of the state."""
    visible = [key for key in state if not key.startswith((ERROR_FEEDBACK, MEMORY, TOLD))]
    if len(visible) == len(state):
        return state  # not a copy: arrays on the disk are read only if the strategy wants them
    return {key: state[key] for key in visible}
