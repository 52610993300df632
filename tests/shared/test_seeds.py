from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from covey.shared.seeds import entropy, generator

KEYS = st.lists(
    st.integers() | st.text(st.characters(exclude_characters="\x1f"), max_size=5), max_size=3
)


def test_the_same_purpose_gives_the_same_stream() -> None:
    assert (
        generator(7, "cohort", 3).random(4).tolist() == generator(7, "cohort", 3).random(4).tolist()
    )


def test_every_argument_changes_the_stream() -> None:
    streams = [
        (7, "cohort", ()),
        (8, "cohort", ()),
        (7, "batches", ()),
        (7, "cohort", (3,)),
        (7, "cohort", (3, "a")),
        (7, "cohort", ("a", 3)),
        (7, "cohort", ("3a",)),
    ]
    assert len({entropy(seed, purpose, *keys) for seed, purpose, keys in streams}) == len(streams)


def test_the_entropy_is_the_same_on_every_machine() -> None:
    assert entropy(7, "cohort", 3, "pi-7") == 173602736395722493909354852074959198153


def test_a_key_may_be_a_file_name_that_is_not_utf_8() -> None:
    name = b"caf\xe9".decode(errors="surrogateescape")
    assert entropy(0, "x", name) != entropy(0, "x", "caf\xe9")


@given(first=KEYS, second=KEYS)
def test_keys_cannot_run_into_one_another(first: list[int | str], second: list[int | str]) -> None:
    same = list(map(str, first)) == list(map(str, second))
    assert (entropy(0, "x", *first) == entropy(0, "x", *second)) == same
