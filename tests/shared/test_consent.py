"""What the command line allowed may be imported, by its exact name."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import copy_context

import pytest

from covey.shared.errors import UserError
from covey.shared.own_code.consent import (
    BUILT_IN_MODELS,
    NO_CODE,
    AllowedCode,
    ConsentError,
    consent,
    consented,
)


@pytest.mark.parametrize(
    ("word", "reference", "allowed"),
    [
        ("my_pkg.models", "my_pkg.models:net", True),
        ("my_pkg.models:net", "my_pkg.models:net", True),
        ("my_pkg.models:net", "my_pkg.models:other", False),
        ("my_pkg", "my_pkg.models:net", False),
        ("my_pkg.models", "my_pkg:net", False),
        ("my_pkg.model", "my_pkg.models:net", False),
        ("tiny-net", "tiny-net", True),
        ("os", "posix:system", False),
        ("my_pkg", " my_pkg:net", False),
    ],
)
def test_consent_is_for_exactly_what_was_named(word: str, reference: str, allowed: bool) -> None:
    consent = AllowedCode.parse([word])
    assert consent.allows(reference) is allowed
    if not allowed:
        with pytest.raises(ConsentError, match="must allow it with --allow"):
            consent.check(reference)


@pytest.mark.parametrize(
    "word", ["", "my pkg", "../evil", "my_pkg.*", "my_pkg:", ":net", "a:b:c", "a..b", "a\nb"]
)
def test_a_word_that_names_no_module_is_a_user_error(word: str) -> None:
    with pytest.raises(UserError, match="the exact name of a module"):
        AllowedCode.parse([word])


def test_built_in_models_need_no_consent_and_an_unknown_name_is_no_code() -> None:
    for name in BUILT_IN_MODELS:
        NO_CODE.check_model(name)
    with pytest.raises(ConsentError, match=r"task\.model 'resnet50' is unknown; expected lenet5"):
        NO_CODE.check_model("resnet50")


def test_a_child_process_is_given_the_same_consent() -> None:
    consent = AllowedCode.parse(["b", "a.c:d"])
    options = consent.options()
    assert options == ["--allow", "a.c:d", "--allow", "b"]
    assert AllowedCode.parse(options[1::2]) == consent


def test_words_that_a_refused_command_left_to_the_garbage_collector_end_quietly() -> None:
    """Before: a ValueError in whatever ran then."""

    def begun() -> AbstractContextManager[None]:
        block = consented(AllowedCode(frozenset({"mine"})))
        block.__enter__()
        return block

    block = copy_context().run(begun)
    block.__exit__(None, None, None)
    assert consent().names == frozenset()
