"""How a program starts."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from covey.shared.programs.child import environment

# Each thread takes memory while all others run. glibc then lists its heaps on standard error.
HEAPS = """
import ctypes
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from covey.shared.programs.start import share_one_heap

{first}
meet = Barrier(4)
def take(size):
    meet.wait()
    return bytearray(size)
with ThreadPoolExecutor(4) as threads:
    list(threads.map(take, [100_000] * 4))
    ctypes.CDLL(None).malloc_stats()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has other heaps")
@pytest.mark.parametrize(("first", "is_one"), [("share_one_heap()", True), ("pass", False)])
def test_all_threads_of_a_program_share_one_heap(first: str, is_one: bool) -> None:
    command = [sys.executable, "-c", HEAPS.format(first=first)]
    seen = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    assert (seen.stderr.count("Arena ") == 1) is is_one, seen.stderr
