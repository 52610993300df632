"""Which kind of device torch computes on, and that it computes the same each time there.

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
CUBLAS = (
    "CUBLAS_WORKSPACE_CONFIG"  # without it sums in cuBLAS may be made in another order each time
)
CUBLAS_FIXED = ":4096:8"


def available() -> Mapping[DeviceKind, bool]:
    """Whether torch can compute on each kind of device on this machine."""
    return {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }


def chosen(wanted: str, where: str) -> DeviceKind:
    """The kind of device to compute on: what is wanted, or for "auto" the fastest that is there.

    `where` names the setting that wants it. Raises PublicError for a kind that is not there.
    """
    there = available()
    if wanted == "auto":
        return next(kind for kind in KINDS if there[kind])
    for kind in KINDS:
        if kind == wanted and there[kind]:
            return kind
    names = ", ".join(kind for kind in KINDS if there[kind])
    raise PublicError(
        f"{where}: torch {torch.__version__} can use no {wanted} here; it has {names}. Set auto to take the fastest that is "
        "there, or install a torch that is built for this device"
    )


def opened(kind: DeviceKind) -> torch.device:
    """The device, set so that the same work gives the same bytes, as far as torch offers it."""
    if kind == "cuda":
        os.environ.setdefault(
            CUBLAS, CUBLAS_FIXED
        )  # read when cuBLAS starts, which is at the first product
        torch.backends.cudnn.benchmark = (
            False  # it would choose algorithms by how fast they were this time
        )
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.allow_tf32 = False  # products of 10 bits, which only newer GPUs make
        torch.backends.cuda.matmul.allow_tf32 = False
    return torch.device(kind)
