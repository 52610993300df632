"""Which kind of device torch computes on, and settings that make it compute the same each time there.

Models, batches and what bends a gradient lie on the device; vectors, which travel, lie on the CPU. Bytes repeat on one kind
of device only, and on a GPU only with the same kind of GPU and the same versions.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from covey.shared.errors import PublicError
from covey.shared.wire.messages import DeviceKind

KINDS: tuple[DeviceKind, ...] = ("cuda", "mps", "cpu")  # fastest first
# without this setting cuBLAS may add in another order each time
CUBLAS_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
CUBLAS_FIXED = ":4096:8"


def available() -> Mapping[DeviceKind, bool]:
    """Whether torch can compute on each kind of device on this machine."""
    return {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }


def choose_device(wish: str, setting: str) -> DeviceKind:
    """The kind of device to compute on.

    Args:
        wish: a kind, or "auto" for the fastest that this machine has.
        setting: the name of the setting that holds the wish, for the message.

    Raises:
        PublicError: torch cannot compute on this kind of device here.
    """
    present = [kind for kind, usable in available().items() if usable]
    by_speed = [kind for kind in KINDS if kind in present]
    if wish == "auto":
        return by_speed[0]
    for kind in by_speed:
        if kind == wish:
            return kind
    names = ", ".join(by_speed)
    raise PublicError(
        f"{setting}: torch {torch.__version__} can use no {wish} here; it has {names}. "
        "Set auto to take the fastest of these, or install a torch that is built for this device"
    )


def prepare_device(kind: DeviceKind) -> torch.device:
    """The device, set so that the same work gives the same bytes, as far as torch supports it."""
    if kind == "cuda":
        # read when cuBLAS starts, which is at the first matrix product
        os.environ.setdefault(CUBLAS_VARIABLE, CUBLAS_FIXED)
        # benchmarking would choose algorithms by how fast they were this time
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
        # TF32 has 10 bits of mantissa and exists on newer GPUs only
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
    return torch.device(kind)
