"""The names of the candidates of a device, in their order, and of what a report has of them. A module of its own: an idle agent
reads them without numpy.
"""

from __future__ import annotations

from collections.abc import Mapping

NONE = "none"  # the constant
SERVED = "served"  # what the method serves the agent: its cluster's model, the one for all, or one of its own
HOME = "home-"  # followed by the epochs of a training at home
NEAR = "near"  # its nearest training samples
SOUP = "soup"  # the mean of the parameters of the served model and those after training at home
TREES = "trees"  # boosted trees on the agent's own table
COMPANION = "companion"  # what the fleet has learned besides the model
HOMES = (1, 5, 20)
CONSTANT = "no model, but the constant"  # a mixture of it alone, for people
CANDIDATES = (NONE, SERVED, *(f"{HOME}{epochs}" for epochs in HOMES), NEAR, SOUP, TREES, COMPANION)

# number of an order of the last evaluation, whose device has a judge: how often it was given the fleet's weights
JUDGE = "judge"
REFITS = 2  # orders that bring the fleet's weights
MEMORY = "judge/"  # begins the keys of a client's memory that are the judge's

# numbers of the report of an evaluation
DELIVERED = "delivered"  # figures of what the agent uses
WEIGHTS = "weights"  # of all its candidates, by name
GAIN = "gain"  # over the served model, with its variance
USES = "uses"  # the weights of what it uses
REPORTED = (DELIVERED, WEIGHTS, GAIN, USES)

WORDS = {
    NONE: "constant",
    SERVED: "served",
    NEAR: "neighbours",
    SOUP: "mean of the models",
    TREES: "trees",
    COMPANION: "companion of the fleet",
}


def in_words(weights: Mapping[str, float]) -> str:
    """For people: "60 % served, 30 % after 20 epochs at home, 10 % neighbours"."""
    if set(weights) == {NONE}:
        return CONSTANT
    texts = []
    for name in sorted(weights, key=lambda name: -weights[name]):
        epochs = name.removeprefix(HOME)
        what = WORDS.get(name, name)
        if epochs != name:
            what = f"after {epochs} epoch{'' if epochs == '1' else 's'} at home"
        texts.append(f"{100 * weights[name]:.0f} % {what}")
    return ", ".join(texts)
