"""Client-level privacy at the coordinator: a method's fold sees noised sums in place of what agents sent.

Whatever a fold computes from noised sums is post-processing, so a method is private if its sums are. A method declares
where a report goes (`Strategy.privacy`): to the one model or to the cluster that is known already ("assigned"),
or to a cluster that the report's own data chose ("chosen"), whose number of reports is then a secret too.

The account: how much a run has revealed so far, as epsilon at the scenario's delta. Every release is a Gaussian mechanism.
Several on one agent's data compose to one with noise multiplier (sum of 1 / z^2)^(-1/2) (Dong, Roth, Su 2022), whose epsilon
dp-accounting computes exactly (Balle, Wang 2018). No amplification by sampling is claimed: cohorts come from the scenario's
seed, which is no secret.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.shared.errors import UserError, install
from covey.shared.numerics.averages import MEAN, Average
from covey.shared.numerics.vectors import Vector, combine
from covey.shared.privacy.settings import (
    LOCAL,
    ClientPrivacy,
    Noise,
    Privacy,
    clipped_sum,
    combined_multiplier,
    new_key,
    noised_count,
)
from covey.shared.scenario.scenario import Scenario
from covey.shared.seeds import entropy
from covey.shared.storage.files import write_private
from covey.shared.strategies.base import CHOICE, ClientId, Phase, Reports, Strategy, Sums
from covey.shared.strategies.client_half import Report
from covey.shared.strategies.phase_names import TRAIN
from covey.shared.strategies.reading import sums_of
from covey.shared.strategies.sums import MODEL

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


KEY_FILE = "noise.key"  # in the run's folder, readable by its owner alone

Float64 = npt.NDArray[np.float64]
Json = dict[str, Any]
ClientReport = tuple[ClientId, Report]
Choices = Mapping[ClientId, int]  # the cluster that each report chose
Histories = set[tuple[int, int]]  # how many sums an agent was in, and how many signatures it sent


@dataclass
class Ledger:
    """What each agent has revealed so far: see `PrivateSums`."""

    sums: dict[ClientId, int] = field(default_factory=dict)
    signatures: dict[ClientId, int] = field(default_factory=dict)
    local: dict[ClientId, float] = field(default_factory=dict)
    # the step of each agent's newest report in the account
    entered: dict[ClientId, int] = field(default_factory=dict)


def noise_key(folder: Path, scenario: Scenario, *, resumed: bool) -> bytes:
    """The key of the coordinator's noise: secret and kept for a resume, or the scenario's seed in a simulation.

    Raises UserError where a resumed run has lost its key: other noise for the same reports would reveal them.
    """
    if scenario.fleet is not None:
        return entropy(scenario.seed, "client privacy").to_bytes(16, "little")
    path = folder / KEY_FILE
    if resumed:
        if not path.is_file():
            what_to_do = "restore it, or start a new run with --out"
            raise UserError(f"{path}: the key of the run's noise is gone; {what_to_do}")
        return path.read_bytes()
    key = new_key()
    write_private(path, key)
    return key


class NoisedSums:
    """Averages with noise, of reports that all count alike."""

    def __init__(self, models: Mapping[str, Vector | None], counts: Mapping[str, float]) -> None:
        self.average = MEAN
        self._models = models  # by key; None where a noised count is too small
        self._counts = counts

    def mean(self, key: str, otherwise: Vector) -> Vector:
        model = self._models.get(key)
        return otherwise if model is None else model

    def moved(self, key: str, start: Vector, share: float) -> Vector:
        return combine([(start, 1.0 - share), (self.mean(key, otherwise=start), share)])

    def weight(self, key: str) -> float:
        return self._counts.get(key, 0.0)

    def count(self, key: str) -> int:
        return round(self.weight(key))


class PrivateSums:
    """Makes the sums of a run under a `privacy` section, and keeps its account.

    The ledger holds, for each agent: `sums`, how many sums its reports were in; `signatures`, how many it has sent;
    `local`, the epsilon that it reported of its own DP-SGD. It lives in the run's checkpoint. Raises UserError where
    the accountant is not installed.
    """

    def __init__(self, scenario: Scenario, privacy: Privacy, key: bytes, ledger: Ledger) -> None:
        self._strategy: Strategy[Any] = scenario.strategy
        self._method: Strategy[Any] = scenario.method  # with the phases of secure sums
        self._privacy = privacy
        self._key = key
        self.ledger = ledger
        self._simulated = scenario.fleet is not None
        noises_sums = privacy.client is not None
        noises_signatures = privacy.signatures is not None
        if noises_sums or noises_signatures:
            require_accountant()

    def sums(
        self, state: Any, phase: Phase, reports: Reports, average: Average = MEAN, *, step: int
    ) -> tuple[Sums, Reports]:
        """The sums of a phase, and the reports as the strategy's fold may see them.

        Nothing is entered into the account: a fold may be tried and discarded.

        Args:
            state: of the strategy, before the phase.
            phase: the phase that is over.
            reports: of the phase, in ascending order of client id.
            average: the scenario's rule, for phases whose reports carry noise already.
            step: number of the step that the phase was. The noise depends on it, so that a fold which is repeated after a
                kill has its noise again, and no two rounds share any.
        """
        strategy = self._strategy
        privacy = self._privacy
        settings = privacy.client
        is_signature = phase.name in strategy.facts.signatures
        if not is_signature:
            reports = self._members(state, reports)
        if is_signature or settings is None or privacy.secure is not None:
            # under secure sums agents have added the noise to their updates
            return sums_of(self._method, state, phase, reports, average), reports
        routes = strategy.privacy.routes
        if routes == "assigned":
            return self._assigned(state, phase, reports, settings, step)
        if routes == "chosen":
            return self._chosen(state, phase, reports, settings, step)
        return NoisedSums({}, {}), _bare(reports)

    def count_sums(self, phase: Phase, reports: Reports, state: Any) -> None:
        """Enter a fold that the run takes over into the account: its noised sums are released.

        Args:
            phase: that was folded.
            reports: of the phase.
            state: after the fold. Under secure sums it has the agents whose sums an unmask list opens.
        """
        strategy = self._strategy
        name = phase.name
        if self._privacy.client is None or name in strategy.facts.signatures:
            return
        if name != TRAIN or strategy.privacy.routes == "nothing":
            return
        sums = self.ledger.sums
        opened = getattr(self._method, "revealed", None)
        for client in opened(state) if opened else [client for client, _ in reports]:
            sums[client] = sums.get(client, 0) + 1

    def enter(self, phase: str, step: int, client: ClientId, report: Report) -> None:
        """Enter an accepted report into the account: what an agent noised itself is revealed when it is sent.

        The same report may be entered again after a restart; it counts once.
        """
        privacy = self._privacy
        ledger = self.ledger
        if ledger.entered.get(client, 0) >= step:
            return
        ledger.entered[client] = step
        is_signature = phase in self._strategy.facts.signatures
        if is_signature and privacy.signatures is not None:
            ledger.signatures[client] = ledger.signatures.get(client, 0) + 1
        spent = report.numbers.get(LOCAL)
        if privacy.local is not None and isinstance(spent, int | float):
            spent = float(spent)
            ledger.local[client] = max(spent, ledger.local.get(client, 0.0))

    def spent(self) -> Json:
        """The account so far, for the record: what `privacy` holds in rounds.jsonl and result.json."""
        privacy = self._privacy
        client = privacy.client
        signatures = privacy.signatures
        local = privacy.local
        found: Json = {"randomness": "secret"}
        if self._simulated:
            found["randomness"] = "scenario seed"
        if client is not None:
            found["client"] = self._guarantee(client.delta)
        elif signatures is not None:
            found["signatures"] = self._guarantee(signatures.delta)
        if local is not None:
            known = self.ledger.local.values()
            found["local"] = {
                "epsilon": max(known, default=0.0),
                "delta": local.delta,
                "agents": len(known),
            }
        return found

    def _guarantee(self, delta: float) -> Json:
        return {"epsilon": self._epsilon(delta), "delta": delta}

    def _epsilon(self, delta: float) -> float | None:
        """Of the agent that has taken part most often, as its releases compose."""
        sum_noise = self._noise_of_sums()
        signature_noise = 0.0
        settings = self._privacy.signatures
        if settings is not None:
            signature_noise = settings.noise_multiplier
        worst = 0.0
        for sums, signatures in self._histories():
            of_sums = (sum_noise, sums)
            of_signatures = (signature_noise, signatures)
            found = epsilon([of_sums, of_signatures], delta)
            if found is None:
                return None
            worst = max(worst, found)
        return worst

    def _noise_of_sums(self) -> float:
        """The noise multiplier of one fold, 0 without any: a noised sum, or a noised sum and a noised count."""
        client = self._privacy.client
        if client is None:
            return 0.0
        multiplier = client.noise_multiplier
        if self._strategy.privacy.routes == "chosen":
            return combined_multiplier(multiplier)
        return multiplier

    def _histories(self) -> Histories:
        """Each pair of numbers that occurs: agents with the same history have the same epsilon."""
        ledger = self.ledger
        agents = ledger.sums.keys() | ledger.signatures.keys()
        return {(ledger.sums.get(agent, 0), ledger.signatures.get(agent, 0)) for agent in agents}

    def _members(self, state: Any, reports: Reports) -> Reports:
        """The reports of agents that have a cluster: a stranger's model would be a signature without noise."""
        if self._privacy.signatures is None:
            return reports
        if not self._strategy.facts.signatures:
            return reports
        known = self._strategy.assignment(state)
        return [(client, report) for client, report in reports if client in known]

    def _assigned(
        self, state: Any, phase: Phase, reports: Reports, settings: ClientPrivacy, step: int
    ) -> tuple[Sums, Reports]:
        """Noised sums of clusters whose members are public."""
        strategy = self._strategy
        vectors: dict[str, list[Vector]] = {}
        bases: dict[str, str] = {}
        bare = _bare(reports)
        for (client, report), (_, public) in zip(reports, bare, strict=True):
            for term in strategy.terms(state, phase, client, public):
                vectors.setdefault(term.key, []).append(term.part(report.vectors))
                bases[term.key] = term.started_from
        models: dict[str, Vector | None] = {}
        for key, own in vectors.items():
            base = strategy.model(state, bases[key])
            total = clipped_sum(own, base, settings.clip)
            models[key] = _moved(base, total, self._noise(step, key, total), settings, len(own))
        return NoisedSums(models, {key: float(len(own)) for key, own in vectors.items()}), bare

    def _chosen(
        self, state: Any, phase: Phase, reports: Reports, settings: ClientPrivacy, step: int
    ) -> tuple[Sums, Reports]:
        """Every cluster gets a noised sum and a noised count, also one that no agent chose: that none did is a secret."""
        strategy = self._strategy
        if strategy.privacy.choices is not None:
            choices = strategy.privacy.choices(state, reports)
        else:
            choices = {
                client: int(term.key)
                for client, report in reports
                for term in strategy.terms(state, phase, client, report)
            }
        vectors = {client: report.vectors[MODEL] for client, report in reports}
        models: dict[str, Vector | None] = {}
        counts: dict[str, float] = {}
        for cluster, base in enumerate(strategy.clusters(state)):
            key = str(cluster)
            own = _of_cluster(cluster, vectors, choices)
            total = clipped_sum(own, base, settings.clip)
            noise = self._noise(step, key, total)
            count = noised_count(len(own), settings.noise_multiplier, noise)
            models[key] = None
            if count is not None:
                models[key] = _moved(base, total, noise, settings, count)
                counts[key] = count
        return NoisedSums(models, counts), _bare(reports, choices)

    def _noise(self, step: int, key: str, total: Float64) -> Noise:
        """The noise of one sum: a fold that is repeated with the same reports has it again and reveals nothing new.

        The account composes independent draws. Without the step, equal sums of two rounds (those of a cluster without
        members, say) would share a draw, and whether they share one would show that no agent was in either.
        """
        name = hashlib.blake2b(key=self._key, digest_size=32)
        name.update(f"step {step} cluster {key}".encode())
        name.update(np.ascontiguousarray(total).view(np.uint8).data)
        return Noise(name.digest())


def private_sums(
    folder: Path, scenario: Scenario, privacy: Privacy, ledger: Json, *, resumed: bool
) -> PrivateSums:
    """What makes the sums of a run and keeps its account.

    Args:
        folder: of the run.
        scenario: of the run.
        privacy: its section, which adds noise.
        ledger: what a checkpoint has of the account; kept up to date in place.
        resumed: whether the run was started before.

    Raises:
        UserError: see `noise_key` and `PrivateSums`.
    """
    key = noise_key(folder, scenario, resumed=resumed)
    kept = Ledger(**ledger)
    ledger.update(vars(kept))
    return PrivateSums(scenario, privacy, key, kept)


def _of_cluster(cluster: int, vectors: Mapping[ClientId, Vector], choices: Choices) -> list[Vector]:
    """The models of the reports that chose this cluster, in the order of their agents' names."""
    return [vectors[client] for client in sorted(choices) if choices[client] == cluster]


def _moved(
    base: Vector, total: Float64, noise: Noise, settings: ClientPrivacy, count: float
) -> Vector:
    """The model after a noised sum: one addition of noise, whatever the number of reports."""
    noised = total
    if settings.deviation:
        noised = total + settings.deviation * noise.normal(total.size)
    model: Vector = (base + (noised / count)).astype(np.float32)
    return model


def _bare(reports: Reports, choices: Choices | None = None) -> list[ClientReport]:
    """Reports that hold nothing of their agents' but that they took part and what they chose; all count the same."""
    bare: list[ClientReport] = []
    for client, _ in reports:
        numbers = {}
        if choices is not None and client in choices:
            numbers[CHOICE] = choices[client]
        bare.append((client, Report({}, examples=1, numbers=numbers)))
    return bare
