"""What buffered rounds and privacy ask of a method: values that it has, or has not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

# `as` with the same name: authors of methods import it from here
from covey.shared.privacy.settings import Trainings as Trainings
from covey.shared.strategies.phase_names import TRAIN

ClientId = str
Routes = Literal["nothing", "assigned", "chosen"]


@dataclass(frozen=True)
class Exchange:
    """A kind of phase as `coordinator lab plan` prices it: the lengths of the vectors that each agent gets and sends."""

    name: str = TRAIN
    down: tuple[int, ...] = ()  # float32 numbers of each model
    up: Mapping[str, int] = field(default_factory=dict)  # as in `Phase.sizes`
    cohort: Literal["sample", "all"] | int = "sample"  # or as many agents

    # In the whole run; None: once in each round that no exchange of this name before it took.
    times: int | None = None

    own: bool = (
        False  # each agent gets models of its own, which the coordinator publishes one by one
    )


@dataclass(frozen=True)
class Buffering:
    """How a method takes part in buffered rounds (docs/how-a-round-works.md)."""

    refusal: str = ""  # why `rounds.mode: buffered` makes no sense; empty: it does

    # (state): may the next round be a buffered one? False while the method still forms its clusters.
    is_ready: Callable[[Any], bool] = lambda state: True

    # (state, client, report): the cluster whose buffer takes a report. None: that of the assignment, or 0.
    cluster_of: Callable[[Any, ClientId, Any], int] | None = None

    # The fold of one buffer changes the models of all clusters: every fold makes all reports older.
    ages_together: bool = False


NOT_BUFFERED = Buffering("a round needs the reports of one cohort together")


@dataclass(frozen=True)
class PrivacyFacet:
    """What a method can promise under a `privacy` section (docs/privacy.md). The default promises nothing."""

    # The trainings whose results leave the device. None where a report holds more than such
    # results: DP-SGD cannot cover the method.
    local: Trainings | None = None

    # How reports reach the sums of client-level privacy. "assigned": by their terms, to a cluster
    # that is known already, or to the one model. "chosen": to a cluster that the report's own data
    # chose. "nothing": no report holds a vector. None: the method cannot be used with it.
    routes: Routes | None = None
    refusal: str = ""  # why not

    # (state, reports): for "chosen", the cluster of each report, from this report and the state alone. None: the keys of
    # the reports' terms. `fold` gets the cluster as the number `CHOICE` of a report.
    choices: Callable[[Any, Any], Mapping[ClientId, int]] | None = None

    # (job, signature): the framed signature that an agent without data would send. Noise on
    # signatures is scaled by the distance from it.
    signature_base: Callable[[Any, Any], Any] | None = None

    # (job, report): the report of a signature in a form whose shape and numbers say nothing of the data. None: without numbers.
    framed: Callable[[Any, Any], Any] | None = None


@dataclass(frozen=True)
class Sealed:
    """How a method takes part in secure sums (docs/secure-sums.md)."""

    # Phases whose reports the coordinator sees one by one: signatures, cards, votes, choices. In all
    # others no vector leaves an agent without a mask.
    clear: tuple[str, ...] = ()

    # (state, least): the state after such a phase, without what would need sums of fewer agents
    allowed: Callable[[Any, int], Any] = lambda state, least: state

    # With which of an order's models training begins: agents let no two sums with other members begin with the same.
    begins: slice = field(default_factory=lambda: slice(None))
