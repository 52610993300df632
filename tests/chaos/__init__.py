"""Real programs under faults that a seed decides: what must hold afterwards, and the table of what was injected."""
