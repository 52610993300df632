"""The method of a scenario under the secure sums that its section `privacy` asks for, with the companion if it has one."""

from __future__ import annotations

from functools import partial

from covey.extras.secure.figures import FigureSlots
from covey.extras.secure.secured import Secured
from covey.shared.mqtt.shards import shard_of
from covey.shared.scenario.scenario import Scenario


def secured(scenario: Scenario) -> Secured:
    """The method as the coordinator runs it."""
    privacy = scenario.privacy
    assert privacy is not None  # noqa: S101 - the caller has seen the key
    assert privacy.secure is not None  # noqa: S101
    return Secured(
        method=scenario.accompanied,
        settings=privacy.secure,
        noise=privacy.client,
        rounds=scenario.rounds.count,
        slots=FigureSlots.of(scenario.evaluation.for_agents(), scenario.task.for_agents()),
        home=partial(shard_of, shards=scenario.shards),
    )
