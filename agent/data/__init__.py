"""Data on a device, from a file to arrays. No torch here: an agent can say what its data is before it learns."""

from covey.agent.data.dataset import Dataset, take, with_test
from covey.agent.data.fit import fit
from covey.agent.data.load import load
from covey.agent.data.named import find_root, load_named

__all__ = ["Dataset", "find_root", "fit", "load", "load_named", "take", "with_test"]
