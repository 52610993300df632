"""What a device answers with, between its file and use: models, and what else the judge has chosen, each with its weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt

from covey.extras.in_use.model_file import MixedPart, ModelFile
from covey.extras.judge.candidates import Candidate, Constant, Near, OfModels
from covey.extras.judge.trees import Trees
from covey.shared.candidate_names import COMPANION, NEAR, NONE, SERVED, TREES
from covey.shared.numerics.figures import Figures, answers, figures_of, or_diverged, weighted_mean
from covey.shared.numerics.measures import Kind
from covey.shared.numerics.vectors import Layout
from covey.shared.scenario.companion import Arrayed, companion
from covey.shared.strategies.client_half import DataSplit, Local, Mixture
from covey.shared.work.evaluate import measure

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Answering:
    """Models with their weights, those of the served ones first, and further parts.

    A weight of 0 is that of a served model which is kept for its values alone.
    """

    mixture: Mixture
    parts: tuple[MixedPart, ...] = ()

    @classmethod
    def of(
        cls, served: Mixture, uses: Mapping[str, float], candidates: Mapping[str, Candidate]
    ) -> Self:
        """What the judge has chosen.

        Args:
            served: models as the device uses them.
            uses: the weights of what it has chosen, by name; empty: the served models.
            candidates: by these names, their models as the device uses them.
        """
        if not uses:
            return cls(served)
        total = sum(weight for weight, _ in served)
        share = uses.get(SERVED, 0.0) / total
        models = [(share * weight, model) for weight, model in served]
        first = max(range(len(served)), key=lambda place: served[place][0])
        parts: list[MixedPart] = []
        for name, weight in uses.items():
            match candidates[name]:
                case OfModels(mixture) if name != SERVED:
                    whole = sum(own for own, _ in mixture)
                    models += [(weight * own / whole, model) for own, model in mixture]
                case Constant(answer):
                    parts.append(MixedPart(NONE, weight, {"answer": answer}))
                case Near(_, memory, targets):
                    near = {"memory": memory, "targets": targets}
                    parts.append(MixedPart(NEAR, weight, near, first))
                case Trees() as trees:
                    table = {"rows": trees.rows, "targets": trees.targets}
                    parts.append(MixedPart(TREES, weight, table))
                case one if name == COMPANION:
                    parts.append(MixedPart(name, weight, cast(Arrayed, one).arrays()))
        return cls(tuple(models), tuple(parts))

    @classmethod
    def of_file(cls, file: ModelFile, layout: Layout) -> Self:
        models = [layout.vector(named) for named in file.models]
        return cls(tuple(zip(file.weights, models, strict=True)), file.parts)

    @property
    def uses_models(self) -> bool:
        """Whether it answers with more than a constant."""
        return any(weight for weight, _ in self.mixture) or any(
            part.name != NONE for part in self.parts
        )

    def candidates(self, outputs: int) -> list[tuple[float, Candidate]]:
        """Each part that is mixed, with its weight. Trees are fitted here.

        Args:
            outputs: of the model.
        """
        found: list[tuple[float, Candidate]] = [
            (weight, OfModels(((1.0, model),))) for weight, model in self.mixture if weight
        ]
        return found + [(part.weight, self._candidate(part, outputs)) for part in self.parts]

    def _candidate(self, part: MixedPart, outputs: int) -> Candidate:
        arrays: Mapping[str, npt.NDArray[Any]] = part.arrays
        match part.name:
            case "none":
                return Constant(arrays["answer"])
            case "near":
                _, model = self.mixture[part.model]
                return Near(model, arrays["memory"], arrays["targets"])
            case "trees":
                return Trees.of(arrays["rows"], arrays["targets"], outputs)
            case "companion":
                return companion(arrays["of"].tobytes().decode()).kept(arrays)
        raise ValueError(f"a model file has the unknown part {part.name!r:.40}")

    def figures(self, local: Local, outputs: int) -> Figures:
        """Figures on the test part; {"n": 0} without one."""
        if not self.parts:
            return measure(tuple(pair for pair in self.mixture if pair[0]), local)
        truth = local.targets("test")
        if not len(truth):
            return {"n": 0}
        found = mixed_answers(self.candidates(outputs), local, "test", None)
        with np.errstate(all="ignore"):
            return or_diverged(figures_of(truth, found))


def mixed_answers(
    candidates: list[tuple[float, Candidate]], local: Local, split: DataSplit, kind: Kind | None
) -> Float64:
    """The answers (n, outputs) of what is mixed.

    Args:
        candidates: with their weights.
        local: the samples.
        split: of them.
        kind: of the task, for samples without targets; None: by these.
    """
    outputs: list[Float64] = []
    for _, one in candidates:
        match one:
            case OfModels(((_, model),)) if kind is not None:
                outputs.append(answers(local.predict(model, split), kind))
            case _:
                outputs.append(one.answers(local, split))
    return weighted_mean([weight for weight, _ in candidates], outputs)
