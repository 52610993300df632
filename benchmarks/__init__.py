"""Figures of the product. Each program that a benchmark starts imports what it needs, as a user's does.

Tests start our programs as forks of one that has imported all of it.
"""

import sys

from tests import forked

if "pytest" not in sys.modules:
    forked.PROGRAMS = ()
