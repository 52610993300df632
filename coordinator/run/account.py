"""The privacy account: how much a run has revealed so far, as epsilon at the scenario's delta.

Every release is a Gaussian mechanism. Several on one agent's data compose to one with noise multiplier
(sum of 1 / z^2)^(-1/2) (Dong, Roth, Su 2022), whose epsilon dp-accounting computes exactly (Balle, Wang 2018).
No amplification by sampling is claimed: cohorts come from the scenario's seed, which is no secret.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from covey.shared.errors import UserError
from covey.shared.extras import install

INSTALL = f"the privacy account needs the package dp-accounting: {install('accounting')}, or leave out the section"


def require_accountant() -> None:
    """Raises UserError where the accountant is not installed: before a run begins, not after its first round."""
    try:
        import dp_accounting  # noqa: F401
    except ImportError:
        raise UserError(f"privacy: {INSTALL}") from None


def epsilon(releases: Iterable[tuple[float, int]], delta: float) -> float | None:
    """Epsilon of (noise multiplier, times) releases of one agent's data; None: no bound, for a release had no noise.

    Raises UserError where dp-accounting is not installed.
    """
    revealed = 0.0
    for multiplier, times in releases:
        if not times:
            continue
        if not multiplier:
            return None
        revealed += times / multiplier**2
    if not revealed:
        return 0.0
    require_accountant()
    from dp_accounting import get_epsilon_gaussian

    return float(get_epsilon_gaussian(1.0 / math.sqrt(revealed), delta))
