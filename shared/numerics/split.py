"""A model in three parts: what trains and travels, what trains and stays on a device, and what does not train.

    share   trains on the agents and travels: the vectors of a method hold these tensors alone
    keep    trains on each agent and stays there
    freeze  does neither

A whole model (d,) is the shared part (d_s,), which a method sees as its model, and the rest (d - d_s,) in the order of
the layout.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

from covey.shared.errors import PublicError
from covey.shared.numerics.vectors import Layout, Tensor, Vector
from covey.shared.sentences import counted, some

Role = Literal["share", "keep", "freeze"]
Patterns = Sequence[str]
Mask = npt.NDArray[np.bool_]

ROLES: tuple[Role, ...] = ("share", "keep", "freeze")
FLOAT32_BYTES = 4
EXCLUDE = "!"
NEAR = 3  # names that a message about a pattern lists
SIMILARITY = 0.3  # of a name to the pattern, from 0 to 1
STATISTICS = ("running_mean", "running_var")  # buffers of batch norm
SHARED_BATCH_NORM = "its running statistics describe the inputs of one device, and their average describes those of none"


@dataclass(frozen=True)
class TensorsOfRole:
    """What a plan and a check show of the tensors with one role."""

    role: Role
    tensors: tuple[str, ...]
    parameters: int  # values, buffers included
    bytes: int  # in float32

    def __str__(self) -> str:
        size = f"{self.parameters} values, {self.bytes / 1000:.3g} kB"
        return f"{counted(len(self.tensors), 'tensor')}, {size}: {some(self.tensors)}"


@dataclass(frozen=True)
class Split:
    """The role of each tensor of a layout."""

    whole: Layout
    roles: tuple[Role, ...]  # in the order of the layout

    @classmethod
    def keeping(cls, layout: Layout, modules: Collection[str] = ()) -> Self:
        """The tensors of these modules stay on the agents, buffers included; all others are shared."""
        return cls._of(
            layout, ["keep" if tensor.module in modules else "share" for tensor in layout.tensors]
        )

    @classmethod
    def _of(cls, layout: Layout, roles: Sequence[Role]) -> Self:
        """The split with these roles, where nothing trains that the model's own code has frozen."""
        pairs = zip(layout.tensors, roles, strict=True)
        return cls(
            layout,
            tuple("freeze" if tensor.name in layout.frozen else role for tensor, role in pairs),
        )

    @classmethod
    def by_patterns(cls, layout: Layout, share: Patterns, keep: Patterns, freeze: Patterns) -> Self:
        """The split that the patterns of a task describe.

        A pattern is the name of a tensor or of a module, with `*` and `?` as wildcards. In each list the first pattern
        that matches a tensor decides; one that begins with `!` takes the tensor out of the list. A list of such
        patterns alone holds all other tensors. `keep` and `freeze` are stronger than `share`. Tensors that no list names are
        frozen if there is a list `share`, and shared without one. Parameters that the model's own code has frozen stay so.

        Raises:
            PublicError: a pattern decides nothing, a tensor has two roles, nothing is shared, or batch norm is shared
                that no pattern names without wildcards.
        """
        names = [tensor.name for tensor in layout.tensors]
        shared = _named(names, share, "share")
        kept = _named(names, keep, "keep")
        frozen = _named(names, freeze, "freeze")
        if both := [name for name in names if name in kept and name in frozen]:
            raise PublicError(
                f"task.keep and task.freeze both name {', '.join(both)}; remove them from one of the two"
            )
        rest: Role = "freeze" if share else "share"
        roles: list[Role] = [
            "keep"
            if name in kept
            else "freeze"
            if name in frozen
            else "share"
            if name in shared
            else rest
            for name in names
        ]
        split = cls._of(layout, roles)
        if share or keep or freeze:
            split._check_batch_norm(share)
        return split

    def _check_batch_norm(self, share: Patterns) -> None:
        exact = [pattern for pattern in share if not {*"*?["} & {*pattern}]
        norms = _batch_norms(self.whole)
        shared = [
            tensor.name
            for tensor in self.tensors("share")
            if tensor.module in norms and not any(_matches(tensor.name, one) for one in exact)
        ]
        if shared:
            raise PublicError(
                f"task.share: {', '.join(shared)} belong to batch norm, and {SHARED_BATCH_NORM}; name the modules in "
                f"task.keep ({', '.join(sorted(norms))}), or in task.share without wildcards to share them all the same"
            )

    # -- the parts ---------------------------------------------------------------------------------

    def tensors(self, role: Role) -> tuple[Tensor, ...]:
        """The tensors with a role."""
        return tuple(
            tensor
            for tensor, own in zip(self.whole.tensors, self.roles, strict=True)
            if own == role
        )

    def values(self, role: Role) -> int:
        """How many values have a role."""
        return sum(tensor.size for tensor in self.tensors(role))

    def parts(self) -> tuple[TensorsOfRole, ...]:
        """The parts that have tensors, for people."""
        found: list[TensorsOfRole] = []
        for role in ROLES:
            names = tuple(tensor.name for tensor in self.tensors(role))
            values = self.values(role)
            if names:
                found.append(TensorsOfRole(role, names, values, FLOAT32_BYTES * values))
        return tuple(found)

    @property
    def is_whole(self) -> bool:
        """Whether all of the model is shared."""
        return all(role == "share" for role in self.roles)

    @property
    def keeps(self) -> bool:
        """Whether agents keep values of their own."""
        return "keep" in self.roles

    @cached_property
    def shared(self) -> Layout:
        """The layout of the shared part: d_s is its size."""
        trainable = self.roles[: self.whole.trainable].count("share")
        return Layout(self.tensors("share"), trainable)

    @cached_property
    def is_shared(self) -> Mask:
        """Which values of a model travel (d,)."""
        return self._mask("share")

    @cached_property
    def is_kept(self) -> Mask:
        """Which values of a model stay on their agent (d,)."""
        return self._mask("keep")

    @cached_property
    def trains(self) -> Mask | None:
        """Which values of a model train (d,); None: all."""
        if "freeze" not in self.roles:
            return None
        return ~self._mask("freeze")

    def _mask(self, role: Role) -> Mask:
        mask = np.zeros(self.whole.size, np.bool_)
        for (_, span), own in zip(self.whole.spans(), self.roles, strict=True):
            mask[span] = own == role
        return mask

    def share_of(self, model: Vector) -> Vector:
        """The shared part (d_s,) of a model (d,)."""
        return model[self.is_shared]

    def rest_of(self, model: Vector) -> Vector:
        """The values of a model (d,) that do not travel (d - d_s,)."""
        return model[~self.is_shared]

    def joined(self, share: Vector, rest: Vector) -> Vector:
        """The model (d,) of a shared part (d_s,) and a rest (d - d_s,)."""
        model = np.empty(self.whole.size, np.float32)
        model[self.is_shared] = share
        model[~self.is_shared] = rest
        return model

    def padded(self, share: Vector) -> Vector:
        """A vector (d,) with zeros for what does not travel.

        Args:
            share: of the shared part: (d_s,), or of its parameters alone.
        """
        model = np.zeros(self.whole.size, np.float32)
        places = np.flatnonzero(self.is_shared)
        model[places[: share.size]] = share
        return model


def _batch_norms(layout: Layout) -> set[str]:
    """The modules that keep running statistics."""
    return {tensor.module for tensor in layout.tensors if is_statistic(tensor)}


def is_statistic(tensor: Tensor) -> bool:
    """Whether a tensor is a running statistic of batch norm."""
    return tensor.name.rpartition(".")[2] in STATISTICS


def norms(layout: Layout) -> tuple[str, ...]:
    """The modules that normalise, from input to output: batch norm, and others with one scale per channel."""
    scaled = [
        tensor.module
        for tensor in layout.tensors
        if tensor.name.rpartition(".")[2] == "weight" and len(tensor.shape) == 1
    ]
    return tuple(dict.fromkeys([*scaled, *sorted(_batch_norms(layout))]))


def last_modules(layout: Layout, count: int, key: str) -> tuple[str, ...]:
    """The last modules with parameters, from input to output.

    Args:
        layout: of a model.
        count: of the modules.
        key: of the setting that holds the count, for the message.

    Raises:
        PublicError: the model has fewer.
    """
    modules = layout.modules
    if count > len(modules):
        raise PublicError(
            f"{key} is {count}, but the model has {len(modules)} parametrised modules ({', '.join(modules)}); lower it, "
            "or take a model with more"
        )
    return modules[len(modules) - count :]


def _named(names: Sequence[str], patterns: Patterns, key: str) -> set[str]:
    """The names that a list of patterns holds. Raises PublicError for a pattern that decides nothing."""
    found: set[str] = set()
    undecided = list(names)
    for pattern in patterns:
        wanted = pattern.removeprefix(EXCLUDE)
        hits = [name for name in undecided if _matches(name, wanted)]
        if not hits:
            raise PublicError(_decides_nothing(names, pattern, wanted, key))
        if not pattern.startswith(EXCLUDE):
            found.update(hits)
        undecided = [name for name in undecided if name not in hits]
    if patterns and all(pattern.startswith(EXCLUDE) for pattern in patterns):
        found.update(undecided)
    return found


def _matches(name: str, pattern: str) -> bool:
    """Whether a pattern names a tensor, or a module that it belongs to."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def _decides_nothing(names: Sequence[str], pattern: str, wanted: str, key: str) -> str:
    if any(_matches(name, wanted) for name in names):
        return (
            f"task.{key}: {pattern!r} decides nothing, because the patterns before it match all of its tensors; the first "
            "pattern that matches wins: put it before them"
        )
    near = difflib.get_close_matches(wanted, names, NEAR, SIMILARITY) or names[-NEAR:]
    return f"task.{key}: {pattern!r} matches no tensor of the model; the nearest names are {', '.join(near)}"
