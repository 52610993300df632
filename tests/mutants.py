"""Faults of one line, planted one after another: each must die in its test. `python -m tests.mutants [NAME ...]`

They are planted in a copy of the tree. It fails where a fault lives, where its line is no longer there, and where none was
planted. A line that has moved or was reworded takes its fault along.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from scripts.core import copied
from scripts.size import ROOT


class Mutant(NamedTuple):
    """A line of the product, what it becomes, and the test that sees it."""

    name: str
    file: str
    line: str
    becomes: str
    test: str


MUTANTS = (
    Mutant(
        "spool batch no fsync",
        "coordinator/disk/spool.py",
        "self._room.write(lambda: sync_files(self._unsynced))",
        "self._room.write(lambda: None)",
        "tests/coordinator/test_spool.py::test_reports_that_came_together_are_synced_once_and_their_folder_with_them",
    ),
    Mutant(
        "checkpoint before spool",
        "coordinator/record/store.py",
        "        self.reports.sync()\n        if self.audit.holds:\n            self.audit.release()\n"
        "        self.rounds.flush()\n"
        "        if self._is_due:\n            self._save(run)\n",
        "        if self._is_due:\n            self._save(run)\n        self.reports.sync()\n",
        "tests/coordinator/test_buffered_wire.py::test_reports_are_synced_before_a_checkpoint_that_counts_them",
    ),
    Mutant(
        "incarnation without time",
        "coordinator/run/run.py",
        "facts.incarnation = max(facts.incarnation + 1, int(1000 * time.time()))",
        "facts.incarnation = facts.incarnation + 1",
        "tests/coordinator/test_recovery.py::test_an_older_folder_that_is_put_back_within_a_second_of_a_restart_gives_newer_orders",
    ),
    Mutant(
        "ask again same incarnation",
        "coordinator/run/closing.py",
        "parts.facts.incarnation += 1",
        "parts.facts.incarnation += 0",
        "tests/coordinator/test_damaged_reports.py::test_a_damaged_report_is_taken_when_it_comes_again_to_the_coordinator_that_has_seen_it",
    ),
    Mutant(
        "agent outdated strict",
        "agent/device/delivery.py",
        "return knows_less and order.again <= self._confirmed",
        "return knows_less and order.again < self._confirmed",
        "tests/agent/test_session_reports.py::test_an_old_order_of_a_restored_broker_does_not_repeat_accepted_work",
    ),
    Mutant(
        "agent never asked again",
        "agent/device/delivery.py",
        "asks_again = order.again > self._answered_again",
        "asks_again = False",
        "tests/agent/test_session_reports.py::test_a_report_on_its_way_is_sent_once_more_when_the_coordinator_asks_again",
    ),
    Mutant(
        "agent kept dropped early",
        "agent/device/delivery.py",
        "newest_finished = max(order.closed, order.step - 1, order.accepted - 1)",
        "newest_finished = max(order.closed, order.step - 1, order.accepted)",
        "tests/agent/test_delivery.py::test_a_report_is_sent_accepted_and_dropped_when_its_step_is_closed",
    ),
    Mutant(
        "parts no dedupe",
        "shared/wire/parts.py",
        "if partial.have[part.index]:",
        "if False:",
        "tests/shared/test_parts.py::test_contents_come_together_in_any_order_with_duplicates_and_interleaved",
    ),
    Mutant(
        "report never again",
        "coordinator/serve/intake.py",
        "if self._may_come_again(agent, part):",
        "if False:",
        "tests/coordinator/test_damaged_reports.py::test_a_damaged_report_is_taken_when_it_comes_again_to_the_coordinator_that_has_seen_it",
    ),
    Mutant(
        "own will not answered",
        "agent/device/presence.py",
        "if not status.online:  # others read that we are gone",
        "if False:",
        "tests/agent/test_session_status.py::test_a_session_that_reads_its_own_last_will_publishes_that_it_is_online",
    ),
    Mutant(
        "old wills count",
        "coordinator/serve/intake.py",
        "return retained and not newest_retained",
        "return False",
        "tests/coordinator/test_service.py::test_what_a_broker_remembers_of_an_earlier_session_does_not_take_the_place_of_a_live_status",
    ),
    Mutant(
        "unreadable no new deadline",
        "coordinator/engine/rounds.py",
        "step.deadline = max(step.deadline, now + (step.adapted_s or self.rules.deadline_s))",
        "pass",
        "tests/coordinator/test_rounds_recovery.py::test_a_step_that_lost_a_report_when_its_time_was_nearly_over_gives_its_agent_a_whole_deadline",
    ),
    Mutant(
        "checkpoint array unchecked",
        "coordinator/disk/checkpoint.py",
        "if name not in self._sound and array_digest(array) != name:",
        "if False:",
        "tests/coordinator/test_disk.py::test_an_array_of_the_checkpoint_that_was_damaged_is_refused_by_name_and_left_alone",
    ),
    Mutant(
        "checkpoint trusts leftover",
        "coordinator/disk/checkpoint.py",
        "if name not in self._sound:  # a file that another process has left may be damaged",
        "if not path.exists():",
        "tests/coordinator/test_disk.py::test_an_array_that_an_earlier_process_left_damaged_is_written_again",
    ),
    Mutant(
        "sum counted twice",
        "extras/scale/sum_acceptance.py",
        "if content_digest in folding.settled:",
        "if False:",
        "extras/scale/tests/test_partial_sums.py::test_a_sum_waits_for_others_and_is_offered_until_it_is_settled",
    ),
    Mutant(
        "sum of other work",
        "extras/scale/sum_acceptance.py",
        "if report.work != parts.orders.asked_for(client, number, parts.state):",
        "if False:",
        "extras/scale/tests/test_partial_sums.py::test_a_sum_with_a_report_of_other_work_counts_nothing",
    ),
    Mutant(
        "sum kept after ack",
        "extras/scale/sum_acceptance.py",
        "store.reports.keep_sum(number, came.content, content_digest)",
        "pass",
        "extras/scale/tests/test_partial_sums.py::test_a_killed_coordinator_continues_with_the_sums_that_it_accepted",
    ),
    Mutant(
        "spool dropped before checkpoint",
        "coordinator/run/closing.py",
        "parts.store.step_over(closed.step)",
        "parts.store.reports.drop(closed.step)",
        "tests/coordinator/test_recovery.py::test_reports_leave_the_spool_once_a_checkpoint_is_past_their_step",
    ),
    Mutant(
        "outbox no memory before",
        "agent/device/outbox.py",
        "before=self.memory,",
        'before="",',
        "tests/agent/test_outbox.py::test_files_that_are_no_longer_needed_are_removed_at_once",
    ),
    Mutant(
        "outbox not durable",
        "agent/device/outbox.py",
        "write_atomically(self._path, content, durable=self._durable)",
        "write_atomically(self._path, content, durable=False)",
        "tests/simulator/test_durable.py::test_an_outbox_knows_after_a_power_cut_what_it_knew_before[1]",
    ),
    Mutant(
        "outbox line not durable",
        "agent/device/outbox.py",
        "append(self._path, content, durable=self._durable)",
        "append(self._path, content, durable=False)",
        "tests/simulator/test_durable.py::test_an_outbox_knows_after_a_power_cut_what_it_knew_before[2]",
    ),
    Mutant(
        "answer with another digest",
        "agent/worker/perform.py",
        "digest=digest(report),",
        'digest=digest(b""),',
        "tests/simulator/test_simulator.py::test_runs_with_faults_have_the_bytes_of_calm_ones",
    ),
    Mutant(
        "new memory unnamed",
        "agent/worker/perform.py",
        "return replace(done, seal=seal)",
        "return done",
        "tests/simulator/test_simulator.py::test_runs_with_faults_have_the_bytes_of_calm_ones",
    ),
    Mutant(
        "reportfile keeps half record",
        "coordinator/disk/report_file.py",
        "if not self._is_tidy:",
        "if False:",
        "tests/coordinator/test_report_file.py::test_a_short_report_in_the_place_of_half_a_long_one_leaves_nothing_of_it",
    ),
    Mutant(
        "staleness always fresh",
        "coordinator/engine/pace.py",
        "since=_count(order.folds, began_with),",
        "since=_count(self.folds, began_with),",
        "tests/coordinator/test_buffered_rounds.py::test_staleness_counts_the_folds_of_the_own_cluster_since_the_order",
    ),
    Mutant(
        "patience from restart",
        "coordinator/engine/rounds.py",
        'pace.postpone(now - snapshot["now"])  # no coordinator was there',
        "pass",
        "tests/coordinator/test_buffered_rounds.py::test_a_restarted_engine_has_the_same_orders_buffers_and_line",
    ),
    Mutant(
        "versions removed early",
        "coordinator/record/store.py",
        "if path in self._useless:  # the models of a fold can be those of an earlier state",
        "if False:",
        "tests/simulator/test_durable.py::test_a_model_that_comes_back_into_use_keeps_its_file",
    ),
    Mutant(
        "secure start not locked",
        "extras/secure/agent.py",
        "locked = self._locked(state, own, content).changed(",
        "locked = state.changed(",
        "extras/secure/tests/test_sums.py::test_a_next_round_is_a_sum_of_its_own",
    ),
    Mutant(
        "secure unsynced state",
        "extras/secure/secure_folder.py",
        "write_private(self._folder / STATE, state.to_bytes())",
        "(self._folder / STATE).write_bytes(state.to_bytes())",
        "tests/simulator/test_durable.py::test_a_device_knows_after_a_power_cut_which_sums_it_has_answered",
    ),
    Mutant(
        "deploy serial equal",
        "extras/in_use/publish.py",
        "serial = max(serial, newest.serial + 1)",
        "serial = max(serial, newest.serial)",
        "extras/in_use/tests/test_publish.py::test_a_serial_grows_even_if_another_clock_was_ahead",
    ),
    Mutant(
        "device takes old deployment",
        "extras/in_use/deployments.py",
        "if deployment.serial <= known:",
        "if deployment.serial < known:",
        "extras/in_use/tests/test_device_deployments.py::test_a_device_fetches_the_model_of_its_cluster_and_no_other",
    ),
    Mutant(
        "journal no cut at resume",
        "shared/storage/journal.py",
        'known = [line for line in lines if line.endswith(b"\\n")][:keep]',
        'known = [line for line in lines if line.endswith(b"\\n")]',
        "tests/shared/test_journal.py::test_the_lines_that_are_left_when_a_journal_is_opened_again[newer lines]",
    ),
    Mutant(
        "old order left behind",
        "coordinator/serve/publisher.py",
        'desk.effects.append(Publish([(desk.topics.order(agent), b"")], shard=shard))',
        "pass",
        "extras/scale/tests/test_shards.py::test_an_agent_that_turns_to_another_broker_keeps_its_part_in_the_run",
    ),
    Mutant(
        "aggregator keeps finished",
        "extras/scale/service.py",
        "self._reports.forget(agent, part.digest)",
        "pass",
        "extras/scale/tests/test_aggregators.py::test_a_whole_report_that_comes_again_is_read_again",
    ),
    Mutant(
        "second coordinator unasked",
        "coordinator/serve/exclusive.py",
        "if not retained:",
        "if False:",
        "tests/coordinator/test_two_coordinators.py::test_a_coordinator_that_is_at_work_answers_one_that_asks_before_it_starts",
    ),
    Mutant(
        "folder name unsynced",
        "shared/storage/files.py",
        "if durable and name_durable:",
        "if False:",
        "tests/simulator/test_durable.py::test_a_durable_writer_has_written_when_it_returns[shared/storage/files.py write_atomically]",
    ),
    Mutant(
        "leaves not cleared at roll",
        "coordinator/engine/members.py",
        "self._by_id[client].leaves_at = None  # the roll call decides",
        "pass",
        "tests/coordinator/test_rounds_recovery.py::test_an_agent_that_leaves_again_during_a_roll_call_is_gone_at_its_new_time",
    ),
    Mutant(
        "companion left out",
        "shared/scenario/companion.py",
        "return companion(name).around(method, task) if name else method",
        "return method",
        "tests/shared/test_companion.py::test_a_companion_plans_phases_that_a_device_takes_from_an_order_that_names_it",
    ),
    Mutant(
        "judge not forgotten",
        "shared/work/judging.py",
        "left = [key for key in memory if not key.startswith(MEMORY)]",
        "left = list(memory)",
        "tests/simulator/test_judge.py::test_a_method_never_sees_what_the_judge_keeps_and_nothing_of_it_is_left_after_the_run",
    ),
    Mutant(
        "oddities of equal weight",
        "coordinator/odd.py",
        "listed = sorted(once.values(), key=lambda one: (order[one.kind], -one.weight, one.devices))",
        "listed = sorted(once.values(), key=lambda one: (order[one.kind], one.devices))",
        "extras/doctor/tests/test_doctor_examine.py::test_the_list_is_in_the_order_of_kinds_weights_and_names",
    ),
    Mutant(
        "library that is missing is an extra",
        "shared/extras.py",
        'if not f"{name}.".startswith(f"{error.name}."):',
        "if False:",
        "tests/shared/test_extras.py::test_a_library_that_an_extra_lacks_is_named_itself",
    ),
)


def play(tree: Path, *tests: str) -> tuple[int, str]:
    """Play tests in a tree. Returns the exit status of pytest, and its last words."""
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *tests]
    places = os.pathsep.join([str(tree / "src"), str(tree)])
    environment = {**os.environ, "PYTHONPATH": places, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout[-500:] + done.stderr[-500:]


def end_of(mutant: Mutant, tree: Path) -> str:
    """Whether a mutant lives, or could not be planted, in words; empty where its test sees it."""
    path = tree / mutant.file
    source = path.read_text()
    if source.count(mutant.line) != 1:
        return f"expected its line once in {mutant.file}, found {source.count(mutant.line)}"
    path.write_text(source.replace(mutant.line, mutant.becomes))
    status, words = play(tree, mutant.test)
    path.write_text(source)
    if status == 0:
        return f"it lives: {mutant.test} passes"
    if status != 1:  # of pytest, where tests fail
        return f"{mutant.test} was not played:\n{words}"
    return ""


def main(names: list[str]) -> int:
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    alive = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copied(ROOT, tree, ())
        status, words = play(tree, *[mutant.test for mutant in chosen])
        if status or not chosen:
            print(f"without any fault these tests must pass:\n{words}")
            return 1
        for mutant in chosen:
            why = end_of(mutant, tree)
            alive += why != ""
            print(f"{mutant.name}: {why or 'dead'}", flush=True)
    print(f"{len(chosen)} planted, {alive} not seen")
    return int(alive > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
