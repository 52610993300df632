"""Local training in plain numpy, for devices without torch. Nothing in here imports torch."""
