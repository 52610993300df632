"""The privacy account in a few words, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KINDS = {"client": "client-level", "signatures": "signatures", "local": "example-level"}


def epsilons(account: Mapping[str, Any] | None) -> str:
    """Epsilon at delta for each kind of privacy that an account has; empty without an account."""
    if not account:
        return ""
    shown = []
    for kind, name in KINDS.items():
        bound = _bound(account.get(kind))
        if bound:
            shown.append(f"{name} {bound}")
    return "; ".join(shown)


def _bound(of_kind: Any) -> str:
    """One kind's epsilon; empty without an account, or for one that makes no sense (a broker may have sent it)."""
    if not isinstance(of_kind, Mapping):
        return ""
    match of_kind.get("epsilon"), of_kind.get("delta"):
        case None, _:
            return "no bound"
        case int() | float() as epsilon, int() | float() as delta:
            return f"ε {epsilon:.2f} at δ {delta:g}"
    return ""
