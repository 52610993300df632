from __future__ import annotations

import tracemalloc
import zlib

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from covey.agent.training.torch_learner import write_float16
from covey.shared.errors import DecodeError
from covey.shared.numerics.vectors import BLOCK, Vector
from covey.shared.scenario.aggregation import Wire
from covey.shared.wire import number_formats
from covey.shared.wire.codec import Codec, Name, decode, encode
from covey.shared.wire.largest import SAMPLE_EVERY
from covey.shared.wire.messages import DIGEST_BYTES, Encoded
from covey.shared.wire.number_formats import MAX_BFLOAT16, MAX_FLOAT16, MIN_SCALE

NAMES: tuple[Name, ...] = ("float32", "float16", "bfloat16", "int8", "topk")
DIGEST = b"b" * DIGEST_BYTES
MAX_SHORT_BFLOAT16 = 0x7F7F  # its bits without the sign
FLOATS = st.floats(-1e4, 1e4, width=32)
VECTORS = hnp.arrays(np.float32, st.integers(0, 70), elements=FLOATS)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def vector(*values: float) -> Vector:
    return np.array(values, np.float32)


def there_and_back(values: Vector, codec: Codec, base: Vector | None = None) -> Vector:
    encoded, _ = encode(values, codec, base=base, base_digest=DIGEST, rng=rng())
    wire = Encoded.model_validate(encoded.model_dump())
    return decode(
        wire, length=values.size, bases={DIGEST: base}.__getitem__ if base is not None else None
    )


def tolerance(name: Name, values: Vector) -> Vector:
    """The largest error that a codec may make, per value."""
    peak = np.abs(values).max(initial=0)
    relative = {"float32": 0, "float16": 2**-11, "bfloat16": 2**-8, "int8": 0, "topk": 0}[name]
    absolute = {"float16": 2**-25, "int8": max(peak / 127, MIN_SCALE)}.get(name, 0)
    return np.asarray(np.abs(values) * relative + absolute * (1 + 1e-5) + 1e-38, np.float32)


@pytest.mark.parametrize("name", NAMES)
@given(values=VECTORS)
def test_a_decoded_vector_is_as_close_as_the_codec_promises(name: Name, values: Vector) -> None:
    back = there_and_back(values, Codec(name, block=8))
    assert back.dtype == np.float32
    assert (np.abs(back - values) <= tolerance(name, values)).all()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "topk"])
@given(data=st.data())
def test_a_difference_comes_back_as_close_as_the_codec_promises(
    name: Name, data: st.DataObject
) -> None:
    values = data.draw(VECTORS)
    base = data.draw(hnp.arrays(np.float32, values.shape, elements=FLOATS))
    back = there_and_back(values, Codec(name, delta=True, block=8), base)
    rounding = np.float32(2**-22) * (
        np.abs(values) + np.abs(base)
    )  # of the subtraction and the addition
    assert (np.abs(back - values) <= tolerance(name, values - base) + rounding).all()


@given(
    values=hnp.arrays(
        np.float32,
        st.integers(0, 70),
        elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
    )
)
@pytest.mark.parametrize("name", NAMES)
def test_every_finite_vector_can_be_sent_and_read(name: Name, values: Vector) -> None:
    assert np.isfinite(there_and_back(values, Codec(name, block=8))).all()


def test_float32_is_exact_to_the_bit() -> None:
    values = vector(-0.0, 1e-45, 3.4028235e38, 0.1)
    assert there_and_back(values, Codec()).tobytes() == values.tobytes()


def test_the_bytes_are_little_endian() -> None:
    assert encode(vector(1.0), Codec(), rng=rng())[0].data == b"\x00\x00\x80\x3f"
    assert encode(vector(1.0), Codec("float16"), rng=rng())[0].data == b"\x00\x3c"
    assert encode(vector(1.0), Codec("bfloat16"), rng=rng())[0].data == b"\x80\x3f"


@pytest.mark.parametrize(
    ("bits", "rounded"),
    [
        (0x3F808000, 0x3F80),
        (0x3F818000, 0x3F82),
        (0x3F808001, 0x3F81),
        (0x3F80FFFF, 0x3F81),
        (0xBF818000, 0xBF82),
    ],
)
def test_bfloat16_rounds_to_nearest_and_ties_to_even(bits: int, rounded: int) -> None:
    value = np.array([bits], np.uint32).view(np.float32)
    assert encode(value, Codec("bfloat16"), rng=rng())[0].data == rounded.to_bytes(2, "little")


CONVERSIONS_TO_FLOAT16 = pytest.mark.parametrize(
    "conversion", [number_formats._float16, write_float16]
)


@CONVERSIONS_TO_FLOAT16
def test_float16_has_the_bytes_of_numpys_conversion_at_every_boundary(
    conversion: number_formats.Conversion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(number_formats.CONVERSIONS, "float16", conversion)
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = (halves[1:] + halves[:-1]) / 2
    exact = np.concatenate([halves, ties])
    below = np.nextafter(exact, np.float32(-1))
    above = np.nextafter(exact, np.float32(np.inf))
    tiny = np.arange(1 << 10, dtype=np.uint32).view(np.float32)  # subnormal in float32, too
    values = np.concatenate([exact, below, above, tiny])
    values = values[np.abs(values) <= MAX_FLOAT16]
    values = np.concatenate([values, -values])
    assert number_formats.to_float16(values) == values.astype("<f2").tobytes()


FLOAT32_BITS = hnp.arrays(np.uint32, st.integers(0, 70), elements=st.integers(0, 2**32 - 1))


@CONVERSIONS_TO_FLOAT16
@given(bits=FLOAT32_BITS)
def test_float16_of_any_bits_is_numpys_conversion_or_an_error(
    conversion: number_formats.Conversion, bits: npt.NDArray[np.uint32]
) -> None:
    values = bits.view(np.float32)
    values.flags.writeable = False
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(number_formats.CONVERSIONS, "float16", conversion)
        if not np.isfinite(values).all():
            with pytest.raises(ValueError, match="NaN"):
                number_formats.to_float16(values)
            return
        within = np.clip(values, -MAX_FLOAT16, MAX_FLOAT16)
        assert number_formats.to_float16(values) == within.astype("<f2").tobytes()


@given(bits=FLOAT32_BITS)
def test_bfloat16_of_any_bits_is_the_nearest_and_of_two_the_even_one(
    bits: npt.NDArray[np.uint32],
) -> None:
    values = bits.view(np.float32)
    if not np.isfinite(values).all():
        with pytest.raises(ValueError, match="NaN"):
            number_formats.to_bfloat16(values)
        return
    expected = []
    for pattern in bits.tolist():
        short, rest = divmod(pattern, 1 << 16)
        is_odd = short % 2
        if rest + is_odd > 1 << 15 and short % (1 << 15) < MAX_SHORT_BFLOAT16:
            short += 1
        expected.append(short)
    assert number_formats.to_bfloat16(values) == np.array(expected, "<u2").tobytes()


@pytest.mark.parametrize(
    ("codec", "checksum"),
    [
        (Codec(), 2170159467),
        (Codec("float16"), 727758515),
        (Codec("bfloat16"), 3676516571),
        (Codec("int8"), 4001801017),
        (Codec("int8", block=1000), 98836783),
        (Codec("topk", delta=True), 910510169),
    ],
)
def test_the_bytes_of_a_vector_stay_what_they_are(codec: Codec, checksum: int) -> None:
    """300 000 values are more than two blocks that are converted together."""
    numbers = np.arange(300_000, dtype=np.uint32) * np.uint32(2_654_435_769)
    values = numbers.view(np.int32).astype(np.float32) / np.float32(2**33)
    base = np.roll(values, 1)
    encoded, _ = encode(values, codec, base=base, base_digest=DIGEST, rng=rng())
    assert zlib.crc32(encoded.data + encoded.scale + encoded.index) == checksum


@pytest.mark.parametrize(
    ("name", "bytes_per_value"), [("float16", 2), ("bfloat16", 2), ("int8", 1)]
)
def test_a_vector_is_encoded_without_a_second_copy(name: Name, bytes_per_value: int) -> None:
    values = np.ones(1 << 21, np.float32)
    tracemalloc.start()
    encoded, _ = encode(values, Codec(name), rng=rng())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(encoded.data) == bytes_per_value * values.size
    for_blocks = 16 * number_formats.IN_CACHE
    assert peak < 1.1 * len(encoded.data) + for_blocks


def test_values_beyond_the_range_of_a_short_float_become_its_largest() -> None:
    largest = vector(3.4028235e38, -3.4028235e38)
    assert there_and_back(largest, Codec("float16")).tolist() == [65504, -65504]
    assert there_and_back(largest, Codec("bfloat16")).tolist() == [MAX_BFLOAT16, -MAX_BFLOAT16]


def test_the_largest_floats_there_are_do_not_overflow_in_int8() -> None:
    values = vector(3.4028235e38, -3.4028235e38, 3.4028233e38)
    np.testing.assert_allclose(there_and_back(values, Codec("int8")), values, rtol=0.01)


def test_int8_is_right_on_average() -> None:
    values = np.concatenate(
        [vector(1.27), np.full(200_000, 0.0033, np.float32)]
    )  # a third of a step of 0.01
    back = there_and_back(values, Codec("int8", block=1 << 20))
    assert set(np.round(back[1:], 4).tolist()) == set(np.round(vector(0.0, 0.01), 4).tolist())
    assert float(back[1:].mean(dtype=np.float64)) == pytest.approx(
        0.0033, abs=6 * 0.0047 / 200_000**0.5
    )


class EveryDraw:
    """Random bytes that take every value once; the shared bits are given."""

    def __init__(self, shared: int) -> None:
        self._shared = np.array([shared << 59], np.uint64)

    def random_raw(self, words: int) -> np.ndarray:
        every_byte = np.arange(8 * (words - 1), dtype=np.uint8).view(np.uint64)
        return np.concatenate([every_byte, self._shared])


def mean_step(steps: float) -> float:
    """The mean of the roundings of `steps`, over all random numbers that there are."""
    means = []
    for shared in range(1 << number_formats.SHARED_BITS):
        fractions = np.full(256, steps * 256, np.float32)
        scratch = number_formats.Scratch(256)
        rounded = np.empty(256, np.uint8)
        number_formats._round_steps(fractions, EveryDraw(shared), rounded, scratch)  # type: ignore[arg-type]
        means.append(rounded.view(np.int8).mean())
    return float(np.mean(means))


@pytest.mark.parametrize("steps", [-126.999, -64.3, -0.5, -1e-3, 0, 1e-5, 0.123456, 1 / 3, 99.9])
def test_int8_is_right_on_average_over_all_random_numbers(steps: float) -> None:
    rounding_of_sum = 2**-17  # 128 steps in float32
    assert abs(mean_step(steps) - steps) <= 2**-14 + rounding_of_sum


def test_int8_never_exceeds_127_steps() -> None:
    inexact = 1 + 3 * 2**-24  # the scale, its inverse and the product are rounded
    assert mean_step(127 * inexact) == 127
    assert mean_step(-127 * inexact) == -127


def test_int8_scales_each_block_by_its_own_largest_value() -> None:
    values = vector(*[1000.0] * 8, *[0.001] * 8, *[0.0] * 8)
    assert there_and_back(values, Codec("int8", block=8)).tolist() == pytest.approx(
        values.tolist(), rel=1e-6
    )


def test_int8_draws_from_the_generator_alone() -> None:
    values = rng(1).standard_normal(1000).astype(np.float32)
    first, again, other = (
        encode(values, Codec("int8"), rng=rng(seed))[0].data for seed in (5, 5, 6)
    )
    assert first == again != other


@pytest.mark.parametrize("length", [1, 255, 256, 257, BLOCK - 1, BLOCK + 257, 2 * BLOCK])
@pytest.mark.parametrize("block", [8, 256, 1000, 1 << 20])
def test_int8_needs_no_header_for_the_block_length(length: int, block: int) -> None:
    values = np.linspace(1, 2, length, dtype=np.float32)
    assert (
        np.abs(there_and_back(values, Codec("int8", block=block)) - values).max() <= 2 / 127 + 1e-6
    )


def test_topk_sends_the_largest_differences_and_keeps_the_rest() -> None:
    base, values = vector(1, 1, 1, 1), vector(1.5, -2, 1, 1.25)
    encoded, error = encode(
        values, Codec("topk", True, keep=0.25), base=base, base_digest=DIGEST, rng=rng()
    )
    assert decode(encoded, length=4, bases=lambda _: base).tolist() == [1, -2, 1, 1]
    assert error is not None
    assert error.tolist() == [0.5, 0, 0, 0.25]


def test_topk_sends_in_the_end_everything_that_it_kept() -> None:
    codec, base, step = (
        Codec("topk", True, keep=0.25),
        np.zeros(8, np.float32),
        np.arange(1, 9, dtype=np.float32),
    )
    error: Vector | None = None
    arrived = np.zeros(8)
    for sent in range(1, 30):
        encoded, error = encode(step, codec, base=base, base_digest=DIGEST, error=error, rng=rng())
        arrived += decode(encoded, length=8, bases=lambda _: base)
        assert error is not None
        assert (arrived + error).tolist() == (step * sent).tolist()
    assert error is not None
    assert error.max() < 60  # bounded: what waits longest grows until it is among the largest


def test_topk_of_equal_values_sends_the_first() -> None:
    encoded, _ = encode(
        np.ones(10, np.float32),
        Codec("topk", True, keep=0.3),
        base=np.zeros(10, np.float32),
        base_digest=DIGEST,
        rng=rng(),
    )
    assert np.frombuffer(encoded.index, "<u4").tolist() == [0, 1, 2]


@pytest.mark.parametrize("where", ["anywhere", "in the sample", "outside of the sample", "equal"])
def test_topk_finds_the_largest_of_many_without_sorting_all(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    length = 50_000
    kept = length // 100
    values = rng().normal(0, 1, length).astype(np.float32)
    if where == "in the sample":
        values[::SAMPLE_EVERY] *= 100
    if where == "outside of the sample":
        values[1::SAMPLE_EVERY] *= 100
    if where == "equal":
        values = np.sign(values) * np.float32(0.5)
    sorted_out: list[int] = []
    partition = np.partition

    def counted(array: Vector, kth: int) -> Vector:
        sorted_out.append(array.size)
        return partition(array, kth)

    monkeypatch.setattr(np, "partition", counted)
    base = np.zeros(length, np.float32)
    codec = Codec("topk", delta=True, keep=0.01)
    encoded, _ = encode(values, codec, base=base, base_digest=DIGEST, rng=rng())
    in_order = np.argsort(-np.abs(values), kind="stable")
    expected = np.sort(in_order[:kept])
    assert np.array_equal(np.frombuffer(encoded.index, "<u4"), expected)
    if where == "anywhere":
        assert sum(sorted_out) < length / 10


@pytest.mark.parametrize(("keep", "sent"), [(0.01, 1), (0.3, 3), (0.31, 4), (1.0, 10)])
def test_topk_sends_the_share_rounded_up(keep: float, sent: int) -> None:
    zeros = np.zeros(10, np.float32)
    encoded, _ = encode(
        zeros + 1, Codec("topk", True, keep=keep), base=zeros, base_digest=DIGEST, rng=rng()
    )
    assert len(encoded.index) == 4 * sent


def test_topk_without_a_base_sends_everything() -> None:
    values = vector(1, 2, 3)
    encoded, error = encode(values, Codec("topk", True), rng=rng())
    assert (encoded.codec, error) == ("float32", None)


def test_encoding_changes_neither_vector_nor_base_nor_error() -> None:
    for name in NAMES:
        values, base, error = vector(1, 2, 3), vector(3, 2, 1), vector(1, 0, 0)
        for array in (values, base, error):
            array.flags.writeable = False
        encode(values, Codec(name, True), base=base, base_digest=DIGEST, error=error, rng=rng())
        encode(values, Codec(name), rng=rng())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_vector_that_is_not_finite_is_not_sent(name: Name, value: float) -> None:
    base = vector(0, 0)
    for codec in (Codec(name), Codec(name, True)):
        with pytest.raises(ValueError, match="NaN"):
            encode(vector(1, value), codec, base=base, base_digest=DIGEST, rng=rng())


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_one_value_that_is_not_finite_is_found_among_many(value: float) -> None:
    length = 3 * SAMPLE_EVERY
    values = rng().normal(0, 1, length).astype(np.float32)
    values[SAMPLE_EVERY + 1] = value
    base = np.zeros(length, np.float32)
    codec = Codec("topk", delta=True)
    with pytest.raises(ValueError, match="NaN"):
        encode(values, codec, base=base, base_digest=DIGEST, rng=rng())


def test_a_difference_or_a_sum_with_the_error_that_overflows_is_not_sent() -> None:
    huge = vector(3e38)
    with pytest.raises(ValueError, match="NaN"):
        encode(huge, Codec("float32", True), base=-huge, base_digest=DIGEST, rng=rng())
    with pytest.raises(ValueError, match="NaN"):
        encode(huge, Codec("topk", True), base=vector(0), base_digest=DIGEST, error=huge, rng=rng())


def test_lengths_that_differ_are_errors_of_the_caller() -> None:
    with pytest.raises(ValueError, match="base"):
        encode(vector(1), Codec("float32", True), base=vector(1, 2), base_digest=DIGEST, rng=rng())
    with pytest.raises(ValueError, match="digest"):
        encode(vector(1), Codec("float32", True), base=vector(1), rng=rng())
    with pytest.raises(ValueError, match="error"):
        encode(
            vector(1),
            Codec("topk", True),
            base=vector(1),
            base_digest=DIGEST,
            error=vector(1, 2),
            rng=rng(),
        )


def test_topk_decodes_to_the_bytes_of_the_base_plus_a_vector_with_zeros() -> None:
    base = vector(-0.0, 0.0, -0.0, 1.5, 2.0)
    sparse = vector(0.0, 0.0, -0.0, 0.25, 0.0)
    index = places(2, 3)
    encoded = Encoded(codec="topk", length=5, base=DIGEST, data=floats(-0.0, 0.25), index=index)
    decoded = decode(encoded, length=5, bases=lambda _: base)
    assert decoded.tobytes() == (base + sparse).tobytes()


def refused(encoded: Encoded, length: int = 2, base: Vector | None = None) -> str:
    with pytest.raises(DecodeError) as refusal:
        decode(
            encoded, length=length, bases={DIGEST: base}.__getitem__ if base is not None else None
        )
    return refusal.value.reason


def floats(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


def places(*values: int) -> bytes:
    return np.array(values, "<u4").tobytes()


@pytest.mark.parametrize(
    ("encoded", "reason"),
    [
        (Encoded(codec="zip", length=2, data=b"12345678"), "unknown codec"),
        (Encoded(codec="float32", length=3, data=b"1234" * 3), "wrong length"),
        (Encoded(codec="float32", length=2, data=b"1234567"), "wrong length"),
        (Encoded(codec="float32", length=2, data=b"12345678", scale=b"1"), "wrong length"),
        (Encoded(codec="float32", length=2, data=b"12345678", index=b"1"), "wrong length"),
        (Encoded(codec="float16", length=2, data=b"12345678"), "wrong length"),
        (Encoded(codec="bfloat16", length=2, data=b"123"), "wrong length"),
        (Encoded(codec="float32", length=2, data=floats(1, np.nan)), "not finite"),
        (Encoded(codec="float32", length=2, data=floats(-np.inf, 1)), "not finite"),
        (Encoded(codec="float16", length=2, data=b"\x00\x7c\x00\x00"), "not finite"),
        (Encoded(codec="bfloat16", length=2, data=b"\xc0\x7f\x00\x00"), "not finite"),
        (Encoded(codec="int8", length=2, data=b"12"), "bad scale"),
        (Encoded(codec="int8", length=2, data=b"12", scale=floats(1, 1, 1)), "bad scale"),
        (Encoded(codec="int8", length=2, data=b"12", scale=floats(np.nan)), "bad scale"),
        (Encoded(codec="int8", length=2, data=b"12", scale=floats(-1)), "bad scale"),
        (Encoded(codec="int8", length=2, data=b"12", scale=b"12345"), "wrong length"),
        (Encoded(codec="int8", length=2, data=b"12", scale=floats(3e38)), "not finite"),
        (Encoded(codec="topk", length=2, data=floats(1), index=places(0)), "no base"),
        (Encoded(codec="float32", length=2, data=floats(1, 2), base=DIGEST), "no base"),
    ],
)
def test_the_decoder_refuses_an_impossible_vector_with_a_named_reason(
    encoded: Encoded, reason: str
) -> None:
    assert refused(encoded) == reason


@pytest.mark.parametrize(
    ("data", "index", "reason"),
    [
        (floats(1), places(2), "bad index"),
        (floats(1, 2), places(1, 0), "bad index"),
        (floats(1, 2), places(1, 1), "bad index"),
        (floats(1, 2), places(0), "wrong length"),
        (floats(np.nan), places(0), "not finite"),
        (floats(3e38), places(0), "not finite"),  # the base holds 3e38 too
    ],
)
def test_sparse_differences_name_each_place_once_in_order(
    data: bytes, index: bytes, reason: str
) -> None:
    base = vector(3e38, 0)
    assert (
        refused(Encoded(codec="topk", length=2, base=DIGEST, data=data, index=index), base=base)
        == reason
    )


def test_a_difference_to_an_unknown_or_another_models_base_is_refused() -> None:
    encoded = Encoded(codec="float32", length=2, base=DIGEST, data=floats(1, 2))
    other = encoded.model_copy(update={"base": b"another"})
    assert refused(other, base=vector(1, 2)) == "no base"
    assert refused(encoded, base=vector(1, 2, 3)) == "wrong base"


def test_a_negative_length_allows_any_length_up_to_it() -> None:
    for size in (0, 1, 3):
        encoded = encode(np.ones(size, np.float32), Codec(), rng=rng())[0]
        assert decode(encoded, length=-3).size == size
    assert (
        refused(encode(np.ones(4, np.float32), Codec(), rng=rng())[0], length=-3) == "wrong length"
    )
    assert (
        refused(encode(np.ones(1, np.float32), Codec(), rng=rng())[0], length=0) == "wrong length"
    )


def test_a_huge_length_is_refused_before_memory_is_set_aside_for_it() -> None:
    assert (
        refused(Encoded(codec="topk", length=2**50, base=DIGEST, data=b""), base=vector(1, 2))
        == "wrong length"
    )


@given(
    name=st.sampled_from([*NAMES, "other"]),
    length=st.integers(0, 12),
    wanted=st.integers(-12, 12),
    base=st.sampled_from([b"", DIGEST, b"?"]),
    data=st.binary(max_size=48),
    scale=st.binary(max_size=16),
    index=st.binary(max_size=16),
)
def test_any_content_is_a_finite_vector_or_refused(
    name: str, length: int, wanted: int, base: bytes, data: bytes, scale: bytes, index: bytes
) -> None:
    encoded = Encoded(codec=name, length=length, base=base, data=data, scale=scale, index=index)
    _finite_or_refused(encoded, wanted)


@given(data=st.data(), name=st.sampled_from(NAMES), values=VECTORS)
def test_any_mutation_or_prefix_is_a_finite_vector_or_refused(
    data: st.DataObject, name: Name, values: Vector
) -> None:
    base = np.zeros_like(values)
    encoded, _ = encode(values, Codec(name, True, 8, 0.2), base=base, base_digest=DIGEST, rng=rng())
    where = data.draw(st.sampled_from(["data", "scale", "index"]))
    content = bytearray(getattr(encoded, where))
    if content:
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    _finite_or_refused(encoded.model_copy(update={where: bytes(content)}), values.size)
    for end in range(len(content)):
        _finite_or_refused(encoded.model_copy(update={where: bytes(content[:end])}), values.size)


def _finite_or_refused(encoded: Encoded, wanted: int) -> None:
    base = np.ones(encoded.length, np.float32)
    try:
        result = decode(encoded, length=wanted, bases={DIGEST: base}.__getitem__)
    except DecodeError:
        return
    assert result.dtype == np.float32
    assert np.isfinite(result).all()
    assert result.size == wanted or result.size <= -wanted


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("delta", [False, True])
@given(length=st.integers(0, 3000), block=st.integers(8, 500), keep=st.floats(0.001, 1))
def test_the_size_is_known_before_encoding(
    name: Name, delta: bool, length: int, block: int, keep: float
) -> None:
    codec, values = Codec(name, delta, block, keep), np.ones(length, np.float32)
    encoded, _ = encode(values, codec, base=values, base_digest=DIGEST, rng=rng())
    assert codec.payload_bytes(length, based=True) == (
        len(encoded.data),
        len(encoded.scale),
        len(encoded.index),
    )
    plain, _ = encode(values, codec, rng=rng())
    assert codec.payload_bytes(length, based=False) == (
        len(plain.data),
        len(plain.scale),
        len(plain.index),
    )


def test_a_codec_travels_in_an_order() -> None:
    codec = Codec("int8", True, 64, 0.5)
    assert codec.to_wire() == {"name": "int8", "delta": True, "block": 64, "keep": 0.5}
    assert Codec.from_wire(codec.to_wire()) == codec


@pytest.mark.parametrize(
    "wire", [{"name": "zip"}, {"block": 1}, {"keep": 0}, {"other": 1}, {"delta": 1}, {"keep": "1"}]
)
def test_a_codec_that_we_do_not_have_is_refused(wire: dict[str, object]) -> None:
    with pytest.raises(DecodeError) as refusal:
        Codec.from_wire(wire)
    assert refusal.value.reason == "codec"


def test_every_codec_that_a_scenario_can_name_is_here() -> None:
    named = Wire.model_fields["codec"].annotation, Wire.model_fields["down"].annotation
    assert {name for choice in named for name in choice.__args__} == set(NAMES)  # type: ignore[union-attr]
