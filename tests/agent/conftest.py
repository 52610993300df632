"""What tests of training share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def single_thread() -> Iterator[None]:
    """As the worker sets it; more threads only get in the way of models this small."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def narrow_vgg16(monkeypatch: pytest.MonkeyPatch) -> None:
    """The built-in model with dropout, with a sixtieth of its values."""
    monkeypatch.setattr("covey.shared.models.built_in.VGG16_GROUPS", ((4, 1),) * 5)
