"""Seconds of a round over each managed broker: LeNet-5's size, and 11 million values.

    python -m benchmarks.managed_brokers [--values 44430 11000010] [--agents 2] [--profiles aws azure]

The real coordinator and real agents run over a broker in memory that enforces the vendor's limits, on a virtual clock; an agent
is killed as it fetches the model of the second round. Prints a table, and fails if a limit is exceeded.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from covey.shared.mqtt.profiles import PROFILES, profile_named
from tests.conformance.test_managed_brokers import Trial
from tests.kit.limited_broker import LimitedBroker

CLASSES = 10


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--values", type=int, nargs="+", default=[44_430, 11_000_010])
    parser.add_argument("--agents", type=int, default=2)
    parser.add_argument("--profiles", nargs="+", default=[str(one) for one in PROFILES[1:]])
    options = parser.parse_args(arguments)
    shown = Table("values", "profile", "seconds", "most used of each limit")
    for values in options.values:
        for profile in map(profile_named, options.profiles):
            trial = Trial(profile, values // CLASSES - 1, options.agents)
            broker = LimitedBroker(profile)
            with tempfile.TemporaryDirectory() as folder:
                run = trial.over(Path(folder), broker, patience_s=36_000)
            if run is None or broker.offences:
                raise SystemExit(f"{values} values at {profile}: {broker.offences or 'not over'}")
            used = [
                f"{thing} {100 * most / getattr(profile, thing):.0f} %"
                for thing, most in sorted(broker.most.items())
                if most > 0.005 * getattr(profile, thing)
            ]
            shown.add_row(str(values), str(profile), f"{broker.ended:.1f}", ", ".join(used))
    Console(width=160).print(shown)


if __name__ == "__main__":
    main()
