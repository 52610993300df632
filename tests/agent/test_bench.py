"""`agent lab bench`: what it measures, what it prints, and how the result travels."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from covey.agent.cli import program
from covey.agent.device import bench_file
from covey.agent.policy import DEFAULT_RULES, TAKES_MORE, OwnersRules, Policy
from covey.agent.worker import worker
from covey.agent.worker.bench import measure, task_of
from covey.coordinator.serve.roster import Roster
from covey.shared.strategies.base import Training
from covey.shared.wire.documents import AgentStatus, Benchmark
from covey.shared.wire.jobs import DeviceData, Failure, MeasureWork, Nothing, TryStep, WorkMeasured
from tests.agent.sessions import up

RESULT = Benchmark(
    model="lenet5",
    values=44426,
    samples=95,
    test_samples=24,
    batch=10,
    threads=3,
    import_s=2.5,
    step_s=0.02,
    evaluation_s=0.125,
    memory_mb=310,
)


def images(folder: Path) -> Path:
    file = folder / "images.npz"
    rng = np.random.default_rng(0)
    np.savez(file, x=rng.integers(0, 255, (60, 28, 28), dtype=np.uint8), y=np.arange(60) % 10)
    return file


def test_a_measurement_trains_and_evaluates_the_named_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("covey.agent.worker.bench.TRAINING_S", 0.05)
    data = str(images(tmp_path))
    task = task_of(data, None, None, "lenet5")
    figures = measure(data, None, task, Training(batch=10))
    assert (figures.model, figures.samples, figures.test_samples) == ("lenet5", 48, 12)
    assert figures.values > 1000
    assert figures.step_s > 0
    assert figures.evaluation_s > 0


def test_the_command_prints_a_round_and_keeps_the_result_for_the_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process: the job of a worker is a function."""
    monkeypatch.setattr("covey.agent.worker.bench.TRAINING_S", 0.05)

    async def here(job: Any, threads: int) -> Any:
        assert threads == 1
        return worker.answer(job)

    monkeypatch.setattr("covey.agent.cli.device._first_job", here)
    data = str(images(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    state = tmp_path / "covey" / "pi@north"
    line = ["lab", "bench", "--data", data, "--model", "linear", "--id", "pi", "--epochs", "2"]
    line += ["--federation", "north"]
    done = CliRunner().invoke(program.app, [*line, "--json"], catch_exceptions=False)
    printed = json.loads(done.stdout)
    kept = bench_file.read(state)
    assert kept is not None
    assert kept.model == printed["model"] == "linear"
    assert printed["round_s"] == pytest.approx(2 * 5 * kept.step_s, abs=1e-3)
    wrong = CliRunner().invoke(program.app, [*line[:3], "--model", "lenet6"])
    assert wrong.exit_code == 2
    assert "lenet6" in wrong.stderr


def test_the_text_names_every_figure_with_its_unit() -> None:
    text = bench_file.as_text(RESULT, epochs=5)
    for part in ("20.00 ms", "2.000 s", "2.50 s", "0.125 s", "310 MB", "1.0 s"):
        assert part in text


def test_the_result_travels_in_the_status_and_reaches_the_roster(tmp_path: Path) -> None:
    bench_file.write(tmp_path, RESULT)
    session = up(bench=bench_file.read(tmp_path))
    received = AgentStatus.from_bytes(session.status.to_bytes())
    assert received.bench == RESULT
    roster = Roster(task_digest="")
    roster.seen(received, retained=False, epoch=received.epoch, now=1.0)
    rows = roster.rows({})
    assert rows["pi"]["bench"]["step_s"] == 0.02
    assert b"bench" not in up().status.to_bytes()


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"x" * 10_000, b'{"model": "m"}'])
def test_a_damaged_result_is_as_good_as_none(content: bytes, tmp_path: Path) -> None:
    (tmp_path / bench_file.NAME).write_bytes(content)
    assert bench_file.read(tmp_path) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"step_s": -1},
        {"step_s": float("nan")},
        {"step_s": 1e9},
        {"model": "m" * 65},
        {"threads": 0},
    ],
)
def test_figures_out_of_bounds_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Benchmark.model_validate({**RESULT.model_dump(), **changes})


def test_a_worker_tries_a_step_within_the_owners_limits(tmp_path: Path) -> None:
    task = task_of(str(images(tmp_path)), None, None, "linear")
    job = TryStep(
        source=DeviceData(data=str(images(tmp_path))),
        task=task.model_dump(mode="json"),
        batch=16,
        rules=DEFAULT_RULES.for_job(),
    )
    assert worker.answer(job) == Nothing()
    limited = OwnersRules(Policy(memory_limit_mb=1)).for_job()
    assert worker.answer(replace(job, rules=limited)).why.startswith(
        "policy of this device: memory_limit_mb: torch alone takes"
    )


@pytest.mark.parametrize(
    ("most", "advice"),
    [(16, "a batch of 16 fits (training.batch)"), (0, "no batch fits; freeze more")],
)
def test_work_that_takes_too_much_memory_names_a_batch_that_fits(
    most: int, advice: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def here(job: MeasureWork, threads: int) -> WorkMeasured | Failure:
        assert job.rules.policy is not None
        limit = job.rules.policy["memory_limit_mb"]
        fits = job.batch <= most
        why = f"policy of this device: memory_limit_mb: {TAKES_MORE} {limit} MB"
        return WorkMeasured(fields=RESULT.model_dump()) if fits else Failure(why=why)

    monkeypatch.setattr("covey.agent.cli.device._first_job", here)
    line = [
        "lab",
        "bench",
        "--data",
        str(images(tmp_path)),
        "--batch",
        "64",
        "--memory-limit",
        "200M",
    ]
    done = CliRunner().invoke(program.app, line)
    assert done.exit_code == 2
    assert f"allowed 200 MB; {advice}" in " ".join(done.stderr.split())
