"""Histories with faults, each on one seed: every invariant holds, and the run ends with the bytes of a calm one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests import methods
from tests.simulator.flaws import FOUND, without
from tests.simulator.plan import KINDS, Fault, Plan, plan
from tests.simulator.shrink import shrunk
from tests.simulator.world import play

METHODS = ("fedavg", "fedclust", "ifca", "scaffold")  # the last one trains with its memory
ROOT = Path(__file__).parents[2]


def test_runs_with_faults_have_the_bytes_of_calm_ones() -> None:
    struck: Counter[str] = Counter()
    for seed in range(12):
        history = play(plan(seed, METHODS))
        assert not history.failure, f"python -m tests.simulator --seed {seed}: {history.failure}"
        struck += history.struck
    assert len(struck) > len(KINDS) / 2


@pytest.mark.parametrize("fix", FOUND)
def test_a_fault_that_the_product_once_had_is_found_where_its_fix_is_taken_out(fix: str) -> None:
    assert play(FOUND[fix]).failure == ""
    with without(fix):
        found = play(FOUND[fix]).failure
    expected = {
        "digest of the work": "counts for other work than it came from",
        "live aggregators": "stand-still",
        "newest coordinator": "stand-still",
        "free reader": "waits for its disk",
        "masks of the missing": "is not that of",
        "memory on the disk": "is lost, though no file of it has rotted",
        "synced spool": "are not in the spool",
        "orders before the disk": "leaves before what it follows from is on the disk",
        "models in use": "models that the run names have no file",
        "one answer": "answers twice for one start",
        "listed members": "of which it knows another list",
        "synced files": "stand-still",
    }
    assert expected[fix] in found


def test_a_power_cut_between_a_report_and_its_checkpoint_leaves_a_run_that_can_be_replayed() -> (
    None
):
    cut = Fault("power cut of coordinator", 5.0, 2.0, 18)
    assert play(Plan(100265, "fesem", "buffered", 1, False, (cut,))).failure == ""


def test_a_newcomer_that_missed_its_entry_trains_from_the_start_in_a_buffered_run() -> None:
    away = (Fault("clear retained", 0.7, 9.5, 0), Fault("restart broker", 2.4, 11.4, 0))
    assert play(Plan(501, "fedclust", "buffered", 1, False, away)).failure == ""


def test_a_report_that_waits_over_a_restart_is_part_of_the_replay() -> None:
    rotten = Fault("rotten checkpoint", 1.5, 5.8, 0)
    assert play(Plan(1020, "fedavg", "buffered", 1, False, (rotten,))).failure == ""


def test_reports_before_a_long_absence_of_the_coordinator_are_in_time_in_the_replay() -> None:
    killed = Fault("kill coordinator", 5.0, 16.0, 0)
    assert play(Plan(2744, "fesem", "buffered", 1, False, (killed,))).failure == ""


def test_a_report_that_rots_on_its_way_is_refused_and_missing_in_its_round() -> None:
    faults = (
        Fault("half close up", 5.157224319234856, 1.2416549577281835, 30),
        Fault("rotten report", 3.6959524850992596, 8.34782872312765, 3),
        Fault("kill coordinator", 4.056461588487791, 4.658317849742222, 25),
        Fault("rotten checkpoint", 1.2323328677288268, 1.2573377915245567, 14),
    )
    history = play(Plan(114023, "fedsgd", "patient", 2, True, faults))
    assert history.failure == ""
    assert history.struck["rotten report"]


def test_work_that_is_repeated_with_a_later_memory_is_named_in_the_record() -> None:
    faults = (Fault("power cut of coordinator", 1.0, 1.0, 0), Fault("put back folder", 5.0, 8.0, 0))
    assert play(Plan(200220, "fedbn", "hasty", 1, False, faults)).failure == ""


def test_a_folder_that_is_put_back_within_a_second_of_a_restart_is_the_newer_run() -> None:
    faults = (
        Fault("power cut of coordinator", 4.0, 3.0, 0),
        Fault("put back folder", 3.0865480100795732, 4.875224353728685, 0),
    )
    assert play(Plan(346269, "fedavg", "patient", 1, False, faults, secure=True)).failure == ""


def test_reports_that_no_descriptor_is_left_for_are_not_asked_for_again() -> None:
    faults = (Fault("restart broker", 2.0, 6.0, 0), Fault("no descriptors", 6.0, 4.0, 0))
    assert play(Plan(354038, "fedclust", "buffered", 2, False, faults)).failure == ""


def test_a_coordinator_that_is_killed_twice_before_a_step_closes_can_be_replayed() -> None:
    faults = (
        Fault("cut off coordinator", 2.0, 2.0, 31),
        Fault("cut off coordinator", 3.0, 2.0, 25),
    )
    assert play(Plan(373233, "flux", "buffered", 1, False, faults)).failure == ""


def test_an_agent_goes_back_to_the_memory_from_before_work_that_a_restored_coordinator_lost() -> (
    None
):
    faults = (
        Fault("power cut of agent", 6.0, 2.0, 0),
        Fault("put back folder", 2.845186851983284, 28.244832458357507, 0),
    )
    assert play(Plan(380798, "fedrep", "buffered", 1, False, faults)).failure == ""


def test_a_status_that_overtakes_an_older_one_counts_while_both_wait() -> None:
    overtaken = Fault("overtaken", 0.0, 20.0, 0, 0.09748269975260512, "coordinator")
    assert play(Plan(212052, "fedavg", "hasty", 2, True, (overtaken,))).failure == ""


def test_an_order_that_follows_a_report_out_of_time_is_part_of_the_replay() -> None:
    faults = (
        Fault("no descriptors", 6.0, 11.0, 0),
        Fault("rotten model", 0.5, 1.1, 32),
        Fault("power cut", 2.0, 5.0, 0),
    )
    assert play(Plan(212192, "fedclust", "buffered", 2, False, faults)).failure == ""


def test_a_second_report_to_a_secure_sum_brings_what_its_training_left() -> None:
    faults = (
        Fault("rotten report", 5.0, 9.0, 40),
        Fault("rotten report", 2.0, 5.0, 11),
        Fault("clear retained", 4.0, 1.0, 0),
    )
    assert play(Plan(620539, "fedbn", "hasty", 1, True, faults, secure=True)).failure == ""


def test_a_plan_survives_its_text() -> None:
    for seed in range(20):
        this = plan(seed, METHODS)
        assert Plan.of_json(this.to_json()) == this


def test_a_plan_shrinks_to_the_fault_that_it_needs() -> None:
    faults = (Fault("cut", 1.26), Fault("copy folder", 2.5, 3.0, 2), Fault("late", chance=0.1))
    this = Plan(1, "ifca", "hasty", 2, True, faults)
    simplest = shrunk(this, lambda plan: any(f.kind == "copy folder" for f in plan.faults))
    assert simplest == Plan(1, "fedavg", "hasty", 1, False, (Fault("copy folder", 2.0, 3.0),))


def test_a_seed_has_one_history_in_any_process_and_under_any_hash_seed() -> None:
    """This process has a hash seed of its own, but by chance."""
    command = [sys.executable, "-m", "tests.simulator", "--seed", "12"]
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    story = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240
    ).stdout
    assert f"\nhistory {play(plan(12, sorted(methods.METHODS))).digest}\n" in story
