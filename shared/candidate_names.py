"""The names of the candidates of a device, in their order, and of what a report has of them. A module of its own: an idle agent
reads them without numpy.
"""

from __future__ import annotations

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

# numbers of the report of an evaluation
DELIVERED = "delivered"  # figures of what the agent uses
WEIGHTS = "weights"  # of all its candidates, by name
GAIN = "gain"  # over the served model, with its variance
USES = "uses"  # the weights of what it uses
REPORTED = (DELIVERED, WEIGHTS, GAIN, USES)
