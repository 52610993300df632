"""The options of a run that come from the command line and not from the scenario."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.own_code.consent import NO_CODE, AllowedCode


@dataclass(frozen=True)
class RunOptions:
    """How and where to run a scenario."""

    folder: Path
    resume: bool = False
    embedded: bool = False
    data_root: Path | None = None
    metrics: tuple[str, int] | None = None  # host and port for Prometheus
    audit_key: Path | None = None  # file with the key of the audit log
    origin: Path | None = None  # folder of a finished run to continue
    # never kept in the run's folder: --resume asks the command line again
    allowed: AllowedCode = NO_CODE
    brokers: tuple[BrokerUrl, ...] = ()  # they replace those of the scenario
    cluster: bool = False  # they are addresses of one broker, which are tried in turn
    aggregators: bool = False  # reports may come as sums of `coordinator lab aggregate`
    give_up_after_s: float = math.inf  # of waiting for agents
