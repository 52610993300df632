"""The facts of a method that others must know, whatever its state: one value of its class, `Facts`.

Functions of the method answer what depends on its options: `buffer`, `privacy`, `refuses`, `starts`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

# `as` with the same name: authors of methods import it from here
from covey.shared.privacy.settings import Trainings as Trainings
from covey.shared.strategies.expected import Expected
from covey.shared.strategies.phase_names import EVALUATE, TRAIN

ClientId = str
# sums of fewer samples of a class are not in a card, unless the task has another number
MIN_CELL = 5
MOST_COMPARED = 8  # models that a device compares in the clear, in one order under secure sums
Routes = Literal["nothing", "assigned", "chosen"]

# What an agent uses: the first model of its order, one of these that its data chooses, or something that it keeps or makes.
Serves = Literal["first", "chosen", "own"]
# under secure sums, of an agent alone: what it is clustered by, how averages serve it, or which models serve it in a round
Shows = Literal["signature", "vote", "choice"]
OrderNumbers = Mapping[str, Mapping[str, Expected]]  # by phase: names of numbers, and their form


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

    # Phases whose reports the coordinator sees one by one, and what each shows of an agent. Devices count what they show, and
    # shorten it (`covey.shared.strategies.clear_phases`). In all other phases no vector leaves an agent without a mask.
    clear: Mapping[str, Shows] = field(default_factory=dict)

    # (state, least): the state after such a phase, without what would need sums of fewer agents
    allowed: Callable[[Any, int], Any] = lambda state, least: state

    # Phases whose sums from a model are other work than those of training from it: the two may have different members.
    apart: tuple[str, ...] = ()

    # With which of an order's models training begins: agents let no two sums with other members begin with the same.
    begins: slice = field(default_factory=lambda: slice(None))


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What others must know of a method. A subclass begins with its base's: `replace(Base.facts, individual=True)`.

    Raises:
        TypeError: two facts contradict each other.
    """

    # Does `fold` compare and combine single reports? Others name sums of them by `terms`.
    individual: bool = False

    # Phases whose reports hold one vector that is only used to cluster: noise can hide it.
    signatures: tuple[str, ...] = ()

    # Further phases that the method plans, besides `TRAIN` and those that other facts name: see `planned`.
    phases: tuple[str, ...] = ()

    # Does the server keep the latest model of each client? The plan of a run counts its memory.
    keeps: bool = False

    # The numbers that the client half reads in an order, by phase. Agents refuse an order with any other, or of another form: one without meaning would make a second order of the same work.
    numbers: OrderNumbers = field(default_factory=dict)

    # The fewest samples of a class whose sums are in a card of a simulated agent, if `task.min_cell` is not set.
    cell: int = MIN_CELL

    # How the method takes part in secure sums; None: it cannot.
    sealed: Sealed | None = None

    # False: a round makes something else than means of models, so there is no key `server`.
    server: bool = True

    def __post_init__(self) -> None:
        if self.sealed is None:
            return
        if not isinstance(self.sealed.clear, Mapping) or not {*self.sealed.clear.values()} <= {
            *get_args(Shows)
        }:
            raise TypeError(
                f"facts: sealed.clear names what each phase shows of an agent: {{phase: one of {', '.join(get_args(Shows))}}}"
            )
        if self.individual:
            raise TypeError(
                "facts: individual and sealed exclude each other: fold compares single reports, which secure sums hide"
            )
        if hidden := sorted({*self.signatures} - {*self.sealed.clear}):
            raise TypeError(
                f"facts: signatures of {', '.join(hidden)} are compared, and secure sums hide them: name these phases in "
                "sealed.clear too"
            )

    @property
    def makes_means(self) -> bool:
        """Whether a round makes means of models, which the server's optimiser can move."""
        return self.server and not self.individual

    @property
    def planned(self) -> frozenset[str]:
        """All phases of the method. Agents refuse an order in any other: its name would make a second order of the same work."""
        named = {TRAIN, *self.phases, *self.signatures, *self.numbers} - {EVALUATE}
        return frozenset(
            named if self.sealed is None else named.union(self.sealed.clear, self.sealed.apart)
        )

    @property
    def summed(self) -> frozenset[str]:
        """Those whose reports secure sums hide, if they have vectors."""
        return self.planned.difference(() if self.sealed is None else self.sealed.clear)

    def numbers_of(self, phase: str) -> Mapping[str, Expected]:
        """The numbers that an order of this phase may carry."""
        return self.numbers.get(phase, {})

    def numbers_with(self, more: OrderNumbers) -> OrderNumbers:
        """The numbers of these facts, and more."""
        return {
            phase: {**self.numbers.get(phase, {}), **more.get(phase, {})}
            for phase in {**self.numbers, **more}
        }
