"""Hostile input for everything that reads bytes: one table of targets, tried in short by the suite and at length by `make fuzz`."""
