"""Data on a device, from a file to arrays. No torch here: an agent can say what its data is before it learns."""

from agent.data.dataset import Dataset, take, with_test
from agent.data.fit import fit
from agent.data.load import load
from agent.data.named import find_root, load_named

__all__ = ["Dataset", "find_root", "fit", "load", "load_named", "take", "with_test"]
