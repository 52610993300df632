"""The models that a device keeps for its own use: their files, their order, and which of them is in use."""
