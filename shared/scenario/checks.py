"""Whether a scenario can have buffered rounds, and whether it can keep the differential privacy that it promises.

Buffered rounds suit no scenario that needs one cohort in step. A run that promises a privacy which it cannot keep is worse
than one that promises nothing. Both are refused while the scenario is read, with the reason, before anything is sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from covey.shared.privacy.settings import Privacy
from covey.shared.scenario.aggregation import Aggregation, Clip, Wire
from covey.shared.scenario.compare import Compare
from covey.shared.scenario.evaluation import Evaluation
from covey.shared.scenario.rounds import Rounds
from covey.shared.scenario.task import Task
from covey.shared.strategies.registry import AnyStrategy

BUFFERED = "rounds.mode buffered"


def check_buffered(
    rounds: Rounds, wire: Wire, privacy: Privacy | None, strategies: Sequence[AnyStrategy]
) -> None:
    """ValueError for settings and methods that buffered rounds cannot honour.

    Args:
        rounds: the section, with its mode.
        wire: the section.
        privacy: the section, or None.
        strategies: the scenario's method, then those of its comparison.
    """
    if rounds.mode != "buffered":
        return
    _check_rounds(rounds)
    if wire.delivery == "all":
        raise ValueError(
            f"{BUFFERED}: wire.delivery all sends the next model ahead of its order, but here each order names a version of "
            "its own; set wire.delivery to participants"
        )
    if privacy is not None and privacy.client is not None:
        raise ValueError(
            f"{BUFFERED}: privacy.client counts what a drawn cohort reveals in each round, and a buffer is no such draw; set "
            "rounds.mode to synchronous"
        )
    if privacy is not None and privacy.local is not None:
        raise ValueError(
            f"{BUFFERED}: privacy.local plans its noise for the number of rounds, and here an agent can have more orders; set "
            "rounds.mode to synchronous"
        )
    for strategy in strategies:
        if why := strategy.buffer.refusal:
            raise ValueError(f"{BUFFERED} is not for {strategy.name}: {why}")


def _check_rounds(rounds: Rounds) -> None:
    """ValueError for keys of the rounds section that say how one cohort is invited and awaited."""
    remedies = {
        "participants": rounds.participants is not None,
        "over_select": rounds.over_select != 1,
        "quorum": rounds.quorum != 1,
        "deadline": rounds.deadline is not None,
        "grace_s": rounds.grace_s is not None,
    }
    for key, is_set in remedies.items():
        if is_set:
            raise ValueError(
                f"{BUFFERED}: rounds.{key} is about agents that are invited together; remove it "
                "(rounds.buffer is the number of reports of a fold)"
            )


def check_data_stays_private(privacy: Privacy, task: Task, sketch: int | None) -> None:
    """ValueError for settings that release figures of the data without noise."""
    if sketch:
        raise ValueError(
            "privacy: records.sketch stores a projection of each agent's model, which the privacy account does not "
            "cover; remove records.sketch"
        )
    if privacy.local is not None and task.label_prior == "on":
        raise ValueError(
            "privacy.local: task.label_prior adds each agent's counts of classes to the outputs of a model, and DP-SGD does not "
            "bound what one example then changes; set it to off"
        )
    models_are_private = privacy.client is not None or privacy.local is not None
    if task.standardise == "federated" and models_are_private:
        raise ValueError(
            "privacy: federated standardisation sends sums of the data without noise; set task.standardise to fixed "
            "means and standard deviations, or to none"
        )
    if task.asks_fleet_for and models_are_private:
        keys = " and ".join(f"task.{key}" for key in task.asks_fleet_for)
        raise ValueError(
            f"privacy: agents send statistics of the data for {keys} without noise; set fixed values"
        )


USUAL = Aggregation()  # its limit on steps does not apply to masked reports


def check_secure(
    privacy: Privacy,
    aggregation: Aggregation,
    rounds: Rounds,
    *,
    wire: Wire,
    task: Task,
    evaluation: Evaluation,
    compare: Compare | None,
    strategies: Sequence[AnyStrategy],
) -> None:
    """ValueError for what cannot be combined with secure sums, because it needs single reports or is not supported yet.

    Args:
        privacy, aggregation, rounds, wire, task, evaluation, compare: the sections.
        strategies: the scenario's method, then those of its comparison.
    """
    if privacy.secure is None:
        return
    refused = {
        "privacy.local": (privacy.local is not None, ""),
        "aggregation.rule other than mean": (aggregation.average.single, ""),
        "aggregation.clip": (aggregation.clip != Clip(), "set privacy.secure.clip"),
        "aggregation.max_samples": (
            aggregation.max_samples != USUAL.max_samples,
            "set privacy.secure.cap",
        ),
        "aggregation.refuse_beyond": (
            aggregation.refuse_beyond not in (None, USUAL.refuse_beyond),
            "privacy.secure.clip shortens each step",
        ),
        "rounds.mode buffered": (rounds.mode == "buffered", ""),
        "wire.down other than float32": (wire.down != "float32", ""),
        "wire.codec other than float32": (wire.codec != "float32", "masks have all their bits"),
        "wire.delta": (wire.delta, "masks have all their bits"),
        "evaluation.track": (evaluation.track, ""),
        "statistics of the fleet (task.standardise: federated and its like)": (
            bool(task.asks_fleet_for),
            "write the values that are known, such as task.standardise: {mean: [...], std: [...]}",
        ),
    }
    for what, (is_set, instead) in refused.items():
        if is_set:
            remedy = f"leave it out; {instead}" if instead else "leave it out"
            raise ValueError(
                f"privacy.secure: {what} needs single reports or is not supported under masks; {remedy}"
            )
    _check_summed_figures(task, rounds, compare)
    if privacy.client is not None and privacy.client.clip != privacy.secure.clip:
        raise ValueError(
            f"privacy.client.clip {privacy.client.clip} and privacy.secure.clip {privacy.secure.clip} bound the same updates; "
            "set both to the same number"
        )
    for strategy in strategies:
        if why := strategy.refuses(privacy.secure):
            raise ValueError(f"privacy.secure is not for {strategy.name}: {why}")
        if strategy.server is not None:
            raise ValueError(
                f"privacy.secure: {strategy.name}.server is not supported; leave the server's optimiser out"
            )


def _check_summed_figures(task: Task, rounds: Rounds, compare: Compare | None) -> None:
    """ValueError for figures of single agents, which no secure sum has, where the coordinator is to compare them."""
    regression = task.classes is None
    usual, stop = task.main_measure, rounds.stop
    compared: dict[str, str] = {}  # measures by key
    if stop is not None:
        compared["rounds.stop.metric"] = stop.measure(usual, regression=regression).name
    elif rounds.publish == "best":
        compared["rounds.publish: best, by task.measure"] = usual.name
    if compare is not None:
        compared["compare.measure"] = compare.measure or usual.name
        modes = {compare.metric, *(method.metric or compare.metric for method in compare.methods)}
        if unknown := sorted(modes - {"server", "tuned", "delivered", "global"}):
            raise ValueError(
                f"privacy.secure: compare.metric {unknown[0]} is a figure that only some agents have, and is in no sum; "
                "set it to delivered, server, tuned or global"
            )
    for key, name in compared.items():
        if name == "auc":
            raise ValueError(
                f"privacy.secure: {key} is auc, which cannot be made of sums over agents; choose accuracy, f1, recall or loss"
            )


def check_figures(
    privacy: Privacy, rounds: Rounds, evaluation: Evaluation, compare: Compare | None
) -> None:
    """ValueError where figures without noise would choose what is released, or would read training samples.

    Args:
        privacy, rounds, evaluation, compare: the sections.
    """
    chooses = {
        "rounds.publish: best": (rounds.publish == "best", "rounds.publish to end"),
        "rounds.stop": (rounds.stop is not None, "rounds.stop to null"),
        "evaluation.every": (evaluation.every > 0, "evaluation.every to 0"),
        "evaluation.track": (evaluation.track, "evaluation.track to false"),
    }
    if privacy.client is not None:
        for key, (is_set, remedy) in chooses.items():
            if is_set:
                raise ValueError(
                    f"privacy.client: {key} lets test figures without noise choose models or rounds, which the account does "
                    f"not cover; set {remedy}"
                )
    reads = {"tune_epochs": evaluation.tune_epochs > 0, "track": evaluation.track}
    if privacy.local is not None:
        for key, is_set in reads.items():
            if is_set:
                raise ValueError(
                    f"privacy.local: evaluation.{key} sends figures that read training samples without noise; set "
                    f"evaluation.{key} to {'false' if key == 'track' else 0}"
                )

    if privacy.local is None or compare is None:
        return
    for method in compare.methods:
        if "tuned" in (method.metric, compare.metric):
            raise ValueError(
                f"privacy.local: compare, method {method.label}: mode `tuned` reads training samples without noise; set "
                "metric to server"
            )


def check_aggregation(privacy: Privacy, aggregation: Aggregation) -> None:
    """ValueError for an aggregation that changes the clipped sums which client-level privacy relies on."""
    if privacy.client is None:
        return
    if aggregation.average.single or aggregation.clip != Clip():
        raise ValueError(
            "privacy.client clips each report and adds noise to the mean; set aggregation.rule to mean and remove "
            "aggregation.clip"
        )


def check_methods(privacy: Privacy, strategies: Sequence[AnyStrategy]) -> None:
    """ValueError for a method that cannot keep the promise, with the method's own reason.

    Args:
        privacy: the section.
        strategies: the scenario's method, then those of its comparison.
    """
    for strategy in strategies:
        if privacy.client is not None:
            _check_client_level(strategy, privacy)
        if privacy.local is not None and strategy.privacy.local is None:
            raise ValueError(
                f"privacy.local: {strategy.name}'s reports hold more than models that DP-SGD has trained (choices, losses "
                "or signatures that are made from the data itself); choose another method, or remove privacy.local"
            )
    only_method = strategies[0] if len(strategies) == 1 else None
    if only_method and privacy.signatures and not only_method.facts.signatures:
        raise ValueError(
            f"privacy.signatures: {only_method.name} sends no signatures; remove the section"
        )


def _check_client_level(strategy: AnyStrategy, privacy: Privacy) -> None:
    facet = strategy.privacy
    if facet.routes is None:
        unknown = f"{strategy.name} is not supported: the sensitivity of its aggregation is unknown"
        raise ValueError(f"privacy.client: {facet.refusal or unknown}")
    if facet.routes == "chosen" and privacy.secure is not None:
        raise ValueError(
            f"privacy.client: with secure sums the coordinator sees which model each agent of {strategy.name} chooses, "
            "outside the account; remove privacy.secure or privacy.client"
        )
    if strategy.facts.signatures and privacy.signatures is None:
        phases = " and ".join(strategy.facts.signatures)
        raise ValueError(
            f"privacy.client: the phases {phases} send the signatures that groups are made from, without noise; add "
            "privacy.signatures, so that the account covers them"
        )
