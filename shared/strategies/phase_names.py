"""Names of phases, and of what more they may ask. They travel with orders and are kept in records, so they never change.

A method with a phase of its own names it in its own file.
"""

from __future__ import annotations

# phases that a strategy plans
TRAIN = "train"  # a round of training
ENTRY = "entry"  # clients without a cluster get one
SIGNATURE = "signature"  # clients send what they are clustered by
WARMUP = "warmup"  # clients train before they are clustered
CHOOSE = "choose"  # clients choose a model, which they then train
TRIAL = "trial"  # clients train the models of groups, next to the one model of the round
VOTE = "vote"  # clients compare models on samples that they hold back
ESTIMATE = "estimate"  # clients estimate the share of each cluster in their data
COMPANION = "companion"  # clients add to what the fleet learns besides the model; so is the vector of the report called

# phases of the run, which no strategy plans
EVALUATE = "evaluate"  # clients measure their model
MOMENTS = "moments"  # clients send sums over their features
OF_THE_RUN = (EVALUATE, MOMENTS)

# number of an order for boxes: the phase of the method, whose work may begin at once
AHEAD = "ahead"

# phases of a secure sum in which agents exchange messages and do not train
BOX, JOIN, UNMASK = EXCHANGES = ("secure-box", "secure-join", "secure-unmask")

# vectors of their reports: a message, and the values under a mask
WORDS, MASKED = "secure", "masked"

# number of an order, whatever its phase: the report has a card too, and the vector of that report
CARD = "card"

# of an evaluation: which model a client tests. server: the served one; tuned: the same after fine-tuning; last: its own
# after its latest training; baseline: none, but what a guess from its training data gives; trees: none, but boosted trees on
# its own table
MODES = ("server", "tuned", "last", "baseline", "trees")


def occasion(phase: str, rounds_done: int) -> str:
    """When a phase takes place, for people, who count rounds from one: "round 3", "the evaluation after round 2"."""
    if phase == EVALUATE:
        return f"the evaluation after round {rounds_done}"
    return f"round {rounds_done + 1}"
