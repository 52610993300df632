"""Client-level privacy at the coordinator: a method's fold sees noised means in place of what agents sent.

Whatever a fold computes from noised means is post-processing, so a method is private if its means are. A
method declares where a report goes (`Strategy.private_fold`): to the one model or to the cluster that is known already
("assigned"), or to a cluster that the report's own data chose ("chosen"), whose number of reports is then a secret too.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.coordinator.run.account import epsilon, require_accountant
from covey.shared.errors import UserError
from covey.shared.numerics.averages import MEAN, Average
from covey.shared.numerics.vectors import Vector
from covey.shared.privacy.noise import Noise, new_key
from covey.shared.privacy.settings import (
    LOCAL,
    ClientPrivacy,
    Privacy,
    clipped_sum,
    combined_multiplier,
    noised_count,
)
from covey.shared.scenario.scenario import Scenario
from covey.shared.seeds import entropy
from covey.shared.strategies.base import ClientId, Phase, Report, Reports, Strategy

KEY_FILE = "noise.key"  # in the run's folder, readable by its owner alone
MODEL = "model"  # the vector of a report that a private sum takes in

Float64 = npt.NDArray[np.float64]


@dataclass
class Ledger:
    """What each agent has revealed so far: see `PrivateFold`."""

    sums: dict[ClientId, int] = field(default_factory=dict)
    signatures: dict[ClientId, int] = field(default_factory=dict)
    local: dict[ClientId, float] = field(default_factory=dict)
    entered: dict[ClientId, int] = field(
        default_factory=dict
    )  # step of each agent's newest report in the account


def noise_key(folder: Path, scenario: Scenario, *, resumed: bool) -> bytes:
    """The key of the coordinator's noise: secret and kept for a resume, or the scenario's seed in a simulation.

    Raises UserError where a resumed run has lost its key: other noise for the same reports would reveal them.
    """
    if scenario.fleet is not None:
        return entropy(scenario.seed, "client privacy").to_bytes(16, "little")
    path = folder / KEY_FILE
    if resumed:
        if not path.is_file():
            raise UserError(
                f"{path}: the key of the run's noise is gone; restore it, or start a new run with --out"
            )
        return path.read_bytes()
    key = new_key()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key)
        file.flush()
        os.fsync(file.fileno())
    return key


class PrivateFold:
    """Folds the reports of a run under a `privacy` section, and keeps its account.

    The ledger holds, for each agent: `sums`, how many sums its reports were in; `signatures`, how many it has sent;
    `local`, the epsilon that it reported of its own DP-SGD. It lives in the run's checkpoint. Raises UserError where
    the accountant is not installed.
    """

    def __init__(self, scenario: Scenario, privacy: Privacy, key: bytes, ledger: Ledger) -> None:
        self._strategy: Strategy[Any] = scenario.strategy
        self._privacy, self._key, self.ledger = privacy, key, ledger
        self._simulated = scenario.fleet is not None
        if privacy.client is not None or privacy.signatures is not None:
            require_accountant()

    def fold(self, state: Any, phase: Phase, reports: Reports, average: Average = MEAN) -> Any:
        """The strategy's state after a phase. Nothing is entered into the account: a fold may be tried and discarded."""
        strategy, settings = self._strategy, self._privacy.client
        if phase.name in strategy.signature_phases:
            return strategy.fold(state, phase, reports, average)
        reports = self._members(state, reports)
        if settings is None:
            return strategy.fold(state, phase, reports, average)
        routes = strategy.private_routes()
        if routes == "nothing":
            return strategy.fold(state, phase, [(client, _bare({})) for client, _ in reports])
        if routes == "chosen":
            return self._chosen(state, reports, settings)
        return strategy.fold(state, phase, self._assigned(state, reports, settings))

    def count_sums(self, phase: Phase, reports: Reports) -> None:
        """Enter a fold that the run takes over into the account: its noised sums are released."""
        strategy = self._strategy
        if self._privacy.client is None or phase.name in strategy.signature_phases:
            return
        if phase.name != "train" or strategy.private_routes() == "nothing":
            return
        for client, _ in reports:
            self.ledger.sums[client] = self.ledger.sums.get(client, 0) + 1

    def enter(self, phase: str, step: int, client: ClientId, report: Report) -> None:
        """Enter an accepted report into the account: what an agent noised itself is revealed when it is sent.

        The same report may be entered again after a restart; it counts once.
        """
        if self.ledger.entered.get(client, 0) >= step:
            return
        self.ledger.entered[client] = step
        if self._privacy.signatures is not None and phase in self._strategy.signature_phases:
            self.ledger.signatures[client] = self.ledger.signatures.get(client, 0) + 1
        told = report.numbers.get(LOCAL)
        if self._privacy.local is not None and isinstance(told, int | float):
            self.ledger.local[client] = max(float(told), self.ledger.local.get(client, 0.0))

    def spent(self) -> dict[str, Any]:
        """The account so far, for the record: what `privacy` holds in rounds.jsonl and result.json."""
        client, signatures, local = (
            self._privacy.client,
            self._privacy.signatures,
            self._privacy.local,
        )
        found: dict[str, Any] = {"randomness": "scenario seed" if self._simulated else "secret"}
        if client is not None:
            found["client"] = {"epsilon": self._epsilon(client.delta), "delta": client.delta}
        elif signatures is not None:
            found["signatures"] = {
                "epsilon": self._epsilon(signatures.delta),
                "delta": signatures.delta,
            }
        if local is not None:
            known = self.ledger.local.values()
            found["local"] = {
                "epsilon": max(known, default=0.0),
                "delta": local.delta,
                "agents": len(known),
            }
        return found

    def _epsilon(self, delta: float) -> float | None:
        """Of the agent that has taken part most often, as its releases compose."""
        signature = (
            self._privacy.signatures.noise_multiplier
            if self._privacy.signatures is not None
            else 0.0
        )
        client = self._privacy.client
        multiplier = client.noise_multiplier if client is not None else 0.0
        if client is not None and self._strategy.private_routes() == "chosen":
            multiplier = combined_multiplier(multiplier)
        histories = {
            (self.ledger.sums.get(one, 0), self.ledger.signatures.get(one, 0))
            for one in {*self.ledger.sums, *self.ledger.signatures}
        }
        worst = 0.0
        for sums, signatures in histories:
            found = epsilon([(multiplier, sums), (signature, signatures)], delta)
            if found is None:
                return None
            worst = max(worst, found)
        return worst

    def _members(self, state: Any, reports: Reports) -> Reports:
        """The reports of agents that have a cluster: a stranger's model would be a signature without noise."""
        if self._privacy.signatures is None or not self._strategy.signature_phases:
            return reports
        known = self._strategy.assignment(state)
        return [(client, report) for client, report in reports if client in known]

    def _assigned(self, state: Any, reports: Reports, settings: ClientPrivacy) -> Reports:
        """Each report with its cluster's noised mean in place of its own model: who is in which cluster is public."""
        groups: dict[int, list[ClientId]] = {}
        clusters = self._strategy.assignment(state)
        for client, _ in reports:
            groups.setdefault(clusters.get(client, 0), []).append(client)
        vectors = {client: report.vectors[MODEL] for client, report in reports}
        means: dict[ClientId, Vector] = {}
        for cluster, clients in sorted(groups.items()):
            base = self._strategy.model(state, str(cluster))
            total = clipped_sum([vectors[client] for client in clients], base, settings.clip)
            noise = self._noise(cluster, total)
            mean = _moved(base, total, noise, settings, len(clients))
            means |= dict.fromkeys(clients, mean)
        return [(client, _bare({MODEL: means[client]})) for client, _ in reports]

    def _chosen(self, state: Any, reports: Reports, settings: ClientPrivacy) -> Any:
        """Every cluster gets a noised sum and a noised count, also one that nobody chose: that nobody did is a secret."""
        strategy = self._strategy
        choices = strategy.private_choices(state, reports)
        vectors = {client: report.vectors[MODEL] for client, report in reports}
        models = []
        for cluster, base in enumerate(strategy.clusters(state)):
            own = [vectors[client] for client in sorted(choices) if choices[client] == cluster]
            total = clipped_sum(own, base, settings.clip)
            noise = self._noise(cluster, total)
            count = noised_count(len(own), settings.noise_multiplier, noise)
            models.append(base if count is None else _moved(base, total, noise, settings, count))
        return strategy.private_fold(state, tuple(models), choices)

    def _noise(self, cluster: int, total: Float64) -> Noise:
        """The noise of one sum: the same for the same sum, so that a fold that is repeated reveals nothing new."""
        name = hashlib.blake2b(key=self._key, digest_size=32)
        name.update(f"cluster {cluster}".encode())
        name.update(np.ascontiguousarray(total).view(np.uint8).data)
        return Noise(name.digest())


def _moved(
    base: Vector, total: Float64, noise: Noise, settings: ClientPrivacy, count: float
) -> Vector:
    """The model after a noised sum: one addition of noise, whatever the number of reports."""
    spread = settings.clip * settings.noise_multiplier
    noised = total + spread * noise.normal(total.size) if spread else total
    moved: Vector = (base + noised / count).astype(np.float32)
    return moved


def _bare(vectors: Mapping[str, Vector]) -> Report:
    """A report that holds nothing of its agent's but that it took part: everybody counts the same."""
    return Report(vectors, examples=1)
