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
