"""The help of `agent start` names the defaults of what keeps models."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.extras.in_use.keeper import KeepOptions
from tests.test_help import assert_named


@pytest.mark.whole
def test_the_defaults_for_models_are_those_of_the_code() -> None:
    keeps = KeepOptions(Path())
    assert_named("agent start", "accept_margin", keeps.margin)
    assert_named("agent start", "keep_models", keeps.runs)
    assert_named("agent start", "on_model_seconds", keeps.hook_limit_s)
