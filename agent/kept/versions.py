"""What names a model that a device keeps: the run that made it, its round and its cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from covey.shared.model_files import SUFFIX
from covey.shared.wire.topics import is_name

ROUND_DIGITS = 5  # so that files of a run sort by round

Origin = Literal["order", "run", "operator"]
ORIGINS: tuple[Origin, ...] = ("order", "run", "operator")


@dataclass(frozen=True)
class Version:
    """One model of one run."""

    run: str
    round: int  # complete rounds that the model has been trained in
    cluster: int | None = None  # None: the method has no clusters, or mixes their models
    # order: the device got it to train or to test it; run: the finished run published it; operator: `promote` did
    origin: Origin = "order"
    at_home: bool = False  # the device fine-tuned it, because that was better on its own samples

    @property
    def file(self) -> str:
        """The name of its file."""
        words = [self.run, "round", f"{self.round:0{ROUND_DIGITS}d}"]
        if self.cluster is not None:
            words += ["cluster", str(self.cluster)]
        return "-".join(words) + SUFFIX

    def __str__(self) -> str:
        text = f"run {self.run}, round {self.round}"
        if self.cluster is not None:
            text += f", cluster {self.cluster}"
        return f"{text}, fine-tuned here" if self.at_home else text

    def is_same_model(self, other: Version | None) -> bool:
        """Whether both name the same round of the same run, wherever they came from."""
        if other is None:
            return False
        return (self.run, self.round) == (other.run, other.round)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`. Raises ValueError for anything else."""
        match dict(data):
            case {
                "run": str(run),
                "round": int(round_),
                "cluster": int() | None as cluster,
                "origin": str(origin),
            } if is_name(run) and round_ >= 0 and origin in ORIGINS:
                at_home = data.get("at_home") is True  # earlier versions had none
                return cls(run, round_, cluster, origin, at_home)
        raise ValueError("expected run, round, cluster and origin of a model")
