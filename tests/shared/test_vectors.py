from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from covey.shared.numerics import vectors
from covey.shared.numerics.vectors import (
    BLOCK,
    Layout,
    Tensor,
    Vector,
    blocks,
    combine,
    cosine,
    dot,
    mean,
    release,
    squared_distance,
)

FLOATS = st.floats(-1e6, 1e6, width=32)
LAYOUT = Layout(
    (
        Tensor("conv.weight", (2, 1, 3)),
        Tensor("conv.bias", (2,)),
        Tensor("scale", ()),
        Tensor("out.weight", (3, 2)),
        Tensor("out.bias", (3,)),
        Tensor("norm.mean", (2,)),
    ),
    trainable=5,
)


def several(count: int, size: int) -> list[Vector]:
    return list(np.random.default_rng(3).standard_normal((count, size)).astype(np.float32))


@given(size=st.integers(0, 50), block=st.integers(1, 60))
def test_blocks_cover_everything_once_in_order(size: int, block: int) -> None:
    covered = [index for span in blocks(size, block) for index in range(span.start, span.stop)]
    assert covered == list(range(size))


@pytest.mark.parametrize("size", [0, 1, BLOCK, BLOCK + 1])
def test_a_mean_by_blocks_equals_numpy_in_float64(size: int) -> None:
    models, weights = several(3, size), [3.0, 1.0, 0.0]
    expected = np.average(np.array(models, np.float64), axis=0, weights=weights).astype(np.float32)
    got = mean(list(zip(models, weights, strict=True)))
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-12)
    assert got.dtype == np.float32


@given(
    models=hnp.arrays(
        np.float32, st.tuples(st.integers(1, 5), st.integers(1, 40)), elements=FLOATS
    ),
    block=st.integers(1, 50),
)
def test_the_cut_into_blocks_does_not_change_a_byte(models: Vector, block: int) -> None:
    pairs = [(model, index + 1.0) for index, model in enumerate(models)]
    whole = combine(pairs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectors, "blocks", lambda size: blocks(size, block))
        assert combine(pairs).tobytes() == whole.tobytes()


def test_a_mean_does_not_lose_small_addends_among_large_ones() -> None:
    pairs = [(np.array([value], np.float32), 1.0) for value in (1e8, 1.0, -1e8)]
    assert mean(pairs)[0] == pytest.approx(1 / 3, abs=1e-7)  # float32 sums would give 0


@pytest.mark.parametrize(
    "pairs", [[], [(np.zeros(1, np.float32), 0.0)], [(np.zeros(1, np.float32), float("nan"))]]
)
def test_a_mean_of_nothing_is_our_mistake(pairs: list[tuple[Vector, float]]) -> None:
    with pytest.raises(ValueError, match="positive sum"):
        mean(pairs)
    with pytest.raises(ValueError, match="no vectors"):
        combine([])


def test_memory_mapped_vectors_fold_to_the_same_bytes(tmp_path: Path) -> None:
    models = several(2, BLOCK + 5)
    for index, model in enumerate(models):
        np.save(tmp_path / f"{index}.npy", model)
    mapped = [np.load(tmp_path / f"{index}.npy", mmap_mode="r") for index in range(2)]
    assert mean([(m, 1.0) for m in mapped]).tobytes() == mean([(m, 1.0) for m in models]).tobytes()


def test_released_pages_are_read_again_from_disk(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", several(1, BLOCK)[0])
    mapped = np.load(tmp_path / "v.npy", mmap_mode="r")
    before = mapped.sum()
    release(mapped, mapped[3:], np.zeros(3))
    assert mapped.sum() == before


def test_release_gives_up_the_pages_of_mapped_arrays_and_their_views(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    np.save(tmp_path / "v.npy", np.zeros(10, np.float32))
    mapped = np.load(tmp_path / "v.npy", mmap_mode="r")
    assert isinstance(mapped._mmap, mmap.mmap)
    resident = several(1, 3)[0]
    advised: list[int] = []

    class Map(mmap.mmap):
        def madvise(self, option: int, *span: int) -> None:
            advised.append(option)

    with (tmp_path / "v.npy").open("rb") as file:
        mapped._mmap = Map(file.fileno(), 0, access=mmap.ACCESS_READ)
    release(mapped, resident)
    assert advised == [mmap.MADV_DONTNEED]


@given(data=st.data())
def test_distances_and_products_equal_numpy_in_float64(data: st.DataObject) -> None:
    a = data.draw(hnp.arrays(np.float32, st.integers(1, 30), elements=FLOATS))
    b = data.draw(hnp.arrays(np.float32, a.shape, elements=FLOATS))
    x, y = a.astype(np.float64), b.astype(np.float64)
    assert squared_distance(a, b) == pytest.approx(np.sum((x - y) ** 2), rel=1e-12)
    assert dot(a, b) == pytest.approx(np.dot(x, y), rel=1e-9, abs=1e-3)
    assert abs(cosine(a, b)) <= 1 + 1e-9


def test_distances_add_up_over_blocks() -> None:
    a, b = several(2, BLOCK + 7)
    expected = float(np.sum((a.astype(np.float64) - b.astype(np.float64)) ** 2))
    assert squared_distance(a, b) == pytest.approx(expected, rel=1e-12)


def test_the_cosine_with_nothing_is_zero() -> None:
    assert cosine(np.zeros(3, np.float32), np.ones(3, np.float32)) == 0.0


def test_a_layout_knows_its_sizes_and_modules() -> None:
    assert (LAYOUT.size, LAYOUT.parameters) == (6 + 2 + 1 + 6 + 3 + 2, 18)
    assert LAYOUT.modules == ("conv", "", "out")
    assert LAYOUT.final_layer == slice(9, 18)
    assert LAYOUT.span_of("conv") == [slice(0, 6), slice(6, 8)]


def test_named_tensors_are_views_of_the_vector() -> None:
    vector = np.arange(LAYOUT.size, dtype=np.float32)
    named = LAYOUT.named(vector)
    assert named["out.weight"].tolist() == [[9, 10], [11, 12], [13, 14]]
    assert named["scale"].shape == ()
    assert np.shares_memory(named["conv.weight"], vector)
    with pytest.raises(ValueError, match="the layout wants"):
        LAYOUT.named(vector[:-1])


def test_named_tensors_make_the_vector_again_in_any_order_of_names() -> None:
    vector = np.arange(LAYOUT.size, dtype=np.float32)
    named = dict(reversed(LAYOUT.named(vector).items()))
    np.testing.assert_array_equal(LAYOUT.vector(named), vector, strict=True)
    for wrong in (
        {**named, "more": vector},
        {**named, "scale": vector[:1]},
        {"scale": named["scale"]},
    ):
        assert not LAYOUT.fits(wrong)
        with pytest.raises(ValueError, match="not the tensors of the layout"):
            LAYOUT.vector(wrong)


def test_a_layout_survives_the_wire() -> None:
    assert Layout.from_wire(LAYOUT.to_wire()) == LAYOUT


def test_the_digest_depends_on_names_shapes_order_and_trainable() -> None:
    first, *rest = LAYOUT.tensors
    others = [
        Layout((Tensor("x.weight", first.shape), *rest), 5),
        Layout((Tensor(first.name, (3, 1, 2)), *rest), 5),
        Layout((*rest, first), 5),
        Layout(LAYOUT.tensors, 6),
    ]
    assert len({layout.digest for layout in (LAYOUT, *others)}) == 5
    assert Layout(LAYOUT.tensors, 5).digest == LAYOUT.digest


def test_the_digest_is_the_same_on_every_machine() -> None:
    assert Layout((Tensor("w", (2,)),), 1).digest == "52f753fd065646bd"
