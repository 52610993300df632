"""A model as one flat float32 array, and the layout that gives the array its meaning.

A vector holds the trainable parameters in the order of torch's `named_parameters()`, then the
floating-point buffers. Sums run in float64 over blocks, so folding N memory-mapped reports needs
memory for one block, not for N models, and the result does not depend on the size of the blocks.
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

from covey.shared.errors import DecodeError
from covey.shared.storage import json_text

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

    @property
    def module(self) -> str:
        """The module that it belongs to: the name up to the last dot."""
        return self.name.rpartition(".")[0]


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a model's tensors, in the order in which a vector holds them."""

    tensors: tuple[Tensor, ...]

    # The first `trainable` tensors are parameters. The others are floating-point buffers, which are
    # averaged with the parameters but do not count in distances.
    trainable: int

    # parameters that the model's own code does not train, in the order of the tensors
    frozen: tuple[str, ...] = ()

    @cached_property
    def size(self) -> int:
        """Length of a vector: parameters and buffers."""
        return _values(self.tensors)

    @cached_property
    def parameters(self) -> int:
        """P, the number of trainable parameters."""
        return _values(self.tensors[: self.trainable])

    @cached_property
    def digest(self) -> str:
        """A short hash of names, shapes, order and what is frozen: equal layouts have equal digests."""
        content = [self.trainable, self._names_and_shapes()]
        if self.frozen:
            content.append(list(self.frozen))
        text = json_text.dumps(content)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def spans(self) -> Iterator[tuple[Tensor, slice]]:
        """Each tensor with its slice of a vector."""
        start = 0
        for tensor in self.tensors:
            stop = start + tensor.size
            yield tensor, slice(start, stop)
            start = stop

    def span_of(self, *modules: str) -> list[slice]:
        """Slices of the parameters whose module is among `modules`."""
        parameters = list(self.spans())[: self.trainable]
        return [span for tensor, span in parameters if tensor.module in modules]

    @cached_property
    def modules(self) -> tuple[str, ...]:
        """Parametrised modules from input to output, for example ("conv1", "conv2", "fc1")."""
        parameters = self.tensors[: self.trainable]
        return tuple(dict.fromkeys([tensor.module for tensor in parameters]))

    @cached_property
    def final_layer(self) -> slice:
        """The last parametrised module, weights and bias together."""
        spans = self.span_of(self.modules[-1])
        return slice(spans[0].start, spans[-1].stop)

    @cached_property
    def outputs(self) -> int:
        """Outputs of the final layer: the classes of a classifier that ends in a linear layer."""
        final = self.modules[-1]
        return next(tensor for tensor in self.tensors if tensor.module == final).shape[0]

    @cached_property
    def last_width(self) -> int:
        """Numbers that an output of the final layer reads."""
        final = self.modules[-1]
        first = next(tensor for tensor in self.tensors if tensor.module == final)
        return first.size // self.outputs

    def named(self, vector: Vector) -> dict[str, npt.NDArray[np.float32]]:
        """Views of a vector (size,) by tensor name, with the tensors' shapes.

        Raises:
            ValueError: the vector has another length.
        """
        if vector.shape != (self.size,):
            raise ValueError(f"vector has shape {vector.shape}, the layout wants ({self.size},)")
        return {tensor.name: vector[span].reshape(tensor.shape) for tensor, span in self.spans()}

    def fits(self, named: Mapping[str, npt.NDArray[Any]]) -> bool:
        """Whether these arrays are the layout's tensors, by name and shape."""
        actual = {name: array.shape for name, array in named.items()}
        return actual == {tensor.name: tensor.shape for tensor in self.tensors}

    def vector(self, named: Mapping[str, npt.NDArray[Any]]) -> Vector:
        """The inverse of `named`: one float32 array (size,) from arrays by tensor name.

        Raises:
            ValueError: the arrays are not the layout's tensors.
        """
        if not self.fits(named):
            raise ValueError("the arrays are not the tensors of the layout")
        flat = [named[tensor.name].reshape(-1) for tensor in self.tensors]
        return np.concatenate(flat).astype(np.float32)

    def to_wire(self) -> dict[str, Any]:
        """A form that msgpack and JSON have."""
        wire: dict[str, Any] = {"trainable": self.trainable, "tensors": self._names_and_shapes()}
        return wire | {"frozen": list(self.frozen)} if self.frozen else wire

    def _names_and_shapes(self) -> list[list[Any]]:
        """A list of [name, shape], in the order of the tensors."""
        return [[tensor.name, list(tensor.shape)] for tensor in self.tensors]

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Layout:
        """The layout that `to_wire` wrote.

        Raises:
            DecodeError: ("layout") it is anything else, or too large.
        """
        try:
            tensors = tuple(_tensor(*entry) for entry in wire["tensors"])
            trainable = wire["trainable"]
            frozen = tuple(wire.get("frozen", ()))
        except (KeyError, TypeError, ValueError):
            raise _not_a_layout() from None
        if type(trainable) is not int or not 0 <= trainable <= len(tensors):
            raise _not_a_layout()
        has_namesakes = len({tensor.name for tensor in tensors}) < len(tensors)
        layout = cls(tensors, trainable, frozen)
        in_order = tuple(one.name for one in tensors[:trainable] if one.name in frozen)
        if has_namesakes or layout.size > MAX_VALUES or in_order != frozen:
            raise _not_a_layout()
        return layout


def _values(tensors: Sequence[Tensor]) -> int:
    """The number of values of some tensors together."""
    return sum(tensor.size for tensor in tensors)


def _not_a_layout() -> DecodeError:
    return DecodeError(
        "layout", "expected tensors by name and shape, and how many of them are trained"
    )


def _tensor(name: Any, shape: Any) -> Tensor:
    """Raises ValueError for a name that is not text, or a shape that is not a list of lengths."""
    lengths = tuple(shape)
    are_lengths = all(type(length) is int and length >= 0 for length in lengths)
    if not isinstance(name, str) or not are_lengths:
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


Peaks = list[float]  # the largest absolute value of each block of a vector


def peaks(vector: Vector) -> Peaks:
    """The largest absolute value of each block of `BLOCK` values, in one pass; NaN where there is one."""
    found: Peaks = []
    for span in blocks(vector.size):
        values = vector[span]
        found.append(max(float(values.max()), -float(values.min())))
        release(vector)
    return found


class Measured(dict[str, Vector]):
    """Vectors by name of which one pass has found the peaks."""

    def __init__(self, vectors: Mapping[str, tuple[Vector, Peaks]]) -> None:
        super().__init__({name: vector for name, (vector, _) in vectors.items()})
        self.peaks = {name: found for name, (_, found) in vectors.items()}


def widened(vector: Vector, span: slice) -> npt.NDArray[np.float64]:
    """A block of a vector in float64."""
    return vector[span].astype(np.float64)


def mean(pairs: Sequence[tuple[Vector, float]]) -> Vector:
    """The weighted mean of vectors, summed in float64 in the order given.

    Args:
        pairs: (vector (d,), weight >= 0).

    Raises:
        ValueError: there are no pairs, or the weights sum to zero.
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
    first, _ = pairs[0]
    result = np.empty(first.shape, np.float32)
    for span in blocks(result.size):
        total = np.zeros(span.stop - span.start, np.float64)
        for vector, coefficient in pairs:
            total += widened(vector, span) * coefficient
            # now, not after the block: a hundred mapped blocks are a hundred megabytes
            release(vector)
        result[span] = total
    return result


def squared_distance(a: Vector, b: Vector) -> float:
    """The sum of squared differences of two vectors (d,), by direct differences in float64."""
    sums: list[float] = []
    for span in blocks(a.size):
        difference = widened(a, span) - widened(b, span)
        release(a, b)
        sums.append(float(np.sum(difference**2)))
    return math.fsum(sums)


def dot(a: Vector, b: Vector) -> float:
    """The inner product of two vectors (d,), in float64."""
    sums = [float(np.sum(widened(a, span) * widened(b, span))) for span in blocks(a.size)]
    return math.fsum(sums)


def cosine(a: Vector, b: Vector) -> float:
    """Cosine similarity of two vectors (d,); 0 where one of them is zero."""
    length_a = math.sqrt(dot(a, a))
    lengths = length_a * math.sqrt(dot(b, b))
    if not lengths > 0:
        return 0.0
    return dot(a, b) / lengths
