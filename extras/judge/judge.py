"""The judge on a device: after the last round it decides, on data of its own, what the device answers with.

At the first order of the last evaluation the agent trains at home, and its candidates (`candidates`) answer out of fold. It keeps
all of this in its memory, sends the weights that its answers give (`mixture`), and answers with a mixture. Each further
order brings the fleet's mean weights: the agent fits again, with these as prior, and trains no more. So whatever is killed in
between, the figures are the same: what is kept is a part of the memory, which a report replaces.

Data that give no outputs (clients of another framework) and models that find anomalies have no judge: their agents answer with
what they are served.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from covey.extras.judge.candidates import (
    Allowance,
    BeforeHome,
    Candidate,
    Snapshots,
    at_home,
    begun_again,
    judged,
    made,
    mixed,
    names_of,
)
from covey.extras.judge.in_run import fleet_of, order_numbers
from covey.extras.judge.mixture import ChosenMixture, FleetWeights, Judged, Weights, chosen, fitted
from covey.shared.candidate_names import (
    DELIVERED,
    GAIN,
    HOME,
    HOMES,
    MEMORY,
    REFITS,
    SERVED,
    USES,
    WEIGHTS,
)
from covey.shared.numerics.figures import Figures, figures_of, or_diverged
from covey.shared.scenario.evaluation import Evaluation
from covey.shared.strategies.client_half import ClientState, Fold, Local, Mixture
from covey.shared.wire.messages import Work, digest

FACTS, ANSWERS, TRUTH, UNITS = (MEMORY + name for name in ("facts", "answers", "truth", "units"))

TELLS = "tells"  # number of a publication


def of_deployment(
    evaluation: Evaluation, fleet: Mapping[str, Any] | None, *, is_open: bool
) -> dict[str, Any]:
    """What a publication states for the judge; empty where devices use models as they are.

    Args:
        evaluation: of the run.
        fleet: what the run knows of it.
        is_open: whether its devices may state their figures and weights.
    """
    if evaluation.deliver == "served":
        return {}
    stated = {**evaluation.deliver.model_dump(mode="json"), **order_numbers(REFITS, fleet)}
    return {**stated, TELLS: is_open}


@dataclass(frozen=True)
class Judgement:
    """What an agent has found out about its candidates."""

    of: str  # digest of the served models
    figures: Mapping[str, Any]  # of the report, but for what the fleet's weights change
    names: tuple[str, ...]  # of the candidates
    snapshots: Snapshots
    judged: Judged | None  # None: too few units

    @classmethod
    def made(
        cls,
        local: Local,
        given: BeforeHome,
        folds: Iterable[Fold],
        figures: Mapping[str, Any],
        *,
        measure: str,
        budget_s: float | None,
        clock: Callable[[], float],
    ) -> tuple[Self, dict[str, Candidate]]:
        """Train at home and judge; with the candidates for use."""
        budget = Allowance(budget_s, clock)
        snapshots = at_home(local, given, HOMES, budget)
        given = begun_again(local, given, snapshots)
        if given.home is not None:
            snapshots = at_home(local, given, HOMES, budget)
        found = judged(folds, given, names_of(local, given, snapshots), measure, budget)
        candidates = made(local, given, snapshots, None if found is None else found.names)
        names = tuple(candidates) if found is None else found.names
        return cls(digest_of(given.served), figures, names, snapshots, found), candidates

    def to_memory(self) -> dict[str, Any]:
        """The arrays that a client keeps."""
        facts = {
            "of": self.of,
            "figures": self.figures,
            "names": self.names,
            "homes": {
                epochs: [weight for weight, _ in mixture]
                for epochs, mixture in self.snapshots.items()
            },
            "measure": self.judged.measure if self.judged else None,
        }
        found: dict[str, Any] = {
            FACTS: np.frombuffer(json.dumps(facts, allow_nan=False).encode(), np.uint8)
        }
        for epochs, mixture in self.snapshots.items():
            for place, (_, model) in enumerate(mixture):
                found[_home(epochs, place)] = model
        if (one := self.judged) is not None:
            found[ANSWERS] = np.stack([one.answers[name] for name in self.names])
            found |= {TRUTH: one.truth, UNITS: one.of_samples}
        return found

    @classmethod
    def of_memory(cls, memory: ClientState, served: Mixture) -> Self | None:
        """What an earlier order has left, if it was about the same models."""
        if FACTS not in memory:
            return None
        facts = json.loads(memory[FACTS].tobytes())
        if facts["of"] != digest_of(served):
            return None
        names = tuple(facts["names"])
        snapshots = {
            int(epochs): tuple(
                (weight, memory[_home(int(epochs), place)]) for place, weight in enumerate(weights)
            )
            for epochs, weights in facts["homes"].items()
        }
        found = None
        if facts["measure"] is not None:
            answers = dict(zip(names, memory[ANSWERS], strict=True))
            found = Judged.of(answers, memory[TRUTH], memory[UNITS], facts["measure"])
        return cls(facts["of"], facts["figures"], names, snapshots, found)

    def numbers(
        self,
        choice: ChosenMixture,
        candidates: Mapping[str, Candidate],
        fleet: FleetWeights | None,
        local: Local,
    ) -> dict[str, Any]:
        """Those of the report."""
        found: dict[str, Any] = {
            **self.figures,
            DELIVERED: figures_with(candidates, choice.weights, local),
            USES: dict(choice.weights),
        }
        if self.judged is None:
            return found
        found[WEIGHTS] = fitted(self.judged, None if fleet is None else fleet.weights)
        gain = self.judged.vote(found[WEIGHTS])
        return found if gain is None else {**found, GAIN: list(gain)}

    def choice_after(self, work: Work) -> ChosenMixture:
        """What the agent uses after this work."""
        single = bool(work.evaluation["deliver"].get("single"))
        return self.choice(work.numbers, single=single)

    def choice(self, numbers: Mapping[str, Any], *, single: bool) -> ChosenMixture:
        """The mixture that the agent uses, by what these numbers state of the fleet."""
        return chosen(self.judged, self.names, fleet_of(numbers), single=single)


def _home(epochs: int, place: int) -> str:
    return f"{MEMORY}{HOME}{epochs}/{place}"


def figures_with(candidates: Mapping[str, Candidate], weights: Weights, local: Local) -> Figures:
    """Figures of a mixture of candidates on the test part."""
    truth = local.targets("test")
    if not len(truth):
        return {"n": 0}
    with np.errstate(all="ignore"):  # outputs that are not finite are reported as such
        return or_diverged(figures_of(truth, mixed(candidates, weights, local, "test")))


def digest_of(mixture: Mixture) -> str:
    """Names some models with their weights."""
    parts = [np.float64(weight).tobytes() + model.tobytes() for weight, model in mixture]
    return digest(b"".join(parts)).hex()


def only_served(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of an agent without a judge, by those of its evaluation."""
    return {**figures, DELIVERED: figures["server"], USES: {SERVED: 1.0}}
