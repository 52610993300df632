"""Client-level privacy of whole runs: what a fold may see, how far one agent moves a sum, and that noise repeats."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.coordinator.record.records import lines
from covey.coordinator.run.run import Run
from covey.extras.private.private_sums import KEY_FILE, Ledger, PrivateSums, epsilon, noise_key
from covey.shared.errors import UserError
from covey.shared.privacy.settings import Privacy, clipped_sum, combined_multiplier, noised_count
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import Phase, Reports
from covey.shared.strategies.client_half import Report
from tests.kit.small_run import fingerprint, in_process, rules, scenario, setup

CLIP = 0.5
CLIENT = {"clip": CLIP, "noise_multiplier": 1.0, "delta": 1e-5}
PRIVACY = {"client": CLIENT, "signatures": {"clip": 1.0, "noise_multiplier": 0.1}}
SUMMING: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedprox": {},
    "ditto": {},
    "feddist": {},
    "fedclust": {"n_clusters": 2},
    "pacfl": {"n_clusters": 2},
    "ifca": {"n_clusters": 2, "shared_trunk": False},
    "fesem": {"n_clusters": 2, "m_step": "participants"},
}
SIGNING = ("fedclust", "pacfl", "fesem")
SIMULATED = {"agents": 8}


def private(method: str, *, simulated: bool = True, **client: Any) -> Scenario:
    privacy: dict[str, Any] = {"client": {**CLIENT, **client}}
    if method in SIGNING:
        privacy["signatures"] = PRIVACY["signatures"]
    fleet = SIMULATED if simulated else None
    return scenario(method, strategy=SUMMING[method], privacy=privacy, fleet=fleet)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """A finished run of each method."""
    return {
        method: in_process(tmp_path_factory.mktemp(method), private(method)) for method in SUMMING
    }


def privacy_of(run: Run) -> PrivateSums:
    """What makes the sums of a run, and keeps its account."""
    privacy = run.privacy
    assert privacy is not None
    return privacy


def reports_for(run: Run, seed: int = 5) -> list[tuple[str, Report]]:
    """A round's reports from everybody, some of them far away, one with a lie about its samples."""
    draw = np.random.default_rng(seed)
    start = run.strategy.clusters(run.state)[0]
    found = []
    for i in range(8):
        step = 10.0 ** draw.uniform(-2, 3) * draw.normal(size=start.size)
        model = (start + step).astype(np.float32)
        numbers = {"choice": i % 2, "losses": [1.0, 2.0]} if run.strategy.name == "ifca" else {}
        found.append(
            (f"agent-{i}", Report({"model": model}, 10**9 if i == 3 else 20, numbers, 4, 1.0))
        )
    return found


def private_fold(private: PrivateSums, state: Any, reports: Reports, step: int = 1) -> Any:
    """A method's state after a round of which it sees noised sums."""
    sums, bare = private.sums(state, Phase(), reports, step=step)
    return private._strategy.fold(state, Phase(), sums, bare)


def sums_of(
    run: Run, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> list[np.ndarray[Any, Any]]:
    """The sums of all clusters, by cluster, as they are before noise."""
    seen: dict[str, np.ndarray[Any, Any]] = {}
    original = PrivateSums._noise

    def spy(self: PrivateSums, step: int, key: str, total: np.ndarray[Any, Any]) -> Any:
        seen[key] = total.copy()
        return original(self, step, key, total)

    with monkeypatch.context() as patch:
        patch.setattr(PrivateSums, "_noise", spy)
        private_fold(privacy_of(run), run.state, reports)
    width = len(run.strategy.clusters(run.state)[0])
    return [seen.get(str(k), np.zeros(width)) for k in range(len(run.strategy.clusters(run.state)))]


@pytest.mark.parametrize("method", SUMMING)
def test_leaving_out_any_agent_changes_all_sums_together_by_at_most_the_clip(
    runs: dict[str, Run], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs[method]
    reports = reports_for(run)
    all_agents = np.concatenate(sums_of(run, reports, monkeypatch))
    changes = []
    for left_out in range(8):
        others = reports[:left_out] + reports[left_out + 1 :]
        change = all_agents - np.concatenate(sums_of(run, others, monkeypatch))
        changes.append(float(np.linalg.norm(change)))
    assert max(changes) <= CLIP * (1 + 1e-9)
    assert max(changes) > 0.9 * CLIP, "nobody was clipped: the test shows nothing"


@pytest.mark.parametrize("method", SUMMING)
def test_a_fold_never_sees_what_an_agent_sent(
    runs: dict[str, Run], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs[method]
    reports = reports_for(run)
    seen: list[Report] = []
    kind = type(run.strategy)
    fold = kind.fold

    def spy(self: Any, state: Any, phase: Phase, sums: Any, given: Reports) -> Any:
        seen.extend(report for _, report in given)
        return fold(self, state, phase, sums, given)

    monkeypatch.setattr(kind, "fold", spy)
    state = private_fold(privacy_of(run), run.state, reports)
    assert seen
    sent = [report.vectors["model"] for _, report in reports]
    for report in seen:
        assert (report.examples, report.loss, dict(report.vectors)) == (1, 0.0, {})
        known = (
            {"choice"} if method in ("ifca", "fesem") else set()
        )  # its noised counts are in the account
        assert report.numbers.keys() == known
    for model in run.strategy.clusters(state):
        assert not any(np.array_equal(model, one) for one in sent)


def test_without_noise_and_with_a_wide_clip_a_round_is_the_plain_mean_whatever_the_samples(
    tmp_path: Path,
) -> None:
    run = in_process(tmp_path, private("fedavg", noise_multiplier=0.0, clip=1e9))
    reports = reports_for(run)
    state = private_fold(privacy_of(run), run.state, reports)
    plain = np.mean([report.vectors["model"].astype(np.float64) for _, report in reports], axis=0)
    assert np.allclose(state.model, plain, rtol=1e-5)
    assert (
        lines(tmp_path)[-1]["privacy"]["client"]["epsilon"] is None
    )  # and no bound is claimed for it


def all_choose_the_first(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    facet = replace(
        run.strategy.privacy, choices=lambda state, reports: {client: 0 for client, _ in reports}
    )
    monkeypatch.setattr(type(run.strategy), "privacy", facet)


@pytest.mark.parametrize("method", ["ifca", "fesem"])
def test_a_cluster_that_no_agent_chose_is_treated_as_all_others(
    runs: dict[str, Run], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That its model stays where it is would reveal, without any noise, that the last agent has left it."""
    run = runs[method]
    reports = reports_for(run)
    noised: list[float] = []

    def spy(count: int, multiplier: float, noise: Any) -> float | None:
        noised.append(count)
        return noised_count(count, multiplier, noise)

    monkeypatch.setattr("covey.extras.private.private_sums.noised_count", spy)
    all_choose_the_first(run, monkeypatch)
    private_fold(privacy_of(run), run.state, reports)
    assert noised == [8, 0]


@pytest.mark.parametrize("method", ["ifca", "fesem"])
def test_a_cluster_that_no_agent_chose_gets_noise_if_its_noised_count_is_positive(
    runs: dict[str, Run], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs[method]
    monkeypatch.setattr(
        "covey.extras.private.private_sums.noised_count", lambda count, multiplier, noise: 10.0
    )
    all_choose_the_first(run, monkeypatch)
    state = private_fold(privacy_of(run), run.state, reports_for(run))
    before, after = run.strategy.clusters(run.state)[1], run.strategy.clusters(state)[1]
    assert np.std(after - before) == pytest.approx(CLIP / 10, rel=0.4)


def test_a_strangers_model_is_not_taken_for_a_signature(runs: dict[str, Run]) -> None:
    """A newcomer that is drawn for a round sends its whole model: its final layer would be a signature without noise."""
    run = runs["fedclust"]
    reports = [("stranger", reports_for(run)[0][1]), *reports_for(run)]
    state = private_fold(privacy_of(run), run.state, reports)
    assert "stranger" not in state.signatures
    assert "stranger" not in state.assign


@pytest.mark.parametrize("method", SUMMING)
def test_a_simulated_private_run_repeats_bit_for_bit(
    runs: dict[str, Run], method: str, tmp_path: Path
) -> None:
    again = in_process(tmp_path, private(method))
    assert fingerprint(again) == fingerprint(runs[method])
    assert lines(tmp_path)[-1]["privacy"]["randomness"] == "scenario seed"
    assert not (tmp_path / KEY_FILE).exists()


def test_with_real_agents_the_noise_is_secret(tmp_path: Path) -> None:
    one, other = (
        in_process(tmp_path / name, private("fedavg", simulated=False)) for name in ("a", "b")
    )
    assert fingerprint(one) != fingerprint(other)
    assert lines(tmp_path / "a")[-1]["privacy"]["randomness"] == "secret"
    mode = (tmp_path / "a" / KEY_FILE).stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


def test_a_resumed_run_adds_the_same_noise_to_the_same_reports(tmp_path: Path) -> None:
    scene = private("fedavg", simulated=False)
    run = in_process(tmp_path, scene)
    reports = reports_for(run)
    first = private_fold(privacy_of(run), run.state, reports)
    key = noise_key(tmp_path, scene, resumed=True)
    again = PrivateSums(scene, _privacy(scene), key, Ledger())
    second = private_fold(again, run.state, reports)
    assert np.array_equal(first.model, second.model)
    fewer = private_fold(again, run.state, reports[1:])
    difference = 8 * (first.model - run.state.model) - 7 * (fewer.model - run.state.model)
    alone = clipped_sum([reports[0][1].vectors["model"]], run.state.model, CLIP)
    assert np.linalg.norm(difference - alone) > CLIP, (
        "the same noise on other reports: their difference is bare"
    )


@pytest.mark.parametrize("method", SUMMING)
def test_two_rounds_with_equal_sums_have_unequal_noise(runs: dict[str, Run], method: str) -> None:
    run = runs[method]
    scene = private(method, noise_multiplier=0.01)  # so little that every count stays certain
    private_sums = PrivateSums(scene, _privacy(scene), b"key", Ledger())
    reports = reports_for(run)
    once, again, later = (
        run.strategy.clusters(private_fold(private_sums, run.state, reports, step))
        for step in (3, 3, 4)
    )
    assert all(np.array_equal(one, same) for one, same in zip(once, again, strict=True))
    assert not any(np.array_equal(one, other) for one, other in zip(once, later, strict=True))


def test_an_empty_cluster_moves_in_as_many_runs_as_with_independent_noise(
    runs: dict[str, Run],
) -> None:
    """A count without members passes three deviations with probability 0.00135: in 60 rounds, 7.8 % of all runs."""
    run, zeros = runs["ifca"], np.zeros(3)
    scene = private("ifca")
    moved = 0
    for key in range(400):
        fold = PrivateSums(scene, _privacy(scene), key.to_bytes(16, "little"), Ledger())
        moved += any(
            noised_count(0, 20.0, fold._noise(step, "1", zeros)) is not None for step in range(60)
        )
    assert run.strategy.name == "ifca"
    assert 15 <= moved <= 50  # expected: 31; three deviations are 16


def test_presence_is_not_guessed_more_often_than_epsilon_allows(runs: dict[str, Run]) -> None:
    """Two rounds in which a colluder sends the model unchanged, and a victim two unequal steps, or none."""
    run = runs["fedavg"]
    scene = private("fedavg", noise_multiplier=8.0)
    base = run.strategy.model(run.state, "0")
    toward = np.zeros_like(base)
    toward[0] = CLIP
    trials, right_by_repeat, right_by_likelihood = 2000, 0, 0
    for key in range(trials):
        present = key % 2 == 0
        steps_of_victim = (toward, 0.5 * toward) if present else (0 * toward, 0 * toward)
        sent = [
            [("colluder", Report({"model": base}, 1)), ("victim", Report({"model": base + one}, 1))]
            for one in steps_of_victim
        ]
        fold = PrivateSums(scene, _privacy(scene), key.to_bytes(16, "little"), Ledger())
        changes = [
            private_fold(fold, run.state, reports, step).model - base
            for step, reports in enumerate(sent, 1)
        ]
        right_by_repeat += np.array_equal(*changes) != present
        # the best test that there is: both releases, projected on what the victim may have sent
        seen = 2 * sum(float(change[0]) for change in changes)
        right_by_likelihood += (seen > CLIP) == present
    allowed = epsilon([(8.0, 2)], 1e-5)
    assert allowed is not None
    most = np.exp(allowed) / (1 + np.exp(allowed)) + 1e-5
    assert right_by_repeat / trials <= most
    assert right_by_likelihood / trials <= most
    assert right_by_likelihood / trials > 0.5, "the attack shows nothing at all"


def test_a_resume_without_the_key_is_refused(tmp_path: Path) -> None:
    scene = private("fedavg", simulated=False)
    in_process(tmp_path, scene)
    (tmp_path / KEY_FILE).unlink()
    with pytest.raises(UserError, match="the key of the run's noise is gone"):
        Run.resume(tmp_path, scene, setup(scene), rules=rules(scene), now=0.0)


@pytest.mark.parametrize("method", ["fedavg", "fedclust", "ifca"])
def test_the_account_is_that_of_the_agent_that_took_part_most_often(
    runs: dict[str, Run], method: str
) -> None:
    record = [row for row in lines(runs[method].folder) if row["event"] == "phase"]
    spent = [row["privacy"]["client"]["epsilon"] for row in record]
    assert spent == sorted(spent)
    took_part: dict[str, int] = {}
    for row in record:
        for client in row["reported"] if row["phase"] == "train" else []:
            took_part[client] = took_part.get(client, 0) + 1
    multiplier = combined_multiplier(1.0) if method == "ifca" else 1.0
    signed = 1 if method == "fedclust" else 0
    assert spent[-1] == epsilon([(multiplier, max(took_part.values())), (0.1, signed)], 1e-5)
    assert max(took_part.values()) > 1


def test_an_account_survives_a_kill_between_a_report_and_its_checkpoint(tmp_path: Path) -> None:
    run = in_process(tmp_path, private("fedclust"))
    before = dict(privacy_of(run).ledger.signatures)
    report = Report({"signature": np.zeros(3, np.float32)}, 20)
    for _ in range(2):  # accepted, and found in the spool after a restart
        privacy_of(run).enter("entry", 10**6, "agent-0", report)
    assert privacy_of(run).ledger.signatures["agent-0"] == before["agent-0"] + 1
    resumed, _ = Run.resume(
        tmp_path, run.scenario, setup(run.scenario), rules=rules(run.scenario), now=0.0
    )
    assert privacy_of(resumed).ledger.signatures == before


def test_local_training_alone_reveals_nothing_and_its_account_is_zero(tmp_path: Path) -> None:
    scene = scenario("local", privacy={"client": CLIENT}, fleet=SIMULATED)
    in_process(tmp_path, scene)
    assert lines(tmp_path)[-1]["privacy"]["client"]["epsilon"] == 0.0


@pytest.mark.parametrize("method", SIGNING)
def test_a_signature_arrives_with_noise_and_nothing_else_of_the_data(
    tmp_path: Path, method: str
) -> None:
    bare, hidden = (
        _signatures(tmp_path / name, method, multiplier)
        for name, multiplier in (("a", 0.0), ("b", 0.2))
    )
    assert bare.keys() == hidden.keys()
    assert len(bare) == 8
    for client, report in hidden.items():
        [vector], [before] = report.vectors.values(), bare[client].vectors.values()
        assert np.std(vector - before) == pytest.approx(0.2, rel=0.5)
        assert (report.steps, report.loss) == (0, 0.0)
    shapes = {report.vectors[name].shape for report in hidden.values() for name in report.vectors}
    numbers = {str(dict(report.numbers)) for report in hidden.values()}
    assert len(shapes) == len(numbers) == 1, (
        "shape or numbers differ between agents: they say which labels one has"
    )


def _signatures(folder: Path, method: str, multiplier: float) -> dict[str, Report]:
    """The reports of the first phase."""
    folder.mkdir()
    caught: dict[str, Report] = {}
    signatures = {"clip": 1.0, "noise_multiplier": multiplier}
    scene = scenario(
        method, strategy=SUMMING[method], privacy={"signatures": signatures}, fleet=SIMULATED
    )
    original = PrivateSums.enter

    def spy(self: PrivateSums, phase: str, step: int, client: str, report: Report) -> None:
        if phase in self._strategy.facts.signatures:
            vectors = {name: np.array(vector) for name, vector in report.vectors.items()}
            caught[client] = replace(report, vectors=vectors)
        original(self, phase, step, client, report)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrivateSums, "enter", spy)
        in_process(folder, scene)
    return caught


def _privacy(scene: Scenario) -> Privacy:
    assert scene.privacy is not None
    return scene.privacy
