"""A finished run gives its models to the devices that took part, as `rounds.publish` asks."""

from __future__ import annotations

from collections.abc import Sequence

from covey.coordinator.disk.versions import BEST, best_version, is_kept
from covey.coordinator.record.notices import ModelsNotPublished, ModelsPublished, Observer
from covey.coordinator.run import early_stop
from covey.coordinator.run.result import worse_than_none
from covey.coordinator.run.run import Run
from covey.extras.in_use.publish import publish
from covey.extras.in_use.registry import Publication, note, operator, publications
from covey.extras.judge.judge import of_deployment
from covey.shared.errors import UserError
from covey.shared.mqtt.link import Link
from covey.shared.sentences import some
from covey.shared.strategies.base import ClientId
from covey.shared.wire.topics import Topics


async def publish_finished(run: Run, link: Link, observer: Observer) -> None:
    """Publish the models of a finished run, once. A failure is a notice: the run has its result all the same.

    A run that is resumed after its end leaves the devices alone: an operator may have chosen another version since.
    """
    if (wish := run.scenario.rounds.publish) == "never":
        return
    try:
        if any(one.act == "publish" for one in publications(run.folder)):
            return
        is_best = wish == "best" and is_kept(run.folder, BEST)
        version = best_version(run.folder) if is_best else run.version({})
        if not version.models:  # they never left the devices
            return
        if why := run.strategy.failure(run.state):
            raise UserError(why)
        if version.round == run.engine.round and (why := withheld(*worse_than_none(run))):
            raise UserError(
                f"{why}; `coordinator promote {run.folder} --force` publishes them all the same"
            )
        name = f"{run.folder.name}@{version.round}"
        published = await publish(
            link,
            Topics(run.scenario.federation),
            version,
            origin="run",
            part_bytes=run.scenario.wire.part_bytes,
            tune=run.scenario.tuning_at_home,
            judge=of_deployment(
                run.scenario.evaluation, run.facts.fleet, is_open=run.scenario.is_open
            ),
            name=name,
        )
        figure = early_stop.figure_after(
            run.scenario, run.facts.history, run.members.evaluation, version.round, run.engine.round
        )
        before = published.before.all_devices
        line = Publication(
            act="publish",
            round=version.round,
            serial=published.serial,
            run=version.run,
            federation=run.scenario.federation,
            who=operator(),
            figure=figure,
            before_run="" if before is None else before.run,
            before_round=0 if before is None else before.round,
        )
        note(run.audit, line)
    except UserError as error:
        observer(ModelsNotPublished(str(error)))
        return
    observer(ModelsPublished(name, version.round, len(version.models), published.serial))


def withheld(worse: Sequence[ClientId], compared: int) -> str:
    """Why models are not for use: on most devices they are worse than none. Empty if they are not."""
    if 2 * len(worse) <= compared:
        return ""
    return (
        f"the models are worse than none on {len(worse)} of {compared} devices, by their test rows: the constant of their own "
        f"training rows is better on {some(worse)}. Look at these devices' data: scale and unit of the target, constants, "
        "missing cells"
    )
