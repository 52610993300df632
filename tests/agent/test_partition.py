"""Who holds which samples: what every rule promises."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.agent.data import Dataset
from covey.agent.data.dataset import dataset
from covey.agent.data.named import load_named
from covey.agent.data.partition import (
    SampleSplit,
    client_dataset,
    fleet_data,
    limited,
    load_split,
    partition,
)
from covey.shared.errors import UserError
from covey.shared.scenario.partition import (
    ByGroup,
    Dirichlet,
    GroupedLabels,
    Iid,
    LabelSkew,
    Partition,
    Quantity,
    Rotation,
)
from tests.kit.scenes import Scenes

TARGETS = np.arange(2000) % 10
TESTS = np.arange(500) % 10

RULES: list[Partition] = [
    Iid(),
    LabelSkew(share=0.2),
    LabelSkew(share=0.3),
    Dirichlet(alpha=0.5),
    Dirichlet(alpha=0.5, version=1),
    GroupedLabels(groups=2),
    GroupedLabels(groups=3),
    Rotation(groups=2),
    Rotation(groups=4),
    LabelSkew(share=0.2, test="proportional"),
    Quantity(alpha=0.5),
]


def split_of(cfg: Partition, agents: int = 20, seed: int = 0, tests: bool = True) -> SampleSplit:
    return partition(
        cfg, TARGETS, agents, np.random.default_rng(seed), test_targets=TESTS if tests else None
    )


def labels_of(split: SampleSplit, agent: int) -> set[int]:
    return set(TARGETS[split.train(agent)].tolist())


@pytest.mark.parametrize("tests", [True, False])
@pytest.mark.parametrize("cfg", RULES, ids=str)
def test_training_shares_are_disjoint_and_no_agent_is_left_without(
    cfg: Partition, tests: bool
) -> None:
    split = split_of(cfg, tests=tests)
    assert split.agents == 20
    assert len(np.unique(split.train_idx)) == len(split.train_idx)
    assert min(len(split.train(agent)) for agent in range(20)) > 0
    assert min(len(split.test(agent)) for agent in range(20)) > 0


@pytest.mark.parametrize("cfg", RULES, ids=str)
def test_training_shares_cover_the_set(cfg: Partition) -> None:
    assert sorted(split_of(cfg).train_idx) == list(range(2000))


@pytest.mark.parametrize("cfg", RULES, ids=str)
def test_the_same_seed_gives_the_same_partition_and_another_seed_another(cfg: Partition) -> None:
    assert np.array_equal(split_of(cfg).train_idx, split_of(cfg).train_idx)
    assert not np.array_equal(split_of(cfg).train_idx, split_of(cfg, seed=1).train_idx)


@pytest.mark.parametrize("cfg", RULES, ids=str)
def test_without_a_test_part_a_fifth_of_the_pool_is_held_back(cfg: Partition) -> None:
    split = split_of(cfg, tests=False)
    assert split.test_of == "train"
    assert not set(split.train_idx) & set(split.test_idx)
    assert len(np.unique(split.test_idx)) <= 400


@pytest.mark.parametrize("share", [0.2, 0.3])
def test_label_skew_gives_everyone_q_labels_and_every_label_an_owner(share: float) -> None:
    split = split_of(LabelSkew(share=share))
    owned = [labels_of(split, agent) for agent in range(20)]
    assert {len(labels) for labels in owned} == {round(share * 10)}
    assert all(agent % 10 in labels for agent, labels in enumerate(owned))


def test_label_skew_shares_a_label_evenly_among_its_owners() -> None:
    split = split_of(LabelSkew(share=0.2))
    for label in range(10):
        counts = [int((TARGETS[split.train(agent)] == label).sum()) for agent in range(20)]
        held = [count for count in counts if count]
        assert max(held) - min(held) <= 1


@pytest.mark.parametrize("cfg", [LabelSkew(), Dirichlet(alpha=0.3), GroupedLabels()], ids=str)
def test_the_local_view_holds_all_test_samples_of_the_labels_owned(cfg: Partition) -> None:
    split = split_of(cfg)
    for agent in range(20):
        assert sorted(split.test(agent)) == [
            i for i in range(500) if TESTS[i] in labels_of(split, agent)
        ]


@pytest.mark.parametrize("rule", [LabelSkew, GroupedLabels, Dirichlet])
def test_proportional_tests_are_shared_out_as_the_training_samples_of_each_label(rule: Any) -> None:
    view, split = split_of(rule()), split_of(rule(test="proportional"))
    assert np.array_equal(split.train_idx, view.train_idx)
    assert sorted(split.test_idx) == list(range(500))  # every test sample, once
    for agent, label in itertools.product(range(20), range(10)):
        own, all_agents = (
            np.bincount(TARGETS[idx], minlength=10) for idx in (split.train(agent), split.train_idx)
        )
        tests = np.bincount(TESTS[split.test(agent)], minlength=10)[label]
        assert abs(tests - own[label] / all_agents[label] * np.count_nonzero(label == TESTS)) < 1


@settings(max_examples=20, deadline=None)
@given(alpha=st.floats(0.05, 5), agents=st.integers(2, 30), seed=st.integers(0, 100))
def test_dirichlet_and_quantity_leave_no_agent_below_the_minimum(
    alpha: float, agents: int, seed: int
) -> None:
    for cfg in (Dirichlet(alpha=alpha, min_samples=10), Quantity(alpha=alpha, min_samples=10)):
        split = split_of(cfg, agents=agents, seed=seed)
        assert np.diff(split.train_ptr).min() >= 10
        assert sorted(split.train_idx) == list(range(2000))


def test_dirichlet_that_cannot_be_drawn_is_topped_up() -> None:
    split = split_of(Dirichlet(alpha=0.001, min_samples=80), agents=20)
    assert np.diff(split.train_ptr).min() >= 80


def test_a_smaller_alpha_skews_more() -> None:
    def spread(alpha: float) -> float:
        split = split_of(Dirichlet(alpha=alpha, min_samples=1), agents=10)
        return float(np.mean([len(labels_of(split, agent)) for agent in range(10)]))

    assert spread(0.1) < spread(1) < spread(100) == 10


def classes_by_agent(cfg: Dirichlet, agents: int, seeds: int) -> np.ndarray:
    """Mean number of classes of each agent (agents,) over seeds, of 10 classes with 2 000 samples each."""
    targets = np.arange(20_000) % 10
    counts = np.zeros((seeds, agents))
    for seed in range(seeds):
        split = partition(cfg, targets, agents, np.random.default_rng(seed), test_targets=TESTS)
        counts[seed] = [len(np.unique(targets[split.train(agent)])) for agent in range(agents)]
    means: np.ndarray = counts.mean(axis=0)
    return means


def test_no_agent_collects_strays_of_nearly_every_class_under_dirichlet() -> None:
    """The last agent had twice the classes of the others: what is left of 1 - 0.999... made it a sample of each."""
    classes = classes_by_agent(Dirichlet(alpha=0.1, min_samples=1), agents=50, seeds=20)
    others = classes[1:-1].mean()
    assert abs(classes[-1] - others) < 1
    assert abs(classes[0] - others) < 1


def test_the_first_version_of_dirichlet_still_gives_the_partitions_of_stored_tables() -> None:
    first = Dirichlet(alpha=0.1, min_samples=1, version=1)
    classes = classes_by_agent(first, agents=50, seeds=20)
    assert classes[-1] > 1.8 * classes[1:-1].mean()
    split = split_of(Dirichlet(alpha=0.5, version=1), agents=4, seed=3)
    labels = [np.bincount(TARGETS[split.train(agent)], minlength=10).tolist() for agent in range(4)]
    assert labels == [
        [0, 27, 49, 59, 7, 10, 129, 19, 8, 11],
        [115, 34, 0, 0, 54, 85, 31, 56, 20, 163],
        [2, 124, 8, 129, 93, 71, 36, 34, 127, 0],
        [83, 15, 143, 12, 46, 34, 4, 91, 45, 26],
    ]


def test_every_agent_gets_its_share_of_a_class_rounded_down_or_up_under_dirichlet() -> None:
    """One class and a large alpha: shares are nearly even, and no offset moves a count by a whole sample."""
    targets = np.zeros(1000, np.int64)
    split = partition(
        Dirichlet(alpha=1e9), targets, 7, np.random.default_rng(0), test_targets=targets[:10]
    )
    assert set(np.diff(split.train_ptr).tolist()) == {142, 143}


def test_grouped_labels_gives_groups_disjoint_labels_and_the_truth_names_them() -> None:
    split = split_of(GroupedLabels(groups=2), agents=10)
    assert split.truth is not None
    assert split.truth.tolist() == [0] * 5 + [1] * 5
    assert all(
        labels_of(split, agent) == ({0, 1, 2, 3, 4} if agent < 5 else {5, 6, 7, 8, 9})
        for agent in range(10)
    )
    assert set(np.diff(split.train_ptr).tolist()) == {200}


def test_rotation_turns_the_images_of_a_group_and_of_its_test_set() -> None:
    split = split_of(Rotation(groups=4), agents=8)
    assert split.truth is not None
    assert split.turns is not None
    assert split.truth.tolist() == split.turns.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    halves = split_of(Rotation(groups=2), agents=2).turns
    assert halves is not None
    assert halves.tolist() == [0, 2]
    images = np.arange(2000 * 4, dtype=np.int16).reshape(-1, 1, 2, 2)
    data = dataset(images, TARGETS, (images[:500], TESTS), source="x")
    for agent in range(8):
        own = client_dataset(data, split, agent)
        turned = np.rot90(images[split.train(agent)], agent // 2, axes=(2, 3))
        assert np.array_equal(own.features, turned)
        assert np.array_equal(
            own.test_features, np.rot90(images[split.test(agent)], agent // 2, axes=(2, 3))
        )


def test_rotation_refuses_what_is_no_square_image() -> None:
    data = dataset(np.zeros((2000, 1, 2, 3)), TARGETS, source="x")
    with pytest.raises(UserError, match="square images"):
        client_dataset(data, split_of(Rotation(groups=4), tests=False), 19)


GROUPS = np.repeat(np.arange(10), 20)  # ten natural clients with 20 samples each, in time order
CLASSES = np.tile(np.repeat([0, 1], 10), 10)
POPULATIONS = np.where(GROUPS < 6, "home", "work")


def grouped(
    cfg: Partition,
    agents: int,
    tests: np.ndarray | None = None,
    seed: int = 0,
    overlap: int | None = None,
) -> SampleSplit:
    return partition(
        cfg,
        CLASSES,
        agents,
        np.random.default_rng(seed),
        groups=GROUPS,
        populations=POPULATIONS,
        overlap=overlap,
        test_targets=None if tests is None else np.zeros(len(tests), np.int64),
        test_groups=tests,
    )


def test_by_group_gives_an_agent_one_natural_client_split_within() -> None:
    split = grouped(ByGroup(), 10)
    assert split.test_of == "train"
    for agent in range(10):
        own = [*split.train(agent), *split.test(agent)]
        assert sorted(own) == list(range(20 * agent, 20 * agent + 20))
        assert len(split.test(agent)) == 4


@pytest.mark.parametrize("split", ["random", "time"])
def test_by_group_holds_back_the_share_that_the_fleet_names(split: str) -> None:
    rule = ByGroup.model_validate({"split": split})
    draw = np.random.default_rng(0)
    found = partition(rule, CLASSES, 10, draw, groups=GROUPS, test_share=0.5)
    assert [len(found.test(agent)) for agent in range(10)] == [10] * 10


def test_by_group_chooses_clients_and_not_samples_where_there_are_more() -> None:
    split = grouped(ByGroup(), 4)
    owners = [set(GROUPS[split.train(agent)].tolist()) for agent in range(4)]
    assert all(len(owner) == 1 for owner in owners)
    assert len(set.union(*owners)) == 4
    assert not np.array_equal(split.train_idx, grouped(ByGroup(), 4, seed=1).train_idx)


def test_by_group_in_time_order_holds_back_the_end_of_each_class() -> None:
    split = grouped(ByGroup(split="time"), 10)
    assert split.train(0).tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14, 15, 16, 17]
    assert split.test(0).tolist() == [8, 9, 18, 19]


def test_by_group_in_time_order_holds_back_the_end_of_all_samples_with_several_labels() -> None:
    """A sample has no one class by which the ends could be found."""
    labels = np.random.default_rng(0).integers(0, 2, (20, 3))
    split = partition(
        ByGroup(split="time"), labels, 2, np.random.default_rng(0), groups=np.repeat([0, 1], 10)
    )
    assert sorted(split.test_idx.tolist()) == [8, 9, 18, 19]


def test_by_group_leaves_out_windows_that_share_rows_with_a_tested_one() -> None:
    """Windows 8, 9, 18 and 19 of each client test. Two share rows with window 8 and with window 10, which is of the next class."""
    split = grouped(ByGroup(split="time"), 10, overlap=2)
    assert split.train(0).tolist() == [0, 1, 2, 3, 4, 5, 12, 13, 14, 15]
    assert split.train(1)[0] == 20
    assert split.test(0).tolist() == [8, 9, 18, 19]


@pytest.mark.parametrize("rule", [ByGroup(), Iid()])
def test_a_random_choice_of_windows_that_overlap_is_refused(rule: Partition) -> None:
    assert grouped(rule, 10, overlap=0).agents == 10
    with pytest.raises(UserError, match=r"windows that overlap.*split: time"):
        grouped(rule, 10, overlap=1)


def test_by_group_takes_the_given_number_of_each_population_and_knows_the_truth() -> None:
    split = grouped(ByGroup(populations={"work": 2, "home": 3}), 5)
    assert split.populations == ("work", "home")
    assert split.truth is not None
    assert split.truth.tolist() == [0, 0, 1, 1, 1]
    seen = [str(POPULATIONS[split.train(agent)[0]]) for agent in range(5)]
    assert seen == ["work", "work", "home", "home", "home"]


def test_by_group_uses_the_test_part_where_the_same_clients_are_there() -> None:
    assert grouped(ByGroup(), 10, tests=np.arange(10)).test_of == "test"
    assert grouped(ByGroup(), 10, tests=np.arange(100, 110)).test_of == "train"


def test_by_group_counts_training_and_test_samples_of_a_client() -> None:
    """Each has 20 training samples here; the client that has a test sample too is the only one with 21."""
    split = grouped(ByGroup(min_samples=21), 1, tests=np.array([7]))
    assert set(GROUPS[split.train(0)].tolist()) == {7}
    assert (len(split.train(0)), len(split.test(0)), split.test_of) == (20, 1, "test")


@pytest.mark.parametrize(
    ("cfg", "agents", "words"),
    [
        (ByGroup(), 11, "11 agents need 11 natural clients with 2 or more samples, the data set has 10"),
        (ByGroup(min_samples=21), 1, "21 or more samples, the data set has 0"),
        (ByGroup(populations={"home": 2}), 3, "2 agents in all, fleet.agents is 3"),
        (ByGroup(populations={"moon": 2}), 2, "no population 'moon'; the data set has home, work"),
        (ByGroup(populations={"work": 5}), 5, "natural clients of work with 2 or more samples, the data set has 4"),
    ],
)  # fmt: skip
def test_by_group_is_refused_with_the_number_of_clients_that_exist(
    cfg: ByGroup, agents: int, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        grouped(cfg, agents)


def test_a_rule_that_the_data_cannot_satisfy_is_refused() -> None:
    with pytest.raises(UserError, match="natural clients"):
        split_of(ByGroup())
    with pytest.raises(
        UserError, match="100 agents with 30 samples each need 3000, the data has 2000"
    ):
        split_of(Quantity(min_samples=30), agents=100)
    with pytest.raises(UserError, match="11 groups"):
        split_of(GroupedLabels(groups=11))
    with pytest.raises(UserError, match="gets no training sample"):
        split_of(Iid(), agents=2001)
    with pytest.raises(UserError, match="values, this rule needs classes"):
        partition(LabelSkew(), np.linspace(0, 1, 50, dtype=np.float32), 5, np.random.default_rng(0))


POOL = dataset(np.zeros((2000, 1)), TARGETS, source="pool")
TESTED = replace(POOL, test_features=np.zeros((500, 1), np.float32), test_targets=TESTS)


@pytest.mark.parametrize("cfg", RULES, ids=str)
def test_a_stored_partition_comes_back_the_same(cfg: Partition, tmp_path: Path) -> None:
    for tests, data in ((True, TESTED), (False, POOL)):
        split = split_of(cfg, tests=tests)
        split.save(tmp_path / "p.npz")
        back = load_split(tmp_path / "p.npz", data, 20)
        for name in (
            "train_idx",
            "train_ptr",
            "test_idx",
            "test_ptr",
            "test_of",
            "truth",
            "turns",
            "populations",
        ):
            assert np.array_equal(getattr(split, name), getattr(back, name)), name


def stored(path: Path, **changed: object) -> Path:
    arrays = {
        "train_idx": [0, 1, 2],
        "train_ptr": [0, 2, 3],
        "test_idx": [3, 4],
        "test_ptr": [0, 1, 2],
    } | changed
    present = {name: np.asarray(value) for name, value in arrays.items() if value is not None}
    np.savez(path, **present)  # type: ignore[arg-type]  # the stubs fear an array named allow_pickle
    return path


def test_a_users_partition_needs_the_four_arrays_only(tmp_path: Path) -> None:
    path = stored(tmp_path / "p.npz")
    assert load_split(path, POOL, 2).test_of == "train"
    assert load_split(path, TESTED, 2).test_of == "test"
    assert load_split(path, TESTED, 2).train(0).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"train_ptr": None}, "no array train_ptr"),
        (
            {"train_idx": [0, 1, 2000]},
            "train_idx has values from 0 to 2000; the data set has samples 0 to 1999",
        ),
        ({"train_idx": [0.0, 1.0, 2.0]}, "integers"),
        ({"train_ptr": [0, 3]}, r"2 agents need \(3,\)"),
        ({"train_ptr": [0, 2, 2]}, "rise from 0 to 3"),
        ({"train_ptr": [0, 0, 3]}, "agent 0 of 2 gets no training sample"),
        ({"train_idx": [0, 1, 1]}, "training sample 1 is in train_idx more than once"),
        ({"truth": [1]}, "truth has shape"),
        ({"test_of": "dev"}, "test_of is 'dev'"),
    ],
)
def test_a_faulty_stored_partition_names_the_array(
    tmp_path: Path, changed: dict[str, object], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        load_split(stored(tmp_path / "p.npz", **changed), POOL, 2)


scenario = Scenes.of("t", {"features": [1, 8, 8], "classes": 10}, fleet={"agents": 10})
GROUPED = {"partition": {"name": "grouped_labels", "groups": 2}}


def test_a_fleet_on_digits_gets_its_data_by_the_scenario_alone() -> None:
    data, split = fleet_data(scenario(fleet=GROUPED))
    own = client_dataset(data, split, 9)
    assert set(own.targets.tolist()) == set(own.test_targets.tolist()) == {5, 6, 7, 8, 9}
    again = fleet_data(scenario(fleet=GROUPED))[1]
    assert np.array_equal(split.train_idx, again.train_idx)


def test_the_limit_draws_on_the_seed_and_does_not_go_with_a_stored_partition(
    tmp_path: Path,
) -> None:
    data, split = fleet_data(scenario(fleet={"limit": 300}))
    assert len(data.targets) == 300
    assert len(split.train_idx) + len(np.unique(split.test_idx)) == 300
    with pytest.raises(UserError, match="exclude each other"):
        fleet_data(scenario(fleet={"limit": 300, "partition": str(tmp_path / "p.npz")}))


def test_the_limit_shrinks_the_test_part_alike() -> None:
    less = limited(TESTED, 200, np.random.default_rng(0))
    assert (len(less.targets), len(less.test_targets)) == (200, 50)


def test_a_fleet_reads_a_stored_partition(tmp_path: Path) -> None:
    data: Dataset = load_named("digits")
    split = partition(Iid(), data.targets, 10, np.random.default_rng(5))
    split.save(tmp_path / "p.npz")
    assert np.array_equal(
        fleet_data(scenario(fleet={"partition": str(tmp_path / "p.npz")}))[1].train_idx,
        split.train_idx,
    )
    with pytest.raises(UserError, match="does not exist"):
        fleet_data(scenario(fleet={"partition": str(tmp_path / "absent.npz")}))


def test_by_group_takes_the_test_part_of_each_client_that_has_one() -> None:
    """What one client lacks decides nothing for the others."""
    split = grouped(ByGroup(), 10, tests=np.repeat(np.arange(9), 3))
    assert split.test_of == "test"
    assert [len(split.train(agent)) for agent in range(10)] == [20] * 10
    assert [len(split.test(agent)) for agent in range(10)] == [3] * 9 + [0]
