"""The names of the candidates of a device, in their order. A module of its own: an idle agent reads them without numpy."""

from __future__ import annotations

NONE = "none"  # the constant
SERVED = "served"  # the model of the agent's cluster, or the one for all
COMMON = "common"  # the last model for all, where the agent is served another one
HOME = "home-"  # followed by the epochs of a training at home
OWN = "own"  # what the method keeps for the agent
NEAR = "near"  # its nearest training samples
SOUP = "soup"  # the mean of the parameters of the served model and those after training at home
TREES = "trees"  # boosted trees on the agent's own table
HOMES = (1, 5, 20)
CANDIDATES = (
    NONE,
    SERVED,
    COMMON,
    *(f"{HOME}{epochs}" for epochs in HOMES),
    OWN,
    NEAR,
    SOUP,
    TREES,
)
