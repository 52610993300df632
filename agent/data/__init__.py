"""Data on a device, from a file to arrays. No torch here: an agent can say what its data is before it learns."""

from covey.agent.data.dataset import Dataset, take, with_test
from covey.agent.data.fit import fit
from covey.agent.data.load import load

__all__ = ["Dataset", "fit", "load", "take", "with_test"]
