"""The initial models of a scenario: with NumPy where the model is built in, so that a device needs no torch for them."""

from __future__ import annotations

from pathlib import Path

from covey.agent.own_loops import loop_of
from covey.shared import extras
from covey.shared.models.starts import seeds_of, starts_of, write_starts
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.own_code.consent import NO_CODE, AllowedCode, framework_of
from covey.shared.scenario.code import check_code, check_training
from covey.shared.scenario.load import load_without_files
from covey.shared.scenario.scenario import Scenario
from covey.shared.seeds import entropy


def write_start(scenario: Scenario, out: Path, allowed: AllowedCode = NO_CODE) -> None:
    """Draw the initial weights on the scenario's seed and write them, see `write_starts`.

    Raises:
        UserError: the model cannot be built, lacks the strategy's head, or is not allowed on this machine.
    """
    seeds = seeds_of(scenario)
    starts, layout = (
        starts_of(scenario) or _begun(scenario, seeds, allowed) or _built(scenario, seeds, allowed)
    )
    write_starts(out, starts, layout)


def write_start_of(path: Path, out: Path, allowed: AllowedCode) -> None:
    """As `write_start`, for a scenario's file, whose code must be allowed."""
    scenario = load_without_files(path)
    check_code(scenario, allowed)
    write_start(scenario, out, allowed)


def _begun(
    scenario: Scenario, seeds: list[int], allowed: AllowedCode
) -> tuple[list[Vector], Layout] | None:
    """The models as code of the user's own begins them; None for a module of torch, and one that begins with given weights."""
    task = scenario.task
    loop = loop_of(task, allowed)
    if loop is None:
        return None
    check_training(scenario, clients=framework_of(task.model.name) == "flower")
    if task.init is not None or task.base is not None:
        return None
    own_loop = extras.part("light", "own_loop", "task.model")
    begun = [own_loop.start_of(loop, entropy(seed, "weights") % own_loop.SEEDS) for seed in seeds]
    layout: Layout = begun[0][1]
    return [layout.vector(arrays) for arrays, _ in begun], layout


def _built(
    scenario: Scenario, seeds: list[int], allowed: AllowedCode
) -> tuple[list[Vector], Layout]:
    """The models as torch builds them."""
    from covey.agent.training.models import build, headed, initial, model_of
    from covey.agent.training.trial import check_batch

    if loop_of(scenario.task, allowed) is None:
        trial, _ = model_of(scenario.task, allowed)
        check_batch(trial, scenario.training.batch)
    if head := scenario.strategy.projection_head:
        headed(build(scenario.task, scenario.seed, allowed), head)
    starts = []
    for number, seed in enumerate(seeds):
        vector, layout = initial(scenario.task, seed, number, allowed)
        starts.append(vector)
    return starts, layout
