"""A model as one flat float32 array, and the layout that gives the array its meaning.

A vector holds the trainable parameters in the order of torch's `named_parameters()`, then the
floating-point buffers. Sums run in float64 over blocks, so folding N memory-mapped reports needs
memory for one block, not for N models, and the result does not depend on how the blocks were cut.
"""

from __future__ import annotations

import hashlib
import math
import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.shared import json_text
from covey.shared.errors import DecodeError

Vector = npt.NDArray[np.float32]

MAX_VALUES = 1 << 33  # of a model: 32 GiB
BLOCK = 1 << 18  # elements: 2 MiB in float64


@dataclass(frozen=True)
class Tensor:
    """One named array of a model. `shape` () is a scalar."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a model's tensors, in the order in which a vector holds them.

    The first `trainable` tensors are parameters; the rest are floating-point buffers, which are
    averaged with the parameters but are no part of distances.
    """

    tensors: tuple[Tensor, ...]
    trainable: int

    @cached_property
    def size(self) -> int:
        """Length of a vector: parameters and buffers."""
        return sum(tensor.size for tensor in self.tensors)

    @cached_property
    def parameters(self) -> int:
        """P, the number of trainable parameters."""
        return sum(tensor.size for tensor in self.tensors[: self.trainable])

    @cached_property
    def digest(self) -> str:
        """Short hash of names, shapes and order: two ends with the same digest mean the same."""
        text = json_text.dumps([self.trainable, [[t.name, list(t.shape)] for t in self.tensors]])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def spans(self) -> Iterator[tuple[Tensor, slice]]:
        """Each tensor with its slice of a vector."""
        at = 0
        for tensor in self.tensors:
            yield tensor, slice(at, at + tensor.size)
            at += tensor.size

    def span_of(self, *modules: str) -> list[slice]:
        """Slices of the parameters whose module (name up to the last dot) is among `modules`."""
        spans = list(self.spans())[: self.trainable]
        return [span for tensor, span in spans if tensor.name.rpartition(".")[0] in modules]

    @cached_property
    def modules(self) -> tuple[str, ...]:
        """Parametrised modules from input to output, for example ("conv1", "conv2", "fc1")."""
        names = [tensor.name.rpartition(".")[0] for tensor in self.tensors[: self.trainable]]
        return tuple(dict.fromkeys(names))

    @cached_property
    def final_layer(self) -> slice:
        """The last parametrised module, weights and bias together."""
        spans = self.span_of(self.modules[-1])
        return slice(spans[0].start, spans[-1].stop)

    @cached_property
    def outputs(self) -> int:
        """Outputs of the final layer: the classes of a classifier that ends in a linear layer."""
        weights = [
            tensor
            for tensor, _ in self.spans()
            if tensor.name.rpartition(".")[0] == self.modules[-1]
        ]
        return weights[0].shape[0]

    def named(self, vector: Vector) -> dict[str, npt.NDArray[np.float32]]:
        """Views of `vector` (size,) by tensor name and shape. A wrong length raises ValueError."""
        if vector.shape != (self.size,):
            raise ValueError(f"vector has shape {vector.shape}, the layout wants ({self.size},)")
        return {tensor.name: vector[span].reshape(tensor.shape) for tensor, span in self.spans()}

    def fits(self, named: Mapping[str, npt.NDArray[Any]]) -> bool:
        """Are these arrays the layout's tensors, by name and shape?"""
        return {name: array.shape for name, array in named.items()} == {
            one.name: one.shape for one in self.tensors
        }

    def vector(self, named: Mapping[str, npt.NDArray[Any]]) -> Vector:
        """The other way: one float32 array (size,) of arrays by tensor name. ValueError where they do not fit."""
        if not self.fits(named):
            raise ValueError("the arrays are not the tensors of the layout")
        return np.concatenate([named[tensor.name].reshape(-1) for tensor in self.tensors]).astype(
            np.float32
        )

    def to_wire(self) -> dict[str, Any]:
        return {
            "trainable": self.trainable,
            "tensors": [[t.name, list(t.shape)] for t in self.tensors],
        }

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Layout:
        """What `to_wire` made. Raises DecodeError("layout") for anything else."""
        try:
            tensors = tuple(_tensor(*entry) for entry in wire["tensors"])
            layout = cls(tensors, wire["trainable"])
            fits = type(layout.trainable) is int and 0 <= layout.trainable <= len(tensors)
        except (KeyError, TypeError, ValueError):
            fits = False
        if (
            not fits
            or len({tensor.name for tensor in tensors}) < len(tensors)
            or layout.size > MAX_VALUES
        ):
            raise DecodeError(
                "layout",
                "tensors by name and shape, and how many of them are trained, are expected",
            )
        return layout


def _tensor(name: Any, shape: Any) -> Tensor:
    """Raises ValueError for a name that is no text, or a shape that is no list of lengths."""
    lengths = tuple(shape)
    if not isinstance(name, str) or not all(
        type(length) is int and length >= 0 for length in lengths
    ):
        raise ValueError("a tensor has a name and a shape")
    return Tensor(name, lengths)


def blocks(size: int, block: int = BLOCK) -> Iterator[slice]:
    """Slices that cover range(size) in order."""
    for start in range(0, size, block):
        yield slice(start, min(start + block, size))


def release(*arrays: npt.NDArray[Any]) -> None:
    """Let the kernel drop the pages of memory-mapped arrays: they can be read again from disk."""
    for array in arrays:
        mapped = getattr(array, "_mmap", None)
        if isinstance(mapped, mmap.mmap):
            mapped.madvise(mmap.MADV_DONTNEED)


def mean(pairs: Sequence[tuple[Vector, float]]) -> Vector:
    """Weighted mean of (vector (d,), weight >= 0), summed in float64 in the order given.

    Raises ValueError for no pairs or for weights that sum to zero.
    """
    total = math.fsum(weight for _, weight in pairs)
    if not total > 0:
        raise ValueError(
            f"a mean needs a positive sum of weights, not {total} over {len(pairs)} vectors"
        )
    return combine([(vector, weight / total) for vector, weight in pairs])


def combine(pairs: Sequence[tuple[Vector, float]]) -> Vector:
    """The sum of coefficient * vector (d,), in float64 in the order given, cast to float32 once."""
    if not pairs:
        raise ValueError("cannot combine no vectors")
    result = np.empty(pairs[0][0].shape, np.float32)
    for span in blocks(result.size):
        total = np.zeros(span.stop - span.start, np.float64)
        for vector, coefficient in pairs:
            total += vector[span].astype(np.float64) * coefficient
            release(
                vector
            )  # now, not after the block: a hundred mapped blocks are a hundred megabytes
        result[span] = total
    return result


def squared_distance(a: Vector, b: Vector) -> float:
    """Sum of squared differences of two vectors (d,), by direct differences in float64."""
    return math.fsum(float(np.sum(_difference(a, b, span) ** 2)) for span in blocks(a.size))


def dot(a: Vector, b: Vector) -> float:
    """Inner product of two vectors (d,), in float64."""
    return math.fsum(
        float(np.sum(a[span].astype(np.float64) * b[span].astype(np.float64)))
        for span in blocks(a.size)
    )


def cosine(a: Vector, b: Vector) -> float:
    """Cosine similarity of two vectors (d,); 0 where one of them is zero."""
    norms = math.sqrt(dot(a, a)) * math.sqrt(dot(b, b))
    return dot(a, b) / norms if norms > 0 else 0.0


def _difference(a: Vector, b: Vector, span: slice) -> npt.NDArray[np.float64]:
    difference = a[span].astype(np.float64) - b[span].astype(np.float64)
    release(a, b)
    return difference
