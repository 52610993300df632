"""A companion of the fleet's network for tables: a line by one sum, and trees on what it leaves by thirty."""

COMPANIONS = {"linear": "companion:LINEAR", "trees": "companion:TREES"}
